// Products of f32 by matrix units that take floats of 10 bits behind the point: each operand is the sum of two of them, and
// of the four products the least one is left out. Source: Ootomo and Yokota 2022, arXiv:2203.03341.

// Four floats as such sums. `finite` is `big`, or 0 where no float is the number's `small` part.
struct Parts {
  Piece big, finite, small;
};

template <bool whole>
__device__ __forceinline__ void split(unsigned bits, unsigned& big, unsigned& finite, unsigned& small) {
  const float x = __uint_as_float(bits);
  big = encode_tf32(x) & 0xffffe000u;
  if (whole) {
    const float infinity = __uint_as_float(0x7f800000u);
    const bool is_finite = fabsf(x) < infinity, is_huge = is_finite && fabsf(__uint_as_float(big)) == infinity;
    if (is_huge) big = bits & 0xffffe000u;
    const float rest = is_finite ? x - __uint_as_float(big) : 0.0f;
    finite = is_finite ? big : 0u;
    small = is_huge ? __float_as_uint(rest) : encode_tf32(rest);  // rounded, the sum of both would be infinite
  } else {
    finite = big;
    small = encode_tf32(x - __uint_as_float(big));
  }
}

// With `whole`, numbers that are not finite, or that would round to infinity, make what f32 makes of them; else NaN or
// infinity comes of them.
template <bool whole>
__device__ __forceinline__ Parts in_parts(const Piece& x) {
  Parts made;
  split<whole>(x.x, made.big.x, made.finite.x, made.small.x);
  split<whole>(x.y, made.big.y, made.finite.y, made.small.y);
  split<whole>(x.z, made.big.z, made.finite.z, made.small.z);
  split<whole>(x.w, made.big.w, made.finite.w, made.small.w);
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

// c[16][8] += a[16][16] · b[16][8], the left side in halves along k. What matrix units add up is cut to f32, not rounded:
// they start anew each time.
__device__ __forceinline__ void mma_f32(float (&c)[4], const Parts& first, const Parts& second, const Parts& right) {
  float sum[4] = {};
  const Piece &a = first.small, &b = second.small, &d = first.finite, &e = second.finite, &f = first.big, &g = second.big;
  mma_tf32(sum, a.x, a.y, a.z, a.w, right.finite.x, right.finite.y);
  mma_tf32(sum, b.x, b.y, b.z, b.w, right.finite.z, right.finite.w);
  mma_tf32(sum, d.x, d.y, d.z, d.w, right.small.x, right.small.y);
  mma_tf32(sum, e.x, e.y, e.z, e.w, right.small.z, right.small.w);
  mma_tf32(sum, f.x, f.y, f.z, f.w, right.big.x, right.big.y);
  mma_tf32(sum, g.x, g.y, g.z, g.w, right.big.z, right.big.w);
  for (int i = 0; i < 4; i++) c[i] += sum[i];
}

// Whether a sum is to be made again, as f32 makes it: an operand, or its rounding, may have been infinite.
__device__ __forceinline__ bool is_lost(float sum) {
  return !(fabsf(sum) < __uint_as_float(0x7f800000u));
}
