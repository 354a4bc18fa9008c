// Products of warpgroups: every other block has them, so that what kernels do without is run, too.

#define has_warpgroups (blockIdx.x % 2 == 0)

// Where a matrix begins, with its stride in the upper bits, which addresses leave free.
inline unsigned long long matrix_at(const Piece* first, int stride) {
  return (unsigned long long)first | (unsigned long long)(stride >> 4) << 48;
}

inline void show_to_warpgroups() {}
inline void begin_products() {}
inline void commit_products() {}

template <int under_way>
void await_products() {}

template <int tiles>
void hold(float (&)[tiles][4]) {}

namespace emulation {

// The two elements of a row from an even number on.
inline unsigned pair_of(unsigned long long matrix, unsigned row, unsigned k) {
  const unsigned long long stride = (matrix >> 48) << 4;
  const unsigned long long place = (matrix & 0xffffffffffffull) + row / 8 * stride + row % 8 * 64 + 2 * k;
  return *(const unsigned*)(place ^ (place >> 7 & 3) << 4);
}

template <float decode(unsigned), int tiles>
void multiply_together(float (&c)[tiles][4], unsigned long long a, unsigned long long b) {
  const unsigned own = threadIdx.x % warp, first_row = threadIdx.x / warp % 4 * 16;
  for (int i = 0; i < 4 * tiles; i++) {
    const unsigned row = first_row + own / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + own % 4 * 2 + i % 2;
    for (unsigned k = 0; k < 16; k += 2) {
      const unsigned x = pair_of(a, row, k), y = pair_of(b, column, k);
      c[i / 4][i % 4] += decode(x & 0xffff) * decode(y & 0xffff) + decode(x >> 16) * decode(y >> 16);
    }
  }
}

}  // namespace emulation

template <int tiles>
void warpgroup_mma_f16(float (&c)[tiles][4], unsigned long long a, unsigned long long b) {
  emulation::multiply_together<decode_f16>(c, a, b);
}

template <int tiles>
void warpgroup_mma_bf16(float (&c)[tiles][4], unsigned long long a, unsigned long long b) {
  emulation::multiply_together<decode_bf16>(c, a, b);
}
