// Copies from memory to workgroup memory that go on beside a thread's other work: 16 bytes each, of multiples of them.

// Workgroup memory that a launch brings: as much as a multiprocessor has, where arrays of a kernel's own end at 48 KB.
#define DYNAMIC_SHARED(bytes) extern __shared__ __align__(1024) Piece dynamic_shared[]

__device__ __forceinline__ void copy_ahead(Piece* place, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
      ::"r"((unsigned)__cvta_generic_to_shared(place)), "l"(source) : "memory");
}

// Zeros where there is no source; none is read there.
__device__ __forceinline__ void copy_ahead_if(bool there, Piece* place, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      ::"r"((unsigned)__cvta_generic_to_shared(place)), "l"(source), "r"(there ? 16 : 0) : "memory");
}

// So many elements of 16 bits, at most eight, and zeros behind them.
__device__ __forceinline__ void copy_elements_ahead(int count, Piece* place, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      ::"r"((unsigned)__cvta_generic_to_shared(place)), "l"(source), "r"(min(count, 8) * 2) : "memory");
}

// Makes one group of a thread's copies since the last group.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most so many of a thread's groups are under way. Others see its copies behind the next barrier.
template <int under_way>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(under_way) : "memory");
}
