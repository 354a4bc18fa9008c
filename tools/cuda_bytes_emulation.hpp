// Products of bytes by matrix units.

namespace emulation {

template <class A, class B>
int of_bytes(unsigned x, unsigned y) {
  unsigned sum = 0;
  for (unsigned i = 0; i < 4; i++) sum += (unsigned)((int)(A)(x >> 8 * i) * (int)(B)(y >> 8 * i));
  return (int)sum;
}

}  // namespace emulation

inline void mma_u8_i8(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  emulation::multiply<int, emulation::of_bytes<unsigned char, signed char>>(c, {a0, a1, a2, a3}, {b0, b1});
}

inline void mma_i8_i8(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  emulation::multiply<int, emulation::of_bytes<signed char, signed char>>(c, {a0, a1, a2, a3}, {b0, b1});
}

inline void mma_u8_u8(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  emulation::multiply<int, emulation::of_bytes<unsigned char, unsigned char>>(c, {a0, a1, a2, a3}, {b0, b1});
}

inline void mma_i8_u8(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  emulation::multiply<int, emulation::of_bytes<signed char, unsigned char>>(c, {a0, a1, a2, a3}, {b0, b1});
}
