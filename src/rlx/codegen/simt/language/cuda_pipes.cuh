// Pipes within a workgroup: a lane has operands brought to workgroup memory, warps use them, and counters tell which
// stages are full and which are empty, so that nobody waits for a barrier of all.

// Has a counter for so many arrivals a phase. One thread does so, and shows it before a barrier.
__device__ __forceinline__ void count_arrivals(unsigned long long* counter, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
      ::"r"((unsigned)__cvta_generic_to_shared(counter)), "r"(arrivals) : "memory");
}

// One arrival, behind everything that the thread did before.
__device__ __forceinline__ void arrive(unsigned long long* counter) {
  asm volatile("{\n.reg .b64 phase;\nmbarrier.arrive.shared::cta.b64 phase, [%0];\n}"
      ::"r"((unsigned)__cvta_generic_to_shared(counter)) : "memory");
}

// One arrival, behind all copies that the thread has asked for before, which go on meanwhile.
__device__ __forceinline__ void arrive_with_copies(unsigned long long* counter) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
      ::"r"((unsigned)__cvta_generic_to_shared(counter)) : "memory");
#endif
}

// A map of a tensor, as a driver makes it of what `maps.py` says.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

// One arrival, and so many bytes of tiles, without which the phase does not end.
__device__ __forceinline__ void arrive_with_bytes(unsigned long long* counter, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
      ::"r"((unsigned)__cvta_generic_to_shared(counter)), "r"(bytes) : "memory");
#endif
}

// Has a tile of a tensor come to workgroup memory, and counted: its first element by the place on each axis.
#if __CUDA_ARCH__ >= 900
#define BRING_TILE(rank, places, ...)                                                                            \
  asm volatile("cp.async.bulk.tensor." rank ".shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {"  \
               places "}], [%2];"                                                                                \
               ::"r"((unsigned)__cvta_generic_to_shared(place)), "l"(&map),                                      \
               "r"((unsigned)__cvta_generic_to_shared(counter)), __VA_ARGS__ : "memory")
#else
#define BRING_TILE(rank, places, ...)
#endif

__device__ __forceinline__ void bring_tile(const TensorMap& map, Piece* place, unsigned long long* counter, int x, int y) {
  BRING_TILE("2d", "%3, %4", "r"(x), "r"(y));
}

__device__ __forceinline__ void bring_tile(
    const TensorMap& map, Piece* place, unsigned long long* counter, int x, int y, int z) {
  BRING_TILE("3d", "%3, %4, %5", "r"(x), "r"(y), "r"(z));
}

__device__ __forceinline__ void bring_tile(
    const TensorMap& map, Piece* place, unsigned long long* counter, int x, int y, int z, int u) {
  BRING_TILE("4d", "%3, %4, %5, %6", "r"(x), "r"(y), "r"(z), "r"(u));
}

__device__ __forceinline__ void bring_tile(
    const TensorMap& map, Piece* place, unsigned long long* counter, int x, int y, int z, int u, int v) {
  BRING_TILE("5d", "%3, %4, %5, %6, %7", "r"(x), "r"(y), "r"(z), "r"(u), "r"(v));
}

// Waits for the end of the phase of this parity: the first one has 0.
__device__ __forceinline__ void await_phase(unsigned long long* counter, int parity) {
  asm volatile(
      "{\n.reg .pred over;\nagain:\nmbarrier.test_wait.parity.shared::cta.b64 over, [%0], %1;\n@!over bra again;\n}"
      ::"r"((unsigned)__cvta_generic_to_shared(counter)), "r"(parity) : "memory");
}
