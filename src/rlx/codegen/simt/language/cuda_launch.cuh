// Overlapping launches, from compute capability 9.0 on: the blocks of a kernel come to multiprocessors while the kernel
// before still runs, as soon as all of its blocks have come past `follow`.

// Nothing that earlier kernels write may be read or written before, and every thread must pass here: the end of a kernel
// tells those that follow that all before it have ended. The next kernel may come from here on, and not before, as its
// blocks would lie around while two kernels run.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Asks for a line of memory to be in the common cache soon.
__device__ __forceinline__ void bring_near(const void* place) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(place));
}

// Has weights of a later kernel in the common cache when that comes: each block asks for a share of them, as this kernel
// has the memory for itself while it computes. `sizes` are all bytes, and in the upper half those of a share.
__device__ __forceinline__ void bring_later(long long place, long long sizes) {
#if __CUDA_ARCH__ >= 900
  const unsigned bytes = (unsigned)sizes, share = (unsigned)(sizes >> 32);
  const unsigned first = blockIdx.x * share;
  if (threadIdx.x == 0 && first < bytes)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(place + first), "r"(min(share, bytes - first)));
#endif
}

// A number that no kernel writes, loaded here and not later. Not by `.nc`: assemblers move such loads behind waits, as
// nothing can change what they read.
__device__ __forceinline__ long long number_ahead(const long long* place) {
  long long number;
  asm volatile("ld.global.s64 %0, [%1];" : "=l"(number) : "l"(place));
  return number;
}

// 16 bytes that no kernel writes, loaded here and not later: before `follow`, so that they come while others still run.
// Many rows want the same, which the cache of a multiprocessor has then.
template <class T>
__device__ __forceinline__ Piece piece_ahead(const T* place) {
  Piece piece;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w) : "l"(place));
  return piece;
}

// Memory that other kernels may write elsewhere, loaded here and not later, past the multiprocessor's own cache.
__device__ __forceinline__ Piece read_now(const Piece* place) {
  Piece piece;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w) : "l"(place));
  return piece;
}

__device__ __forceinline__ HalfPiece read_now(const HalfPiece* place) {
  HalfPiece piece;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(piece.x), "=r"(piece.y) : "l"(place));
  return piece;
}

__device__ __forceinline__ unsigned read_now(const unsigned char* place) {
  unsigned element;
  asm volatile("ld.global.cg.u8 %0, [%1];" : "=r"(element) : "l"(place));
  return element;
}

__device__ __forceinline__ unsigned read_now(const unsigned short* place) {
  unsigned short element;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(element) : "l"(place));
  return element;
}

__device__ __forceinline__ float read_now(const float* place) {
  float element;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(element) : "l"(place));
  return element;
}

// Stores to the memory of a buffer at once: compilers store words one by one where some are made by instructions that
// they do not know.
__device__ __forceinline__ void put_piece(Piece* place, Piece piece) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
      ::"l"(place), "r"(piece.x), "r"(piece.y), "r"(piece.z), "r"(piece.w) : "memory");
}

__device__ __forceinline__ void put_piece(HalfPiece* place, HalfPiece piece) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(place), "r"(piece.x), "r"(piece.y) : "memory");
}

// The same of a single element, which may also be loaded behind `follow`: then it may be one that earlier kernels wrote.
__device__ __forceinline__ unsigned element_ahead(const unsigned short* place) {
  unsigned short element;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(element) : "l"(place));
  return element;
}

__device__ __forceinline__ float element_ahead(const float* place) {
  float element;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(element) : "l"(place));
  return element;
}
