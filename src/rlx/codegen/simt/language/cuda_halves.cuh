// Conversions of halves, which PTX has instructions for.

__device__ __forceinline__ float decode_f16(unsigned bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)bits));
  return x;
}

// As half of a pair, whose conversion takes a quarter of the time of a single one's.
__device__ __forceinline__ unsigned encode_f16(float x) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.0f), "f"(x));
  return bits;
}

__device__ __forceinline__ unsigned pair_f16(float low, float high) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ float decode_bf16(unsigned bits) {
  return __uint_as_float(bits << 16);
}

__device__ __forceinline__ unsigned encode_bf16(float x) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.0f), "f"(x));
  return bits;
}

__device__ __forceinline__ unsigned pair_bf16(float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// Two floats of 16 bits a word, rounded once each.
__device__ __forceinline__ unsigned less_f16(unsigned a, unsigned b) {
  unsigned made;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
  return made;
}

__device__ __forceinline__ unsigned times_f16(unsigned a, unsigned b) {
  unsigned made;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
  return made;
}

__device__ __forceinline__ unsigned less_bf16(unsigned a, unsigned b) {
  unsigned made;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(made) : "r"(a), "r"(0x3f803f80u), "r"(b ^ 0x80008000u));
  return made;
}

__device__ __forceinline__ unsigned times_bf16(unsigned a, unsigned b) {
  unsigned made;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(made) : "r"(a), "r"(b), "r"(0x80008000u));
  return made;
}
