// Blocks of a cluster, whose workgroup memories lie one behind the other.

inline void cluster_barrier() {
  emulation::wait_at(emulation::of_cluster);
}

inline int4 operator+(int4 a, int4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

template <int blocks, class T>
T sum_of_cluster(const T* place) {
  const char* const first = (const char*)place - blockIdx.x % emulation::cluster * emulation::shared_bytes;
  T sum = *(const T*)first;
  for (int i = 1; i < blocks; i++) sum = sum + *(const T*)(first + i * emulation::shared_bytes);
  return sum;
}
