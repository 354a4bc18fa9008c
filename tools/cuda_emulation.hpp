// What CUDA C++ has beyond C++17, as far as kernels use it: a block's lanes are coroutines that take turns at barriers.
// EMULATED_WARP of them are a warp.

#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(lanes)
#define __grid_constant__
#define __cluster_dims__(x, y, z)

namespace emulation {

constexpr unsigned warp = EMULATED_WARP;
inline unsigned lanes;
constexpr size_t stack_bytes = 256 << 10;

constexpr int ended = 0, pausing = -1;

// What a lane copies beside its other work: from nowhere, zeros.
struct Copy {
  void* place;
  const void* source;
  int group;
  int bytes = 16;
};

struct Lane {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(stack_bytes);
  int waits_at = ended;  // the line of a barrier; `pausing` where it waits for nobody
  unsigned long long given;
  unsigned shown[6];
  std::vector<Copy> copies;
  int groups = 0;  // of copies so far
};

struct Index {
  unsigned x;
};

constexpr int of_cluster = 1 << 30;  // where lanes wait for other blocks of their cluster
constexpr unsigned most_of_cluster = 8;

inline unsigned cluster;
inline size_t shared_bytes;  // of a block, in the memory of all of a cluster
inline ucontext_t scheduler;
inline std::vector<Lane> block;
inline void (*body)();

}  // namespace emulation

inline emulation::Index blockIdx, threadIdx;

