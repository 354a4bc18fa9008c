// Products of matrix units, each lane with the elements that PTX says: lanes show one another what they have.

namespace emulation {

template <class T>
T of_lane(int line, T value, unsigned source) {
  static_assert(sizeof(T) <= sizeof(block[0].given));
  memcpy(&block[threadIdx.x].given, &value, sizeof value);
  wait_at(of_warp(line));
  T other;
  memcpy(&other, &block[threadIdx.x / warp * warp + source].given, sizeof other);
  wait_at(of_warp(line));
  return other;
}

template <float decode(unsigned)>
void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const unsigned own = threadIdx.x % warp, row = own / 4, column = own % 4 * 2;
  unsigned left[2][8], right[2][8];
  for (unsigned pair = 0; pair < 8; pair++) {
    for (unsigned half = 0; half < 2; half++) {
      // every lane shows all that it has, as lanes want different parts
      unsigned shown[4];
      for (int i = 0; i < 4; i++) shown[i] = of_lane(__LINE__, a[i], row * 4 + pair % 4);
      left[half][pair] = shown[half + pair / 4 * 2];
      for (int i = 0; i < 2; i++) shown[i] = of_lane(__LINE__, b[i], (column + half) * 4 + pair % 4);
      right[half][pair] = shown[pair / 4];
    }
  }
  for (unsigned i = 0; i < 4; i++) {
    for (unsigned pair = 0; pair < 8; pair++) {
      const unsigned x = left[i / 2][pair], y = right[i % 2][pair];
      c[i] += decode(x & 0xffff) * decode(y & 0xffff) + decode(x >> 16) * decode(y >> 16);
    }
  }
}

}  // namespace emulation

inline void mma_f16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  emulation::multiply<decode_f16>(c, {a0, a1, a2, a3}, {b0, b1});
}

inline void mma_bf16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  emulation::multiply<decode_bf16>(c, {a0, a1, a2, a3}, {b0, b1});
}

// Kernels of the emulation end before the next one begins.
inline void follow() {}

template <class T>
Piece piece_ahead(const T* place) { return *(const Piece*)place; }

inline void bring_near(const void* place) { (void)*(const volatile char*)place; }
