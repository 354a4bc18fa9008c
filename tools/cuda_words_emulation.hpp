// What CUDA C++ has beyond C++17, as far as kernels use it, on top of `cuda_emulation.hpp`.

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(x, y, z)

#define __syncthreads() emulation::wait_at(__LINE__)
#define __syncthreads_or(value) emulation::any_of(__LINE__, value)
#define __ballot_sync(all, value) emulation::bits_of(__LINE__, value)
#define __shfl_xor_sync(all, value, mask) emulation::exchanged(__LINE__, value, mask)
#define __syncwarp() ((void)emulation::exchanged(__LINE__, 0u, 0))

struct alignas(16) float4 {
  float x, y, z, w;
};

struct alignas(16) int4 {
  int x, y, z, w;
};

inline unsigned __float_as_uint(float x) { return emulation::same_bits<unsigned>(x); }
inline int __float_as_int(float x) { return emulation::same_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return emulation::same_bits<float>(x); }
inline float __int_as_float(int x) { return emulation::same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulation::same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulation::same_bits<double>(x); }

template <class T>
T min(T a, T b) {
  return a < b ? a : b;
}

template <class T>
T max(T a, T b) {
  return a > b ? a : b;
}

// Lanes give turns away at barriers alone, so these are whole; before an exchange, so that others come between it and
// what was read before.
template <class T>
T atomicAdd(T* place, T value) {
  return std::exchange(*place, (T)(*place + (typename std::make_unsigned<T>::type)value));
}

template <class T>
T atomicMin(T* place, T value) {
  return std::exchange(*place, min(*place, value));
}

template <class T>
T atomicMax(T* place, T value) {
  return std::exchange(*place, max(*place, value));
}

template <class T>
T atomicCAS(T* place, T expected, T value) {
  emulation::wait_at(emulation::pausing);
  return std::exchange(*place, *place == expected ? value : *place);
}
