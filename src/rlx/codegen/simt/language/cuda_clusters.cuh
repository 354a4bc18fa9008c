// Clusters: blocks in a row that run at once, each of which reads the workgroup memory of the others.

// Waits for all threads of the cluster, whose writes are seen from then on.
__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Waits for all threads of the cluster, which need see nothing that others wrote: what they read was read.
__device__ __forceinline__ void leave_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// What one block of the cluster has where this one has `place`.
__device__ __forceinline__ float4 of_block(const float4* place, unsigned block) {
  float4 read{};
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(read.x), "=f"(read.y), "=f"(read.z), "=f"(read.w)
      : "r"((unsigned)__cvta_generic_to_shared(place)), "r"(block) : "memory");
#endif
  return read;
}

__device__ __forceinline__ float of_block(const float* place, unsigned block) {
  float read = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.f32 %0, [there];\n}"
      : "=f"(read) : "r"((unsigned)__cvta_generic_to_shared(place)), "r"(block) : "memory");
#endif
  return read;
}

__device__ __forceinline__ int4 of_block(const int4* place, unsigned block) {
  const float4 read = of_block((const float4*)place, block);
  return {__float_as_int(read.x), __float_as_int(read.y), __float_as_int(read.z), __float_as_int(read.w)};
}

__device__ __forceinline__ int of_block(const int* place, unsigned block) {
  return __float_as_int(of_block((const float*)place, block));
}

__device__ __forceinline__ int4 operator+(int4 a, int4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// Blocks give each other numbers, which the receiver counts: it need not wait for all that the givers do besides.

// Every thread tells, once, how many bytes its block will be given.
__device__ __forceinline__ void expect_gifts(unsigned long long* given, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  const unsigned counter = (unsigned)__cvta_generic_to_shared(given);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(counter) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(counter), "r"(bytes) : "memory");
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// Waits until all blocks of the cluster have memory for what they will be given.
__device__ __forceinline__ void meet_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Puts a number where a block of the cluster has `place`.
__device__ __forceinline__ void give_block(unsigned long long* given, float* place, unsigned block, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 there, counter;\nmapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 counter, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [counter];\n}"
      :: "r"((unsigned)__cvta_generic_to_shared(place)), "r"((unsigned)__cvta_generic_to_shared(given)), "r"(block),
         "r"(__float_as_uint(value)) : "memory");
#endif
}

// Waits until the block has all that it expects.
__device__ __forceinline__ void await_gifts(unsigned long long* given) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred all;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 all, [%0], 0;\n@!all bra again;\n}"
      ::"r"((unsigned)__cvta_generic_to_shared(given)) : "memory");
#endif
}

// The sum of what all blocks of the cluster have at a place, in their order.
template <int blocks, class T>
__device__ __forceinline__ T sum_of_cluster(const T* place) {
  T parts[blocks];
#pragma unroll
  for (int i = 0; i < blocks; i++) parts[i] = of_block(place, i);
#pragma unroll
  for (int i = 1; i < blocks; i++) parts[0] = parts[0] + parts[i];
  return parts[0];
}
