// Products and conversions of floats of 8 bits (e4m3), by their instructions or without them.

// The lower two of a word, or the upper two, as floats of 16 bits: exponents have another bias there, so that they are 2^8
// too small.
template <int upper>
__device__ __forceinline__ unsigned halves_of(unsigned word) {
  const unsigned x = upper ? word >> 16 : word & 0xffffu;
  const unsigned bits = (x & 0x7fu) << 7 | (x & 0x80u) << 8 | (x & 0x7f00u) << 15 | (x & 0x8000u) << 16;
  const unsigned nan = ((x & 0x7fu) == 0x7fu ? 0x7e00u : 0u) | ((x & 0x7f00u) == 0x7f00u ? 0x7e000000u : 0u);
  return times_f16(bits, 0x5c005c00u) | nan;
}

// c[16][8] += a[16][32] · b[32][8]. Of 16 bits, k is permuted, alike on both sides.
__device__ __forceinline__ void mma_f8e4m3(
    float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  if (has_float8) {
    mma_e4m3(c, a0, a1, a2, a3, b0, b1);
    return;
  }
  mma_f16(c, halves_of<0>(a0), halves_of<0>(a1), halves_of<1>(a0), halves_of<1>(a1), halves_of<0>(b0), halves_of<1>(b0));
  mma_f16(c, halves_of<0>(a2), halves_of<0>(a3), halves_of<1>(a2), halves_of<1>(a3), halves_of<0>(b1), halves_of<1>(b1));
}

// The same of 64 elements along k: operands of two instructions of the left side, and both of the right one. What matrix
// units add up is cut off, so they start anew each time, and f32 adds that to the sum.
__device__ __forceinline__ void add_products(float (&c)[4], const Piece& first, const Piece& second, const Piece& right) {
  float part[4] = {};
  mma_f8e4m3(part, first.x, first.y, first.z, first.w, right.x, right.y);
  mma_f8e4m3(part, second.x, second.y, second.z, second.w, right.z, right.w);
#pragma unroll
  for (int i = 0; i < 4; i++) c[i] += part[i];
}

// What rounds to no finite number, where instructions make the greatest one, as bits that make NaN of that.
__device__ __forceinline__ unsigned beyond_f8e4m3(float x) { return fabsf(x) <= 464.0f ? 0u : 0x7fu; }

// Four floats as the bytes of a word, the first one lowest, rounded to nearest even; NaN for those beyond.
__device__ __forceinline__ unsigned four_f8e4m3(float a, float b, float c, float d) {
  if (has_float8) {
    const unsigned low = beyond_f8e4m3(a) | beyond_f8e4m3(b) << 8, high = beyond_f8e4m3(c) | beyond_f8e4m3(d) << 8;
    return pair_e4m3(a, b) | low | (pair_e4m3(c, d) | high) << 16;
  }
  return four_bytes(encode_f8e4m3(a), encode_f8e4m3(b), encode_f8e4m3(c), encode_f8e4m3(d));
}
