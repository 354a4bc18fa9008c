// Overlapping launches, from compute capability 9.0 on: the blocks of a kernel come to multiprocessors while the kernel
// before still runs, as soon as all of its blocks have begun.

// Nothing that earlier kernels write may be read or written before, and every thread must pass here: the end of a kernel
// tells those that follow that all before it have ended.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Asks for a line of memory to be in the common cache soon.
__device__ __forceinline__ void bring_near(const void* place) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(place));
}
