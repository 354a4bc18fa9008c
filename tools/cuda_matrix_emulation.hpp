// Products of matrix units, each lane with the elements that PTX says: lanes show one another what they have.

namespace emulation {

template <float decode(unsigned)>
float of_halves(unsigned x, unsigned y) {
  return decode(x & 0xffff) * decode(y & 0xffff) + decode(x >> 16) * decode(y >> 16);
}

// Matrix units look at 10 bits behind the point.
inline float of_tf32(unsigned x, unsigned y) {
  return __uint_as_float(x & 0xffffe000u) * __uint_as_float(y & 0xffffe000u);
}

// c[16][8] += a[16][k] · b[k][8] by a warp, of words of which `product` makes the sum of their elements' products.
template <class T, T product(unsigned, unsigned)>
void multiply(T (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  unsigned left[2][8], right[2][8];
  show_words(a, b, left, right);
  for (unsigned i = 0; i < 4; i++) {
    for (unsigned pair = 0; pair < 8; pair++) c[i] += product(left[i / 2][pair], right[i % 2][pair]);
  }
}

}  // namespace emulation

inline void mma_f16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  emulation::multiply<float, emulation::of_halves<decode_f16>>(c, {a0, a1, a2, a3}, {b0, b1});
}

inline void mma_bf16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  emulation::multiply<float, emulation::of_halves<decode_bf16>>(c, {a0, a1, a2, a3}, {b0, b1});
}

inline void mma_tf32(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  emulation::multiply<float, emulation::of_tf32>(c, {a0, a1, a2, a3}, {b0, b1});
}

inline Piece load_matrices(const Piece* row) {
  const unsigned own = threadIdx.x % emulation::warp;
  const emulation::Lane* const lanes_of_warp = &emulation::block[threadIdx.x - own];
  emulation::block[threadIdx.x].given = (unsigned long long)row;
  emulation::wait_at(emulation::of_warp(__LINE__));
  unsigned made[4];
  for (unsigned i = 0; i < 4; i++) made[i] = ((const unsigned*)lanes_of_warp[8 * i + own / 4].given)[own % 4];
  emulation::wait_at(emulation::of_warp(__LINE__));
  return {made[0], made[1], made[2], made[3]};
}

inline Piece load_transposed(const Piece* row) {
  const unsigned own = threadIdx.x % emulation::warp, first = own % 4 * 2, column = own / 4;
  const emulation::Lane* const lanes_of_warp = &emulation::block[threadIdx.x - own];
  emulation::block[threadIdx.x].given = (unsigned long long)row;
  emulation::wait_at(emulation::of_warp(__LINE__));
  unsigned made[4];
  for (unsigned i = 0; i < 4; i++) {
    const unsigned low = ((const unsigned short*)lanes_of_warp[8 * i + first].given)[column];
    made[i] = low | (unsigned)((const unsigned short*)lanes_of_warp[8 * i + first + 1].given)[column] << 16;
  }
  emulation::wait_at(emulation::of_warp(__LINE__));
  return {made[0], made[1], made[2], made[3]};
}


// Kernels of the emulation end before the next one begins.
inline void follow() {}
inline void bring_later(long long, long long) {}

inline long long number_ahead(const long long* place) { return *place; }

template <class T>
Piece piece_ahead(const T* place) { return *(const Piece*)place; }

template <class T>
auto element_ahead(const T* place) { return *place; }

template <class T>
T read_now(const T* place) { return *place; }

inline void put_piece(Piece* place, Piece piece) { *place = piece; }
inline void put_piece(HalfPiece* place, HalfPiece piece) { *place = piece; }

inline void bring_near(const void* place) { (void)*(const volatile char*)place; }
