// Device functions of kernels in CUDA C++. No headers: NVRTC compiles this text as it is.

template <int count>
struct Record {
  long long dims[count];
};

// Lanes that exchange values: a warp.
constexpr unsigned subgroup_size = 32;

template <class T> struct Unsigned;
template <> struct Unsigned<int> { using type = unsigned; };
template <> struct Unsigned<unsigned> { using type = unsigned; };
template <> struct Unsigned<long long> { using type = unsigned long long; };
template <> struct Unsigned<unsigned long long> { using type = unsigned long long; };

template <class T>
__device__ __forceinline__ T negated(T a) {
  return (T)(0 - (typename Unsigned<T>::type)a);
}

template <class T>
__device__ __forceinline__ T quotient(T a, T b) {
  if (b == 0) return 0;
  if ((T)-1 < (T)0 && b == (T)-1) return negated(a);
  return a / b;
}

template <class T>
__device__ __forceinline__ T remainder_of(T a, T b) {
  if (b == 0 || ((T)-1 < (T)0 && b == (T)-1)) return 0;
  return a % b;
}

template <int bits, class T>
__device__ __forceinline__ T shifted_left(T a, T b) {
  return b < (T)0 || b >= (T)bits ? (T)0 : (T)((typename Unsigned<T>::type)a << b);
}

template <int bits, class T>
__device__ __forceinline__ T shifted_right(T a, T b) {
  if (b < (T)0 || b >= (T)bits) return a < (T)0 ? (T)-1 : (T)0;
  return a >> b;
}

// A NaN operand gives NaN.
template <class T>
__device__ __forceinline__ T minimum(T a, T b) {
  return a != a ? a : b != b ? b : a < b ? a : b;
}

template <class T>
__device__ __forceinline__ T maximum(T a, T b) {
  return a != a ? a : b != b ? b : a < b ? b : a;
}

// A float as an integer: towards zero, the nearest end where it is outside, 0 for NaN.
template <class T>
__device__ __forceinline__ T saturated(double x, double low, double high, T least, T greatest) {
  return x != x ? (T)0 : x <= low ? least : x >= high ? greatest : (T)x;
}

__device__ __forceinline__ float decode_f16(unsigned bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)bits));
  return x;
}

__device__ __forceinline__ unsigned encode_f16(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

__device__ __forceinline__ float decode_bf16(unsigned bits) {
  return __uint_as_float(bits << 16);
}

__device__ __forceinline__ unsigned encode_bf16(float x) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}


// Quads of floats.
__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

__device__ __forceinline__ float4 operator*(float4 a, float b) {
  return {a.x * b, a.y * b, a.z * b, a.w * b};
}

__device__ __forceinline__ float dot(float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}

__device__ __forceinline__ float4 quad_fma(float a, float4 b, float4 c) {
  return {fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w)};
}
