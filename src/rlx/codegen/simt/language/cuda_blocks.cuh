// Elements of few bits, several in a word, as the floats that they stand for: scale · (q - zero), or scale · q + zero.

// Elements number i of the lower and of the upper half of a word: the low bits of two numbers of 16.
template <int bits>
__device__ __forceinline__ unsigned halves_at(unsigned word, int i) {
  return word >> bits * i & ((1u << bits) - 1) * 0x10001u;
}

// A number of 16 bits twice.
__device__ __forceinline__ unsigned twice(unsigned number) { return number * 0x10001u; }

// Pairs of an element of the lower half of a word and its counterpart in the upper one, exact up to the product with the
// scale: 1024 + q is what f16 has with the low bits q, and `zero` is 1024 + the zero point, twice.
template <int bits>
__device__ __forceinline__ void unpack_f16(unsigned (&made)[16 / bits], unsigned word, unsigned zero, unsigned step) {
#pragma unroll
  for (int i = 0; i < 16 / bits; i++) {
    made[i] = times_f16(less_f16(halves_at<bits>(word, i) | 0x64006400u, zero), step);
  }
}

// The same of bf16, of at most 7 bits, which it has behind 128; the zero point, twice, is taken off separately.
template <int bits>
__device__ __forceinline__ void unpack_bf16(unsigned (&made)[16 / bits], unsigned word, unsigned zero, unsigned step) {
#pragma unroll
  for (int i = 0; i < 16 / bits; i++) {
    const unsigned whole = less_bf16(halves_at<bits>(word, i) | 0x43004300u, 0x43004300u);
    made[i] = times_bf16(less_bf16(whole, zero), step);
  }
}

// Any scales and zeros, in f32: 2^23 + q is what f32 has with the low bits q.
template <int bits, bool added>
__device__ __forceinline__ float unpacked(unsigned word, int i, float zero, float step) {
  const float whole = __uint_as_float((word >> bits * i & ((1u << bits) - 1)) | 0x4b000000u) - 8388608.0f;
  return added ? fmaf(whole, step, zero) : (whole - zero) * step;
}

template <int bits, bool added>
__device__ __forceinline__ void unpack(float (&made)[32 / bits], unsigned word, float zero, float step) {
#pragma unroll
  for (int i = 0; i < 32 / bits; i++) made[i] = unpacked<bits, added>(word, i, zero, step);
}

// The same rounded: pairs of neighbours.
template <int bits, bool added>
__device__ __forceinline__ void round_f16(unsigned (&made)[16 / bits], unsigned word, float zero, float step) {
#pragma unroll
  for (int i = 0; i < 16 / bits; i++) {
    const float low = unpacked<bits, added>(word, 2 * i, zero, step);
    made[i] = pair_f16(low, unpacked<bits, added>(word, 2 * i + 1, zero, step));
  }
}

template <int bits, bool added>
__device__ __forceinline__ void round_bf16(unsigned (&made)[16 / bits], unsigned word, float zero, float step) {
#pragma unroll
  for (int i = 0; i < 16 / bits; i++) {
    const float low = unpacked<bits, added>(word, 2 * i, zero, step);
    made[i] = pair_bf16(low, unpacked<bits, added>(word, 2 * i + 1, zero, step));
  }
}

// Adds the products of four neighbours.
__device__ __forceinline__ void add_products(float& sum, const Piece& left, const float* right) {
  sum = fmaf(__uint_as_float(left.x), right[0], sum);
  sum = fmaf(__uint_as_float(left.y), right[1], sum);
  sum = fmaf(__uint_as_float(left.z), right[2], sum);
  sum = fmaf(__uint_as_float(left.w), right[3], sum);
}
