// Counters of arrivals: how many are expected, how many are missing, the parity of the phase, and bytes that are missing, 16
// bits each, but for bytes, which have the rest.

struct TensorMap {
  unsigned long long first;
  unsigned rank, itemsize, extents[5], strides[5], box[5], rest[13];
};

namespace emulation {

struct Counter {
  unsigned short expected, missing;
  unsigned bytes : 31, parity : 1;
};

inline Counter& counter_at(unsigned long long* counter) {
  static_assert(sizeof(Counter) == sizeof *counter);
  return *(Counter*)counter;
}

inline void end_phase(Counter& counter) {
  if (counter.missing || counter.bytes) return;
  counter.missing = counter.expected;
  counter.parity ^= 1;
}

// A tile is there at once, in rows of 128 bytes.
inline void copy_tile(const TensorMap& map, Piece* place, unsigned long long* counter, const int (&at)[5]) {
  unsigned elements = 1;
  for (unsigned axis = 0; axis < map.rank; axis++) elements *= map.box[axis];
  for (unsigned element = 0; element < elements; element++) {
    bool there = true;
    unsigned long long source = map.first, rest = element;
    for (unsigned axis = 0; axis < map.rank; axis++) {
      const long long position = at[axis] + (long long)(rest % map.box[axis]);
      rest /= map.box[axis];
      there &= position >= 0 && position < map.extents[axis];
      source += position * map.strides[axis];
    }
    unsigned long long to = (unsigned long long)place + element * map.itemsize;
    to ^= (to >> 7 & 7) << 4;
    if (there) {
      memcpy((void*)to, (const void*)source, map.itemsize);
    } else {
      memset((void*)to, 0, map.itemsize);
    }
  }
  counter_at(counter).bytes -= elements * map.itemsize;
  end_phase(counter_at(counter));
}

}  // namespace emulation

inline void count_arrivals(unsigned long long* counter, int arrivals) {
  emulation::counter_at(counter) = {(unsigned short)arrivals, (unsigned short)arrivals, 0, 0};
}

inline void arrive_with_bytes(unsigned long long* counter, int bytes) {
  emulation::Counter& own = emulation::counter_at(counter);
  own.bytes += bytes;
  own.missing--;
  emulation::end_phase(own);
}

inline void arrive(unsigned long long* counter) {
  arrive_with_bytes(counter, 0);
}

inline void arrive_with_copies(unsigned long long* counter) {
  emulation::commit();
  emulation::await_copies(0);
  arrive(counter);
}

template <class... Places>
void bring_tile(const TensorMap& map, Piece* place, unsigned long long* counter, Places... at) {
  emulation::copy_tile(map, place, counter, {at...});
}

inline void await_phase(unsigned long long* counter, int parity) {
  emulation::wait_while([&] { return emulation::counter_at(counter).parity == (unsigned)parity; });
}
