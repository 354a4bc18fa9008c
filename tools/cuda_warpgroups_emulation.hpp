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

template <class T, int tiles>
void hold(T (&)[tiles][4]) {}

namespace emulation {

// The word of a row from a byte on.
inline unsigned word_of(unsigned long long matrix, unsigned row, unsigned byte) {
  const unsigned long long stride = (matrix >> 48) << 4;
  const unsigned long long place = (matrix & 0xffffffffffffull) + row / 8 * stride + row % 8 * 64 + byte;
  return *(const unsigned*)(place ^ (place >> 7 & 3) << 4);
}

template <class T, T product(unsigned, unsigned), int tiles>
void multiply_together(T (&c)[tiles][4], unsigned long long a, unsigned long long b) {
  const unsigned own = threadIdx.x % warp, first_row = threadIdx.x / warp % 4 * 16;
  for (int i = 0; i < 4 * tiles; i++) {
    const unsigned row = first_row + own / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + own % 4 * 2 + i % 2;
    for (unsigned byte = 0; byte < 32; byte += 4) {
      c[i / 4][i % 4] += product(word_of(a, row, byte), word_of(b, column, byte));
    }
  }
}

}  // namespace emulation

template <int tiles>
void warpgroup_mma_f16(float (&c)[tiles][4], unsigned long long a, unsigned long long b) {
  emulation::multiply_together<float, emulation::of_halves<decode_f16>>(c, a, b);
}

template <int tiles>
void warpgroup_mma_bf16(float (&c)[tiles][4], unsigned long long a, unsigned long long b) {
  emulation::multiply_together<float, emulation::of_halves<decode_bf16>>(c, a, b);
}

template <int tiles>
void warpgroup_mma_u8_u8(int (&c)[tiles][4], unsigned long long a, unsigned long long b) {
  emulation::multiply_together<int, emulation::of_bytes<unsigned char, unsigned char>>(c, a, b);
}

template <int tiles>
void warpgroup_mma_u8_i8(int (&c)[tiles][4], unsigned long long a, unsigned long long b) {
  emulation::multiply_together<int, emulation::of_bytes<unsigned char, signed char>>(c, a, b);
}

template <int tiles>
void warpgroup_mma_i8_u8(int (&c)[tiles][4], unsigned long long a, unsigned long long b) {
  emulation::multiply_together<int, emulation::of_bytes<signed char, unsigned char>>(c, a, b);
}

template <int tiles>
void warpgroup_mma_i8_i8(int (&c)[tiles][4], unsigned long long a, unsigned long long b) {
  emulation::multiply_together<int, emulation::of_bytes<signed char, signed char>>(c, a, b);
}

template <int tiles>
void warpgroup_mma_f8e4m3(float (&c)[tiles][4], unsigned long long a, unsigned long long b, int adds) {
  const unsigned own = threadIdx.x % emulation::warp, first_row = threadIdx.x / emulation::warp % 4 * 16;
  for (int i = 0; i < 4 * tiles; i++) {
    const unsigned row = first_row + own / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + own % 4 * 2 + i % 2;
    c[i / 4][i % 4] = emulation::cut_sum(adds ? c[i / 4][i % 4] : 0, 8, [&](unsigned word) {
      return std::make_pair(emulation::word_of(a, row, 4 * word), emulation::word_of(b, column, 4 * word));
    });
  }
}
