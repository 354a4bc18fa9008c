// Tells a graph of CUDA which way to go. The driver has the function that does so: what calls it is loaded as PTX.

extern "C" __device__ void cudaGraphSetConditional(unsigned long long condition, unsigned value);

// Sets up to two conditions of a graph to whether `holds` says so, or to the opposite. Those of a loop are 0 after its last
// trip, too: `trips` counts them, from the decision on that is the first.
extern "C" __global__ void __launch_bounds__(1)
rlx_decide(const unsigned char* __restrict__ holds, long long* __restrict__ trips, const __grid_constant__ Record<5> record) {
  const long long limit = record.dims[2], first = record.dims[3], opposite = record.dims[4];
  const long long trip = first ? 0 : *trips + 1;
  *trips = trip;
  const unsigned value = (trip < limit && *holds) != (opposite != 0);
  for (int i = 0; i < 2; i++)
    if (record.dims[i]) cudaGraphSetConditional(record.dims[i], value);
}
