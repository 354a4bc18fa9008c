// Floats of 8 bits (e4m3), which compute capability 8.9 and newer ones have instructions for. Kernels ask `has_float8`, and
// do otherwise where there are none.
#if __CUDA_ARCH__ >= 890
constexpr bool has_float8 = true;
#define FLOAT8(...) asm(__VA_ARGS__)
#else
constexpr bool has_float8 = false;
#define FLOAT8(...)
#endif

// c[16][8] += a[16][32] · b[32][8], each lane with the elements that PTX says. Terms are cut off some 13 bits below the
// greatest of an instruction, c among them.
__device__ __forceinline__ void mma_e4m3(
    float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  FLOAT8(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two floats as bytes, the first one lowest, rounded to nearest even; beyond 448 they are that.
__device__ __forceinline__ unsigned pair_e4m3(float low, float high) {
  unsigned short bits = 0;
  FLOAT8("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
}
