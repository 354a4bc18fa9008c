// Instructions of PTX on floats.

// A NaN operand gives NaN: one instruction, where a choice takes three.
__device__ __forceinline__ float minimum(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float made;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(made) : "f"(a), "f"(b));
  return made;
#else
  return minimum<float>(a, b);
#endif
}

__device__ __forceinline__ float maximum(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float made;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(made) : "f"(a), "f"(b));
  return made;
#else
  return maximum<float>(a, b);
#endif
}

// 2^x, two units in the last place off at most; subnormal numbers are zeros.
__device__ __forceinline__ float near_exp2(float x) {
  float made;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(x));
  return made;
}

// 1 / x, one unit in the last place off at most; subnormal numbers are zeros.
__device__ __forceinline__ float near_reciprocal(float x) {
  float made;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(x));
  return made;
}
