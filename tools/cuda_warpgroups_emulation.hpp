// Products of warpgroups: every other block has them, so that what kernels do without is run, too.

#define has_warpgroups (blockIdx.x % 2 == 0)

// Where a matrix begins, with its stride in the upper bits, which addresses leave free, and the last one for 512 bytes
// between neighbouring 64 bytes of its rows.
inline unsigned long long matrix_at(const Piece* first, int stride, int across = 16) {
  return (unsigned long long)first | (unsigned long long)(stride >> 4) << 48 | (unsigned long long)(across == 512) << 63;
}

// The same of rows of 128 bytes, which the bit before that tells.
inline unsigned long long lines_at(const Piece* first) {
  return (unsigned long long)first | 1ull << 62;
}

inline unsigned long long matrix_behind(unsigned long long matrix, int pieces) {
  return matrix + pieces * (long long)sizeof(Piece);
}

inline void show_to_warpgroups() {}

inline void group_barrier(int group) {
  const unsigned lanes = 128, first = group * lanes, met = ++emulation::block[threadIdx.x].met;
  for (unsigned lane = first; lane < first + lanes; lane++) {
    const emulation::Lane& other = emulation::block[lane];
    emulation::wait_while([&] { return other.waits_at != emulation::ended && other.met < met; });
  }
}

inline void begin_products() {}
inline void commit_products() {}

template <int under_way>
void await_products() {}

template <int registers>
void leave_registers() {}

template <int registers>
void take_registers() {}

template <class T, int tiles>
void hold(T (&)[tiles][4]) {}

template <int words>
void hold(unsigned (&)[words]) {}

namespace emulation {

// The word of a row from a byte on.
inline unsigned word_of(unsigned long long matrix, unsigned row, unsigned byte) {
  const unsigned long long stride = (matrix >> 48 & 0x3fff) << 4, first = matrix & 0xffffffffffffull;
  if (matrix >> 62 & 1) {
    const unsigned long long place = first + row * 128 + byte;
    return *(const unsigned*)(place ^ (place >> 7 & 7) << 4);
  }
  const unsigned long long place = first + row / 8 * stride + row % 8 * 64 + byte;
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

namespace emulation {

// The same with rows that lanes have, and a right side of which 16 rows along k lie one behind the other.
template <float decode(unsigned), int tiles>
void multiply_steps(float (&c)[tiles][4], const unsigned (&a)[4], unsigned long long b) {
  const unsigned own = threadIdx.x % warp;
  const unsigned long long stride = (b >> 48 & 0x7fff) << 4, first = b & 0xffffffffffffull;
  for (unsigned mask = 0; mask < 4; mask++) {
    for (int word = 0; word < 4; word++) {
      const unsigned pair = exchanged(__LINE__, a[word], mask);
      for (unsigned half = 0; half < 2; half++) {
        const unsigned k = (own ^ mask) % 4 * 2 + word / 2 * 8 + half;
        for (int i = word % 2 * 2; i < 4 * tiles; i += i % 2 ? 3 : 1) {
          const unsigned column = i / 4 * 8 + own % 4 * 2 + i % 2;
          const unsigned long long across = b >> 63 ? column / 32 * 512 : 0;
          const unsigned long long place = first + k / 8 * stride + across + k % 8 * 64 + column % 32 * 2;
          const unsigned right = *(const unsigned short*)(place ^ (place >> 7 & 3) << 4);
          c[i / 4][i % 4] += decode(half ? pair >> 16 : pair & 0xffff) * decode(right);
        }
      }
    }
  }
}

}  // namespace emulation

template <int tiles>
void warpgroup_steps_f16(
    float (&c)[tiles][4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long b) {
  emulation::multiply_steps<decode_f16>(c, {a0, a1, a2, a3}, b);
}

template <int tiles>
void warpgroup_steps_bf16(
    float (&c)[tiles][4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long b) {
  emulation::multiply_steps<decode_bf16>(c, {a0, a1, a2, a3}, b);
}

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
