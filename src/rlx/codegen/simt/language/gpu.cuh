// Device functions of kernels in CUDA C++ and in HIP C++. No headers: compilers take this text as it is.

template <int count>
struct Record {
  long long dims[count];
};

// Sixteen bytes, from an address that is a multiple of them or of an element's size.
struct alignas(16) Piece {
  unsigned x, y, z, w;
};

struct alignas(8) HalfPiece {
  unsigned x, y;
};

// Of two words with two elements of 16 bits each: the lower elements, or the upper ones.
template <int upper>
__device__ __forceinline__ unsigned paired(unsigned a, unsigned b) {
  return upper ? a >> 16 | (b & 0xffff0000u) : (a & 0xffffu) | b << 16;
}

template <bool aligned, class T>
__device__ __forceinline__ Piece piece_at(const T* place) {
  if (aligned) return *(const Piece*)place;
  union { T elements[16 / sizeof(T)]; Piece piece; } made;
  for (int i = 0; i < 16 / sizeof(T); i++) made.elements[i] = place[i];
  return made.piece;
}

// Four elements of 16 bits, and as many zeros.
template <class T>
__device__ __forceinline__ Piece half_at(const T* place) {
  Piece made{};
  made.x = (unsigned)place[0] | (unsigned)place[1] << 16;
  made.y = (unsigned)place[2] | (unsigned)place[3] << 16;
  return made;
}

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


// An element that many invocations change: the word that holds it is exchanged when nobody else has changed it since it
// was read.
template <class T>
struct Exchange {
  static constexpr bool is_wide = sizeof(T) == 8;
  template <bool, class Narrow, class Wide> struct Choice { using type = Narrow; };
  template <class Narrow, class Wide> struct Choice<true, Narrow, Wide> { using type = Wide; };
  using Word = typename Choice<is_wide, unsigned, unsigned long long>::type;
  union Bits {
    Word word;
    T element;
  };

  Word* place;
  unsigned shift;
  Word mask, seen;
  bool done = false;

  __device__ __forceinline__ explicit Exchange(T* element) {
    const unsigned long long address = (unsigned long long)element, start = address & ~(sizeof(Word) - 1ull);
    place = (Word*)start;
    shift = 8 * (unsigned)(address - start);
    mask = (Word)(~(Word)0 >> 8 * (sizeof(Word) - sizeof(T))) << shift;
    seen = *(volatile Word*)place;
  }

  __device__ __forceinline__ T before() const {
    Bits bits;
    bits.word = (seen & mask) >> shift;
    return bits.element;
  }

  __device__ __forceinline__ void replace(T after) {
    Bits bits;
    bits.word = 0;
    bits.element = after;
    const Word found = atomicCAS(place, seen, (seen & ~mask) | bits.word << shift);
    done = found == seen;
    seen = found;
  }
};
