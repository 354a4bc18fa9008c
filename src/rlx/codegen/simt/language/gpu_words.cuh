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
