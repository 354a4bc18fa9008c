// What kernels in Metal's language ask of its library, by the names that kernels in C++ of GPUs have for it. NaN and
// infinities count, and products and sums are fused where a kernel says so and nowhere else.

#include <metal_stdlib>

#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#endif
#pragma clang fp contract(off)

#define __device__
#define __forceinline__ inline

template <int count>
struct Record {
  long dims[count];
};

// Where the memory of an operand begins for which no buffer is left.
struct Place {
  device char* start;
};

template <class T> struct Unsigned;
template <> struct Unsigned<int> { using type = unsigned; };
template <> struct Unsigned<unsigned> { using type = unsigned; };
template <> struct Unsigned<long> { using type = unsigned long; };
template <> struct Unsigned<unsigned long> { using type = unsigned long; };

inline unsigned __float_as_uint(float x) { return as_type<unsigned>(x); }
inline int __float_as_int(float x) { return as_type<int>(x); }
inline float __uint_as_float(unsigned x) { return as_type<float>(x); }
inline float __int_as_float(int x) { return as_type<float>(x); }

template <class T>
inline T min(T a, T b) { return a < b ? a : b; }

template <class T>
inline T max(T a, T b) { return a > b ? a : b; }

template <class T>
inline T abs(T a) { return a < 0 ? -a : a; }

inline float floorf(float x) { return metal::floor(x); }
inline float ceilf(float x) { return metal::ceil(x); }
inline float truncf(float x) { return metal::trunc(x); }
inline float rintf(float x) { return metal::rint(x); }
inline float sqrtf(float x) { return metal::precise::sqrt(x); }
inline float fabsf(float x) { return metal::fabs(x); }
inline float copysignf(float x, float y) { return metal::copysign(x, y); }
inline float fmaf(float x, float y, float z) { return metal::fma(x, y, z); }

// The mantissa of a float that is neither zero nor infinite, as an integer with its highest bit at 23, and the exponent
// that goes with it.
inline unsigned mantissa_of(unsigned bits, thread int& exponent) {
  exponent = (int)(bits >> 23);
  unsigned mantissa = bits & 0x7fffffu;
  if (exponent != 0) return mantissa | 0x800000u;
  for (exponent = 1; mantissa < 0x800000u; exponent--) mantissa <<= 1;
  return mantissa;
}

// Exact, by subtraction of integers: the library's own is x - y * trunc(x / y), which is not.
inline float fmodf(float x, float y) {
  const unsigned sign = as_type<unsigned>(x) & 0x80000000u;
  const unsigned a = as_type<unsigned>(x) & 0x7fffffffu, b = as_type<unsigned>(y) & 0x7fffffffu;
  if (a >= 0x7f800000u || b > 0x7f800000u || b == 0) return as_type<float>(0x7fc00000u);
  if (a < b) return x;
  int above, below;
  unsigned rest = mantissa_of(a, above);
  const unsigned divisor = mantissa_of(b, below);
  for (; above > below; above--) {
    if (rest >= divisor) rest -= divisor;
    rest <<= 1;
  }
  if (rest >= divisor) rest -= divisor;
  if (rest == 0) return as_type<float>(sign);
  for (; rest < 0x800000u; below--) rest <<= 1;
  const unsigned made = below > 0 ? (rest & 0x7fffffu) | (unsigned)below << 23 : rest >> (1 - below);
  return as_type<float>(made | sign);
}

// Quads of floats, whose sums and products by a float the language has.
inline float4 quad_of(float x, float y, float z, float w) {
  float4 made;
  made.x = x;
  made.y = y;
  made.z = z;
  made.w = w;
  return made;
}

inline float dot(float4 a, float4 b) { return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x))); }

inline float4 quad_fma(float a, float4 b, float4 c) {
  return quad_of(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w));
}

// Atomics are types of their own here, of 32 bits, which elements in memory are taken for.
template <class T> struct Atomic;
template <> struct Atomic<int> { using type = metal::atomic_int; };
template <> struct Atomic<unsigned> { using type = metal::atomic_uint; };

template <class T>
inline void atomicAdd(device T* place, T value) {
  metal::atomic_fetch_add_explicit((device typename Atomic<T>::type*)place, value, metal::memory_order_relaxed);
}

// A sum of two words: whoever makes the lower one run over has the upper one go on by one. It is whole when all have
// added.
inline void atomicAdd(device unsigned long* place, unsigned long value) {
  device metal::atomic_uint* words = (device metal::atomic_uint*)place;
  const unsigned low = (unsigned)value;
  const unsigned before = metal::atomic_fetch_add_explicit(words, low, metal::memory_order_relaxed);
  const unsigned high = (unsigned)(value >> 32) + (before + low < before ? 1u : 0u);
  if (high != 0) metal::atomic_fetch_add_explicit(words + 1, high, metal::memory_order_relaxed);
}

template <class T>
inline void atomicMin(device T* place, T value) {
  metal::atomic_fetch_min_explicit((device typename Atomic<T>::type*)place, value, metal::memory_order_relaxed);
}

template <class T>
inline void atomicMax(device T* place, T value) {
  metal::atomic_fetch_max_explicit((device typename Atomic<T>::type*)place, value, metal::memory_order_relaxed);
}

// An element that many invocations change: it is exchanged when nobody else has changed it since it was read.
template <class T>
struct Exchange {
  device metal::atomic_uint* place;
  unsigned seen;
  bool done;

  explicit Exchange(device T* element) {
    place = (device metal::atomic_uint*)element;
    seen = metal::atomic_load_explicit(place, metal::memory_order_relaxed);
    done = false;
  }

  T before() const { return as_type<T>(seen); }

  void replace(T after) {
    done = metal::atomic_compare_exchange_weak_explicit(
        place, &seen, as_type<unsigned>(after), metal::memory_order_relaxed, metal::memory_order_relaxed);
  }
};
