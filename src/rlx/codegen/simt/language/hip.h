// What kernels in HIP C++ ask of the compiler, by its own names. There are no headers, so that hiprtc and compilers
// without ROCm take the same text. Before names that hiprtc brings by itself, those of this namespace are found; words
// that are macros there stay as they are.

#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __device__
#define __device__ __attribute__((device))
#endif
#ifndef __shared__
#define __shared__ __attribute__((shared))
#endif
#ifndef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#endif

struct alignas(16) float4 {
  float x, y, z, w;
};

__device__ __forceinline__ unsigned block_index() { return __builtin_amdgcn_workgroup_id_x(); }
__device__ __forceinline__ unsigned lane_number() { return __builtin_amdgcn_workitem_id_x(); }

// Lanes that exchange values: a wavefront, of 32 lanes or of 64, as the compiler has it.
__device__ __forceinline__ unsigned wavefront() {
#if __has_builtin(__builtin_amdgcn_wavefrontsize)
  return __builtin_amdgcn_wavefrontsize();
#else
  return __AMDGCN_WAVEFRONT_SIZE;  // of older compilers, which newer ones have not
#endif
}

__device__ __forceinline__ void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// What the lane has whose number differs in the bits of `mask`, word by word.
template <class T>
__device__ __forceinline__ T neighbour(T value, unsigned mask) {
  static_assert(sizeof(T) % sizeof(int) == 0);
  const unsigned own = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  union { T value; int words[sizeof(T) / sizeof(int)]; } held = {value};
  for (int& word : held.words) word = __builtin_amdgcn_ds_bpermute((int)((own ^ mask) * sizeof(int)), word);
  return held.value;
}

template <class T>
__device__ __forceinline__ T atomicAdd(T* place, T value) {
  return __hip_atomic_fetch_add(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

template <class T>
__device__ __forceinline__ T atomicMin(T* place, T value) {
  return __hip_atomic_fetch_min(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

template <class T>
__device__ __forceinline__ T atomicMax(T* place, T value) {
  return __hip_atomic_fetch_max(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

template <class T>
__device__ __forceinline__ T atomicCAS(T* place, T expected, T value) {
  __hip_atomic_compare_exchange_strong(
      place, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}

__device__ __forceinline__ unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
__device__ __forceinline__ int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
__device__ __forceinline__ float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
__device__ __forceinline__ float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
__device__ __forceinline__ long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
__device__ __forceinline__ double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }

__device__ __forceinline__ float decode_f16(unsigned bits) {
  return (float)__builtin_bit_cast(_Float16, (unsigned short)bits);
}

__device__ __forceinline__ unsigned encode_f16(float x) {
  return __builtin_bit_cast(unsigned short, (_Float16)x);
}

template <class T>
__device__ __forceinline__ T min(T a, T b) { return a < b ? a : b; }

template <class T>
__device__ __forceinline__ T max(T a, T b) { return a > b ? a : b; }

__device__ __forceinline__ long long abs(long long a) { return a < 0 ? -a : a; }

// Functions that are instructions, or a few.
#define RLX_ONE(name)                                                               \
  __device__ __forceinline__ float name##f(float x) { return __builtin_##name##f(x); } \
  __device__ __forceinline__ double name(double x) { return __builtin_##name(x); }
RLX_ONE(floor) RLX_ONE(ceil) RLX_ONE(trunc) RLX_ONE(rint) RLX_ONE(sqrt) RLX_ONE(fabs)

__device__ __forceinline__ float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
__device__ __forceinline__ double copysign(double x, double y) { return __builtin_copysign(x, y); }
__device__ __forceinline__ float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
__device__ __forceinline__ double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }

// Functions of ROCm's device library, which hiprtc links.
#define RLX_OF_LIBRARY(name)                              \
  extern "C" __device__ double __ocml_##name##_f64(double); \
  __device__ __forceinline__ double name(double x) { return __ocml_##name##_f64(x); }
RLX_OF_LIBRARY(exp) RLX_OF_LIBRARY(exp2) RLX_OF_LIBRARY(expm1)
RLX_OF_LIBRARY(log) RLX_OF_LIBRARY(log2) RLX_OF_LIBRARY(log1p)
RLX_OF_LIBRARY(sin) RLX_OF_LIBRARY(cos) RLX_OF_LIBRARY(tan)
RLX_OF_LIBRARY(asin) RLX_OF_LIBRARY(acos) RLX_OF_LIBRARY(atan)
RLX_OF_LIBRARY(sinh) RLX_OF_LIBRARY(cosh) RLX_OF_LIBRARY(tanh)
RLX_OF_LIBRARY(asinh) RLX_OF_LIBRARY(acosh) RLX_OF_LIBRARY(atanh)
RLX_OF_LIBRARY(erf)

#define RLX_OF_LIBRARY_TWO(name, function, T, suffix)        \
  extern "C" __device__ T __ocml_##function##_##suffix(T, T); \
  __device__ __forceinline__ T name(T x, T y) { return __ocml_##function##_##suffix(x, y); }
RLX_OF_LIBRARY_TWO(pow, pow, double, f64) RLX_OF_LIBRARY_TWO(atan2, atan2, double, f64)
RLX_OF_LIBRARY_TWO(fmod, fmod, double, f64) RLX_OF_LIBRARY_TWO(fmodf, fmod, float, f32)
