// Products of f32 by matrix units that take floats of 10 bits behind the point: each operand is the sum of two of them, and
// of the four products the least one is left out. Source: Ootomo and Yokota 2022, arXiv:2203.03341.

// Four floats as such sums. `finite` is `big`, or 0 where no float is the number's `small` part.
struct Parts {
  Piece big, finite, small;
};

// Products leave out the lower 13 bits: `big` is rounded, and the rest cut off. NaN stays in `small`; of an infinity, and
// of what rounds to one, NaN comes.
__device__ __forceinline__ void split(unsigned bits, unsigned& big, unsigned& finite, unsigned& small) {
  big = finite = (bits + 0x1000u) & 0xffffe000u;
  small = __float_as_uint(__uint_as_float(bits) - __uint_as_float(big));
}

// The same of any number.
__device__ __forceinline__ void split_any(unsigned bits, unsigned& big, unsigned& finite, unsigned& small) {
  const float x = __uint_as_float(bits);
  if (!(fabsf(x) < __uint_as_float(0x7f7ff000u))) {
    const bool is_finite = fabsf(x) < __uint_as_float(0x7f800000u);
    big = x != x ? 0x7fffe000u : bits & 0xffffe000u;
    finite = is_finite ? big : 0u;
    small = is_finite ? __float_as_uint(x - __uint_as_float(big)) : 0u;
  } else {
    split(bits, big, finite, small);
  }
}

// With `any`, numbers that are not finite, and those that would round to infinity, make what f32 makes of them.
template <bool any>
__device__ __forceinline__ Parts in_parts(const Piece& x) {
  Parts made;
  split(x.x, made.big.x, made.finite.x, made.small.x);
  split(x.y, made.big.y, made.finite.y, made.small.y);
  split(x.z, made.big.z, made.finite.z, made.small.z);
  split(x.w, made.big.w, made.finite.w, made.small.w);
  const float first = fmaxf(fabsf(__uint_as_float(x.x)), fabsf(__uint_as_float(x.y)));
  const float second = fmaxf(fabsf(__uint_as_float(x.z)), fabsf(__uint_as_float(x.w)));
  if (any && fmaxf(first, second) >= __uint_as_float(0x7f7ff000u)) {  // NaN alone needs no other way
    split_any(x.x, made.big.x, made.finite.x, made.small.x);
    split_any(x.y, made.big.y, made.finite.y, made.small.y);
    split_any(x.z, made.big.z, made.finite.z, made.small.z);
    split_any(x.w, made.big.w, made.finite.w, made.small.w);
  }
  return made;
}

// Of four neighbours of two rows: the first two of both, or the last two.
template <int half>
__device__ __forceinline__ Piece woven(const Piece& high, const Piece& low) {
  return half ? Piece{high.z, low.z, high.w, low.w} : Piece{high.x, low.x, high.y, low.y};
}

template <int half>
__device__ __forceinline__ Parts woven(const Parts& high, const Parts& low) {
  return {woven<half>(high.big, low.big), woven<half>(high.finite, low.finite), woven<half>(high.small, low.small)};
}

// Each row tile by its column tile: c[16][8] += a[16][8] · b[16][8], one half of 16 along k after the other. Products of
// different sums take turns, as one of the same sum waits for the one before.
template <Piece Parts::*left, Piece Parts::*right, int rows, int columns, class Column>
__device__ __forceinline__ void add_turns(
    float (&c)[rows][columns][4], const Parts (&first)[rows], const Parts (&second)[rows], const Column& column) {
#pragma unroll
  for (int i = 0; i < rows; i++)
#pragma unroll
    for (int j = 0; j < columns; j++) {
      const Piece &a = first[i].*left, &b = column(i, j).*right;
      mma_tf32(c[i][j], a.x, a.y, a.z, a.w, b.x, b.y);
    }
#pragma unroll
  for (int i = 0; i < rows; i++)
#pragma unroll
    for (int j = 0; j < columns; j++) {
      const Piece &a = second[i].*left, &b = column(i, j).*right;
      mma_tf32(c[i][j], a.x, a.y, a.z, a.w, b.z, b.w);
    }
}

template <int rows, int columns, class Column>
__device__ __forceinline__ void add_products_of_parts(
    float (&c)[rows][columns][4], const Parts (&first)[rows], const Parts (&second)[rows], const Column& column) {
  add_turns<&Parts::small, &Parts::finite>(c, first, second, column);
  add_turns<&Parts::finite, &Parts::small>(c, first, second, column);
  add_turns<&Parts::big, &Parts::big>(c, first, second, column);
}

// Of all row tiles and some column tiles from `at` on: c[i][at + j] += a[i][16][16] · b[j][16][8], the left side in halves
// along k. What matrix units add up is cut to f32, not rounded: they start anew each time.
template <int rows, int all, int columns>
__device__ __forceinline__ void mma_f32(
    float (&c)[rows][all][4], int at, const Parts (&first)[rows], const Parts (&second)[rows],
    const Parts (&right)[columns]) {
  float sums[rows][columns][4] = {};
  add_products_of_parts(sums, first, second, [&](int, int j) -> const Parts& { return right[j]; });
#pragma unroll
  for (int i = 0; i < rows; i++)
#pragma unroll
    for (int j = 0; j < columns; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) c[i][at + j][k] += sums[i][j][k];
}

template <int all, int columns>
__device__ __forceinline__ void mma_f32(
    float (&c)[all][4], int at, const Parts (&first)[1], const Parts (&second)[1], const Parts (&right)[columns]) {
  float sums[1][columns][4] = {};
  add_products_of_parts(sums, first, second, [&](int, int j) -> const Parts& { return right[j]; });
#pragma unroll
  for (int j = 0; j < columns; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) c[at + j][k] += sums[0][j][k];
}

// The same of one row tile and all column tiles, whose sum comes in several pieces along k.
template <int pieces, int columns>
__device__ __forceinline__ void mma_f32_along(
    float (&c)[columns][4], const Parts (&first)[pieces], const Parts (&second)[pieces],
    const Parts (&right)[pieces][columns]) {
  float sums[pieces][columns][4] = {};
  add_products_of_parts(sums, first, second, [&](int i, int j) -> const Parts& { return right[i][j]; });
#pragma unroll
  for (int i = 0; i < pieces; i++)
#pragma unroll
    for (int j = 0; j < columns; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) c[j][k] += sums[i][j][k];
}

// Whether a sum is to be made again, as f32 makes it: an operand, or its rounding, may have been infinite.
__device__ __forceinline__ bool is_lost(float sum) {
  return !(fabsf(sum) < __uint_as_float(0x7f800000u));
}