namespace emulation {

inline void wait_at(int line) {
  Lane& own = block[threadIdx.x];
  own.waits_at = line;
  swapcontext(&own.context, &scheduler);
}

inline void enter() {
  body();
  wait_at(ended);
}

// Where lanes wait for the others of their warp at a line.
inline int of_warp(int line) {
  return pausing - line;
}

// Gives a turn to each of some lanes that waits at a place.
inline void go_on(int place, bool backwards, unsigned first = 0, unsigned count = lanes) {
  for (unsigned turn = 0; turn < count; turn++) {
    threadIdx.x = first + (backwards ? count - 1 - turn : turn);
    if (block[threadIdx.x].waits_at == place) swapcontext(&scheduler, &block[threadIdx.x].context);
  }
}

// Where all lanes from one on wait that have not ended; `pausing` if not all at one place.
inline int common_place(unsigned first, unsigned count) {
  int place = ended;
  for (unsigned lane = first; lane < first + count; lane++) {
    const int waits = block[lane].waits_at;
    if (waits == ended) continue;
    if (place != ended && waits != place) return pausing;
    place = waits;
  }
  return place;
}

// Makes all lanes of a block ready. They wait for one another, and a warp goes on alone for as long as its
// lanes wait for one another only, so that a missing wait for other warps shows. Every other block takes its lanes in the
// opposite order, so that what depends on their order shows.
inline void start_block() {
  for (Lane& lane : block) {
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.data();
    lane.context.uc_stack.ss_size = lane.stack.size();
    lane.context.uc_link = nullptr;
    lane.waits_at = pausing;
    lane.copies.clear();
    lane.groups = 0;
    makecontext(&lane.context, enter, 0);
  }
}

// Lets a block go on: `ended`, `of_cluster` where it waits for the cluster, `pausing` where its lanes wait in vain.
inline int go_on_with_block(unsigned number) {
  blockIdx.x = number;
  if (common_place(0, lanes) == of_cluster) go_on(of_cluster, number % 2);
  for (;;) {
    go_on(pausing, number % 2);
    bool paused = false, together = false;
    for (const Lane& lane : block) paused |= lane.waits_at == pausing;
    for (unsigned turn = 0; turn < lanes && !paused; turn += warp) {
      const unsigned first = number % 2 ? lanes - warp - turn : turn;
      for (int place; (place = common_place(first, warp)) < pausing;) {
        go_on(place, number % 2, first, warp);
        together = true;
      }
    }
    if (paused || together) continue;
    const int place = common_place(0, lanes);
    if (place == ended || place == of_cluster) return place;
    if (place < ended) return pausing;
    go_on(place, number % 2);
  }
}

// Runs the blocks of a cluster in turns, from one wait for all of them to the next; every other cluster in the opposite
// order.
inline bool run_cluster(unsigned first) {
  static std::vector<Lane> blocks[most_of_cluster];
  for (unsigned i = 0; i < cluster; i++) {
    blocks[i].resize(lanes);
    block.swap(blocks[i]);
    start_block();
    block.swap(blocks[i]);
  }
  for (;;) {
    int places[most_of_cluster];
    for (unsigned turn = 0; turn < cluster; turn++) {
      const unsigned i = first / cluster % 2 ? cluster - 1 - turn : turn;
      block.swap(blocks[i]);
      places[i] = go_on_with_block(first + i);
      block.swap(blocks[i]);
    }
    for (unsigned i = 0; i < cluster; i++) {
      if (places[i] == pausing || places[i] != places[0]) return false;
    }
    if (places[0] == ended) return true;
  }
}

template <class T>
T exchanged(int line, T value, unsigned mask) {
  static_assert(sizeof(T) <= sizeof(block[0].given));
  const unsigned own = threadIdx.x;
  memcpy(&block[own].given, &value, sizeof value);
  wait_at(of_warp(line));
  T other;
  memcpy(&other, &block[own / warp * warp + (own ^ mask) % warp].given, sizeof other);
  wait_at(of_warp(line));
  return other;
}

// A bit for each lane of the warp that says so.
inline unsigned bits_of(int line, bool value) {
  const unsigned own = threadIdx.x, first = own / warp * warp;
  block[own].given = value;
  wait_at(of_warp(line));
  unsigned bits = 0;
  for (unsigned lane = 0; lane < warp; lane++) bits |= (unsigned)(block[first + lane].given & 1) << lane;
  wait_at(of_warp(line));
  return bits;
}

// Whether any lane of the block says so.
inline int any_of(int line, bool value) {
  block[threadIdx.x].given = value;
  wait_at(line);
  int found = 0;
  for (const Lane& lane : block) found |= lane.waits_at != ended && lane.given;
  wait_at(line);
  return found;
}

template <class... Parameters, size_t... numbers>
void call(void (*kernel)(Parameters...), void** arguments, std::index_sequence<numbers...>) {
  kernel(*(std::remove_const_t<Parameters>*)arguments[numbers]...);
}

constexpr int done = 0, in_vain = 1, outside = 2;

inline sigjmp_buf before_a_fault;

inline void leave(int) {
  siglongjmp(before_a_fault, 1);
}

// Runs a kernel, whose arguments are pointed to: `in_vain` if lanes of a block wait for one another at different places,
// `outside` if one reads or writes where no memory is, or no multiple of what it reads or writes.
template <auto kernel, class... Parameters>
int launch(void (*)(Parameters...), unsigned lanes_of_a_block, unsigned blocks, unsigned of_a_cluster, void** given) {
  cluster = of_a_cluster;
  lanes = lanes_of_a_block;
  block.resize(lanes);
  static void** arguments;
  arguments = given;
  body = [] { call(kernel, arguments, std::index_sequence_for<Parameters...>{}); };
  struct sigaction own = {}, others[2];
  own.sa_handler = leave;
  sigaction(SIGSEGV, &own, &others[0]);
  sigaction(SIGILL, &own, &others[1]);
  volatile int result = done;
  if (sigsetjmp(before_a_fault, 1)) {
    result = outside;
  } else {
    for (unsigned number = 0; number < blocks && result == done; number += cluster) {
      if (!run_cluster(number)) result = in_vain;
    }
  }
  sigaction(SIGSEGV, &others[0], nullptr);
  sigaction(SIGILL, &others[1], nullptr);
  return result;
}

template <class To, class From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace emulation

#define __syncthreads() emulation::wait_at(__LINE__)
#define __syncthreads_or(value) emulation::any_of(__LINE__, value)
#define __ballot_sync(all, value) emulation::bits_of(__LINE__, value)
#define __shfl_xor_sync(all, value, mask) emulation::exchanged(__LINE__, value, mask)

struct alignas(16) float4 {
  float x, y, z, w;
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
