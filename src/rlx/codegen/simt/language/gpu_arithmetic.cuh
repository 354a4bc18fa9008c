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

// A float as an integer: towards zero, the nearest end where it is outside, 0 for NaN. The upper end may be one more
// than an integer can be, as the next float is.
template <class T, class Float>
__device__ __forceinline__ T saturated(Float x, Float low, Float high, T least, T greatest) {
  return x != x ? (T)0 : x <= low ? least : x >= high ? greatest : (T)x;
}

// Four numbers as the bytes of a word, the first one lowest.
template <class T>
__device__ __forceinline__ unsigned four_bytes(T a, T b, T c, T d) {
  return ((unsigned)a & 0xffu) | ((unsigned)b & 0xffu) << 8 | ((unsigned)c & 0xffu) << 16 | (unsigned)d << 24;
}
