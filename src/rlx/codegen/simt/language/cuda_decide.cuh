// Tells a graph of CUDA which way to go. The driver has the function that does so: what calls it is loaded as PTX.

extern "C" __device__ void cudaGraphSetConditional(unsigned long long condition, unsigned value);

// Sets a condition of a graph to whether `holds` says so, or to the opposite. That of a loop is 0 after the last trip, too:
// `trips` counts decisions from the first on.
extern "C" __global__ void __launch_bounds__(1)
rlx_decide(const unsigned char* __restrict__ holds, long long* __restrict__ trips, const __grid_constant__ Record<4> record) {
  const long long limit = record.dims[1], first = record.dims[2], opposite = record.dims[3];
  const long long trip = first ? 0 : *trips + 1;
  *trips = trip;
  cudaGraphSetConditional(record.dims[0], (trip < limit && *holds) != (opposite != 0));
}
