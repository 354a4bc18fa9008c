// What kernels of all languages need: a block's lanes are coroutines that take turns at barriers. What runs them is in
// `cuda_emulation.cpp`, compiled once for all kernels.

#include <cstddef>
// C++17's Bessel functions and their like, whose templates take twice as long as most kernels, with each of them
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

namespace emulation {

constexpr int ended = 0, pausing = -1;

// What lanes show one another.
struct Lane {
  int waits_at = ended;  // the line of a barrier; `pausing` where it waits for nobody
  unsigned long long given;
  unsigned shown[6], met;
};

struct Index {
  unsigned x;
};

constexpr int of_cluster = 1 << 30;  // where lanes wait for other blocks of their cluster
constexpr unsigned most_of_cluster = 8;

extern unsigned warp;  // lanes of one
extern unsigned cluster;
extern size_t shared_bytes;  // of a block, in the memory of all of a cluster
extern Lane* block;

void wait_at(int line);

// Whether any lane of the block says so.
int any_of(int line, bool value);

// Runs a block's lanes for all blocks.
int run(void (*body)(), unsigned lanes_of_a_warp, unsigned lanes_of_a_block, unsigned blocks, unsigned of_a_cluster);

// A copy of some bytes that is done when the lane waits for it; of nowhere, of zeros.
void copy(void* place, const void* source, int bytes);
void commit();
void await_copies(int under_way);

// What of both sides of a product meets in a lane: words of two rows and of two columns.
void show_words(const unsigned (&a)[4], const unsigned (&b)[2], unsigned (&left)[2][8], unsigned (&right)[2][8]);

}  // namespace emulation

extern emulation::Index blockIdx, threadIdx, blockDim;

namespace emulation {

// Where lanes wait for the others of their warp at a line.
inline int of_warp(int line) {
  return pausing - line;
}

constexpr int most_turns = 100000, alone = 1 << 28;

// Others take turns meanwhile, for as long as any of them has something to do.
template <class Condition>
void wait_while(Condition condition) {
  for (int turns = 0; condition(); turns++) {
    if (turns == most_turns) wait_at(alone + (int)threadIdx.x);  // in vain, as nobody else waits there
    wait_at(pausing);
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

template <class... Parameters, size_t... numbers>
void call(void (*kernel)(Parameters...), void** arguments, std::index_sequence<numbers...>) {
  kernel(*(std::remove_const_t<std::remove_reference_t<Parameters>>*)arguments[numbers]...);
}

// Runs a kernel, whose arguments are pointed to.
template <auto kernel, class... Parameters>
int launch(
    void (*)(Parameters...), unsigned lanes_of_a_warp, unsigned lanes_of_a_block, unsigned blocks, unsigned of_a_cluster,
    void** given) {
  static void** arguments;
  arguments = given;
  return run(
      [] { call(kernel, arguments, std::index_sequence_for<Parameters...>{}); }, lanes_of_a_warp, lanes_of_a_block, blocks,
      of_a_cluster);
}

template <class To, class From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace emulation
