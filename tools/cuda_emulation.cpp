// Runs the lanes of kernels that are compiled with `cuda_emulation.hpp`: coroutines that take turns.

#include "cuda_emulation.hpp"

#include <csetjmp>
#include <csignal>
#include <memory>
#include <ucontext.h>
#include <vector>

emulation::Index blockIdx, threadIdx, blockDim;

// A condition of a graph is known by where it is.
extern "C" void cudaGraphSetConditional(unsigned long long condition, unsigned value) {
  *reinterpret_cast<unsigned*>(condition) = value;
}

namespace emulation {

unsigned warp, cluster;
size_t shared_bytes;
Lane* block;

namespace {

constexpr size_t stack_bytes = 256 << 10;
constexpr size_t piece_bytes = 16;
constexpr int done = 0, in_vain = 1, outside = 2;
constexpr int shown = 1 << 29, taken = shown + 1;  // more than any number of a line

// What a lane copies beside its other work.
struct Copy {
  void* place;
  const void* source;
  int group, bytes;
};

struct Coroutine {
  std::unique_ptr<char[]> stack{new char[stack_bytes]};
  jmp_buf place;         // where it goes on
  bool started = false;  // and has a place
  std::vector<Copy> copies;
  int groups = 0;  // of copies so far
};

// Lanes stay for the blocks that follow, and each begins anew where it has ended.
struct Block {
  std::vector<Lane> lanes;
  std::vector<Coroutine> coroutines;
};

unsigned lanes;
void (*body)();
Coroutine* coroutines;
Block blocks_of_cluster[most_of_cluster];
jmp_buf scheduler;
sigjmp_buf before_a_fault;

void enter() {
  for (;;) {
    body();
    wait_at(ended);
  }
}

void start(Coroutine& coroutine) {
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = coroutine.stack.get();
  context.uc_stack.ss_size = stack_bytes;
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
  coroutine.started = true;
  setcontext(&context);
}

void give_turn(unsigned lane) {
  threadIdx.x = lane;
  if (_setjmp(scheduler)) return;
  if (!coroutines[lane].started) start(coroutines[lane]);
  _longjmp(coroutines[lane].place, 1);
}

// Gives a turn to each of some lanes that waits at a place.
void go_on(int place, bool backwards, unsigned first = 0, unsigned count = lanes) {
  for (unsigned turn = 0; turn < count; turn++) {
    const unsigned lane = first + (backwards ? count - 1 - turn : turn);
    if (block[lane].waits_at == place) give_turn(lane);
  }
}

// Where all lanes from one on wait that have not ended; `pausing` if not all at one place.
int common_place(unsigned first, unsigned count) {
  int place = ended;
  for (unsigned lane = first; lane < first + count; lane++) {
    const int waits = block[lane].waits_at;
    if (waits == ended) continue;
    if (place != ended && waits != place) return pausing;
    place = waits;
  }
  return place;
}

void take(unsigned of_cluster) {
  block = blocks_of_cluster[of_cluster].lanes.data();
  coroutines = blocks_of_cluster[of_cluster].coroutines.data();
}

// Makes all lanes of a block ready. They wait for one another, and a warp goes on alone for as long as its
// lanes wait for one another only, so that a missing wait for other warps shows. Every other block takes its lanes in the
// opposite order, so that what depends on their order shows.
void start_block() {
  for (unsigned lane = 0; lane < lanes; lane++) {
    block[lane].waits_at = pausing;
    block[lane].met = 0;
    coroutines[lane].copies.clear();
    coroutines[lane].groups = 0;
  }
}

// Lets a block go on: `ended`, `of_cluster` where it waits for the cluster, `pausing` where its lanes wait in vain.
int go_on_with_block(unsigned number) {
  blockIdx.x = number;
  if (common_place(0, lanes) == of_cluster) go_on(of_cluster, number % 2);
  for (;;) {
    go_on(pausing, number % 2);
    bool paused = false, together = false;
    for (unsigned lane = 0; lane < lanes; lane++) paused |= block[lane].waits_at == pausing;
    for (unsigned turn = 0; turn < lanes; turn += warp) {
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
bool run_cluster(unsigned first) {
  for (unsigned i = 0; i < cluster; i++) {
    take(i);
    start_block();
  }
  for (;;) {
    int places[most_of_cluster];
    for (unsigned turn = 0; turn < cluster; turn++) {
      const unsigned i = first / cluster % 2 ? cluster - 1 - turn : turn;
      take(i);
      places[i] = go_on_with_block(first + i);
    }
    for (unsigned i = 0; i < cluster; i++) {
      if (places[i] == pausing || places[i] != places[0]) return false;
    }
    if (places[0] == ended) return true;
  }
}

void leave(int) {
  siglongjmp(before_a_fault, 1);
}

}  // namespace

void wait_at(int line) {
  const unsigned own = threadIdx.x;
  block[own].waits_at = line;
  if (!_setjmp(coroutines[own].place)) _longjmp(scheduler, 1);
}

int any_of(int line, bool value) {
  block[threadIdx.x].given = value;
  wait_at(line);
  int found = 0;
  for (unsigned lane = 0; lane < lanes; lane++) found |= block[lane].waits_at != ended && block[lane].given;
  wait_at(line);
  return found;
}

// `in_vain` if lanes of a block wait for one another at different places, `outside` if one reads or writes where no memory
// is, or no multiple of what it reads or writes.
int run(
    void (*of_a_lane)(), unsigned lanes_of_a_warp, unsigned lanes_of_a_block, unsigned blocks, unsigned of_a_cluster) {
  body = of_a_lane;
  warp = lanes_of_a_warp;
  lanes = blockDim.x = lanes_of_a_block;
  cluster = of_a_cluster;
  for (unsigned i = 0; i < cluster; i++) {
    Block& each = blocks_of_cluster[i];
    if (each.lanes.size() < lanes) each.lanes.resize(lanes), each.coroutines.resize(lanes);
  }
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
  for (unsigned i = 0; i < cluster && result != done; i++) {
    for (Coroutine& each : blocks_of_cluster[i].coroutines) each.started = false;
  }
  return result;
}

void copy(void* place, const void* source, int bytes) {
  Coroutine& own = coroutines[threadIdx.x];
  memset(place, 0xff, piece_bytes);  // NaN in every format
  own.copies.push_back({place, source, own.groups, bytes});
}

void commit() {
  coroutines[threadIdx.x].groups++;
}

void await_copies(int under_way) {
  Coroutine& own = coroutines[threadIdx.x];
  std::vector<Copy> left;
  for (const Copy& each : own.copies) {
    if (each.group >= own.groups - under_way) {
      left.push_back(each);
    } else {
      memset(each.place, 0, piece_bytes);
      if (each.source) memcpy(each.place, each.source, each.bytes);
    }
  }
  own.copies = left;
}

void show_words(const unsigned (&a)[4], const unsigned (&b)[2], unsigned (&left)[2][8], unsigned (&right)[2][8]) {
  const unsigned own = threadIdx.x % warp, row = own / 4, column = own % 4 * 2;
  const Lane* const lanes_of_warp = &block[threadIdx.x / warp * warp];
  memcpy(block[threadIdx.x].shown, a, sizeof a);
  memcpy(block[threadIdx.x].shown + 4, b, sizeof b);
  wait_at(of_warp(shown));
  for (unsigned pair = 0; pair < 8; pair++) {
    for (unsigned half = 0; half < 2; half++) {
      left[half][pair] = lanes_of_warp[row * 4 + pair % 4].shown[half + pair / 4 * 2];
      right[half][pair] = lanes_of_warp[(column + half) * 4 + pair % 4].shown[4 + pair / 4];
    }
  }
  wait_at(of_warp(taken));
}

}  // namespace emulation
