// In the place of `metal_stdlib` and of the words of Metal's language, for a clang that has C++ for OpenCL without a
// generic address space: pointers and references that point to another memory than they say are errors there. What is
// declared here is declared as Metal's library has it.

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_non_portable_kernel_param_types : enable

#define device __global
#define threadgroup __local
#define thread __private

typedef unsigned uint;
typedef float float4 __attribute__((ext_vector_type(4)));
typedef unsigned uint2 __attribute__((ext_vector_type(2)));

template <class To, class From>
To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

namespace metal {

float floor(float);
float ceil(float);
float trunc(float);
float rint(float);
float fabs(float);
float copysign(float, float);
float fma(float, float, float);

namespace precise {
float sqrt(float);
}

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
void threadgroup_barrier(mem_flags);

int simd_shuffle_xor(int, unsigned short);
uint simd_shuffle_xor(uint, unsigned short);
float simd_shuffle_xor(float, unsigned short);
uint2 simd_shuffle_xor(uint2, unsigned short);

enum memory_order { memory_order_relaxed };

template <class T>
struct atomic {
  T value;
};

typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;

#define RLX_ATOMICS(T)                                                             \
  T atomic_load_explicit(const device atomic<T>*, memory_order);                   \
  T atomic_fetch_add_explicit(device atomic<T>*, T, memory_order);                 \
  T atomic_fetch_min_explicit(device atomic<T>*, T, memory_order);                 \
  T atomic_fetch_max_explicit(device atomic<T>*, T, memory_order);                 \
  bool atomic_compare_exchange_weak_explicit(device atomic<T>*, thread T*, T, memory_order, memory_order);
RLX_ATOMICS(int)
RLX_ATOMICS(uint)

}  // namespace metal
