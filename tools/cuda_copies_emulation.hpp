// Copies that go on beside a lane's other work: done when the lane waits for them and not before, and until then their
// places hold what nobody expects, so that a missing wait or barrier shows.

#define DYNAMIC_SHARED(bytes)                                                                                 \
  alignas(1024) static Piece dynamic_of_cluster[emulation::most_of_cluster][((bytes) + 1023) / 1024 * 64];     \
  emulation::shared_bytes = sizeof dynamic_of_cluster[0];                                                     \
  Piece* const dynamic_shared = dynamic_of_cluster[blockIdx.x % emulation::cluster]

inline void copy_ahead_if(bool there, Piece* place, const void* source) {
  emulation::copy(place, there ? source : nullptr, sizeof *place);
}

inline void copy_ahead(Piece* place, const void* source) {
  copy_ahead_if(true, place, source);
}

inline void copy_elements_ahead(int count, Piece* place, const void* source) {
  emulation::copy(place, source, (count < 8 ? count : 8) * 2);
}

inline void commit_copies() {
  emulation::commit();
}

template <int under_way>
void wait_copies() {
  emulation::await_copies(under_way);
}
