// Blocks of a cluster, whose workgroup memories lie one behind the other.

inline void cluster_barrier() {
  emulation::wait_at(emulation::of_cluster);
}

inline void leave_cluster() {
  emulation::wait_at(emulation::of_cluster);
}

inline int4 operator+(int4 a, int4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

inline void expect_gifts(unsigned long long*, unsigned) {}

inline void meet_cluster() {}

inline void await_gifts(unsigned long long*) {
  cluster_barrier();
}

inline void give_block(unsigned long long*, float* place, unsigned block, float value) {
  char* const first = (char*)place - blockIdx.x % emulation::cluster * emulation::shared_bytes;
  *(float*)(first + block * emulation::shared_bytes) = value;
}

template <int blocks, class T>
T sum_of_cluster(const T* place) {
  const char* const first = (const char*)place - blockIdx.x % emulation::cluster * emulation::shared_bytes;
  T sum = *(const T*)first;
  for (int i = 1; i < blocks; i++) sum = sum + *(const T*)(first + i * emulation::shared_bytes);
  return sum;
}
