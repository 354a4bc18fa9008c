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
