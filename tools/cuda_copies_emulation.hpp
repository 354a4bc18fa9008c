// Copies that go on beside a lane's other work: done when the lane waits for them and not before, and until then their
// places hold what nobody expects, so that a missing wait or barrier shows.

#define DYNAMIC_SHARED(bytes)                                                                                 \
  alignas(1024) static Piece dynamic_of_cluster[emulation::most_of_cluster][((bytes) + 1023) / 1024 * 64];     \
  emulation::shared_bytes = sizeof dynamic_of_cluster[0];                                                     \
  Piece* const dynamic_shared = dynamic_of_cluster[blockIdx.x % emulation::cluster]

inline void copy_ahead_if(bool there, Piece* place, const void* source) {
  emulation::Lane& own = emulation::block[threadIdx.x];
  memset(place, 0xff, sizeof *place);  // NaN in every format
  own.copies.push_back({place, there ? source : nullptr, own.groups});
}

inline void copy_ahead(Piece* place, const void* source) {
  copy_ahead_if(true, place, source);
}

inline void copy_elements_ahead(int count, Piece* place, const void* source) {
  emulation::Lane& own = emulation::block[threadIdx.x];
  memset(place, 0xff, sizeof *place);
  own.copies.push_back({place, source, own.groups, (count < 8 ? count : 8) * 2});
}

inline void commit_copies() {
  emulation::block[threadIdx.x].groups++;
}

template <int under_way>
void wait_copies() {
  emulation::Lane& own = emulation::block[threadIdx.x];
  std::vector<emulation::Copy> left;
  for (const emulation::Copy& copy : own.copies) {
    if (copy.group >= own.groups - under_way) {
      left.push_back(copy);
    } else {
      memset(copy.place, 0, sizeof(Piece));
      if (copy.source) memcpy(copy.place, copy.source, copy.bytes);
    }
  }
  own.copies = left;
}
