// In the place of `metal_stdlib` and of the words of Metal's language, on top of `cuda_emulation.hpp`. Where a launch has
// lanes wait for one another, the line tells where.

using uint = unsigned;

struct alignas(16) float4 {
  float x, y, z, w;
};

inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
inline float4 operator*(float4 a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }

struct alignas(8) uint2 {
  uint x, y;
};

template <class To, class From>
To as_type(From from) {
  return emulation::same_bits<To>(from);
}

namespace metal {

inline float floor(float x) { return std::floor(x); }
inline float ceil(float x) { return std::ceil(x); }
inline float trunc(float x) { return std::trunc(x); }
inline float rint(float x) { return std::rint(x); }
inline float fabs(float x) { return std::fabs(x); }
inline float copysign(float x, float y) { return std::copysign(x, y); }
inline float fma(float x, float y, float z) { return std::fma(x, y, z); }

namespace precise {
inline float sqrt(float x) { return std::sqrt(x); }
}  // namespace precise

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }

// Kernels read and write both kinds of memory behind a barrier.
inline void threadgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  if (flags == (mem_flags::mem_device | mem_flags::mem_threadgroup)) emulation::wait_at(line);
}

template <class T>
T simd_shuffle_xor(T value, unsigned short mask, int line = __builtin_LINE()) {
  return emulation::exchanged(line, value, mask);
}

enum memory_order { memory_order_relaxed };

// Lanes give turns away at barriers alone, so these are whole; before an exchange, so that others come between it and
// what was read before.
template <class T>
struct atomic {
  T value;
};

using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;

template <class T>
T atomic_load_explicit(const atomic<T>* place, memory_order) {
  return place->value;
}

template <class T>
T atomic_fetch_add_explicit(atomic<T>* place, T value, memory_order) {
  return std::exchange(place->value, (T)((uint)place->value + (uint)value));
}

template <class T>
T atomic_fetch_min_explicit(atomic<T>* place, T value, memory_order) {
  return std::exchange(place->value, value < place->value ? value : place->value);
}

template <class T>
T atomic_fetch_max_explicit(atomic<T>* place, T value, memory_order) {
  return std::exchange(place->value, value > place->value ? value : place->value);
}

template <class T>
bool atomic_compare_exchange_weak_explicit(atomic<T>* place, T* expected, T value, memory_order, memory_order) {
  emulation::wait_at(emulation::pausing);
  const T found = place->value;
  if (found == *expected) {
    place->value = value;
    return true;
  }
  *expected = found;
  return false;
}

}  // namespace metal

namespace emulation {

// Runs a kernel, whose arguments are pointed to; behind them it wants the numbers of the block and of the lane, and how
// many lanes exchange values. Places of operands, if there are any, are themselves what is pointed to.
template <auto kernel, class... Parameters>
int launch_with_ids(
    void (*of)(Parameters...), unsigned lanes_of_a_warp, unsigned lanes_of_a_block, unsigned blocks, int far,
    void** given) {
  static void* all[sizeof...(Parameters)];
  constexpr size_t buffers = sizeof...(Parameters) - 3;
  static void* places;
  places = far < 0 ? nullptr : given[far];
  for (size_t i = 0; i < buffers; i++) all[i] = (int)i == far ? &places : given[i];
  all[buffers] = &blockIdx.x;
  all[buffers + 1] = &threadIdx.x;
  all[buffers + 2] = &warp;
  return run(
      [] { call((void (*)(Parameters...))kernel, all, std::index_sequence_for<Parameters...>{}); }, lanes_of_a_warp,
      lanes_of_a_block, blocks, 1);
}

}  // namespace emulation

#define kernel
#define device
#define constant const
#define thread
