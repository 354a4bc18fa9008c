// Products of floats of 8 bits by matrix units: every other pair of blocks has them, so that what kernels do without is
// run, too.

#define has_float8 (blockIdx.x % 4 < 2)

namespace emulation {

// What a lane's sum and a row of products, of which words have four each, make: all are cut off 13 bits below the greatest.
// `word(i)` gives the words of the left and the right side.
template <class Words>
float cut_sum(float c, unsigned count, Words words) {
  double terms[1 + 4 * 8] = {c};
  for (unsigned i = 0; i < count; i++) {
    const auto [x, y] = words(i);
    for (unsigned k = 0; k < 4; k++) {
      terms[1 + 4 * i + k] = (double)decode_f8e4m3(x >> 8 * k & 0xff) * decode_f8e4m3(y >> 8 * k & 0xff);
    }
  }
  double greatest = 0, sum = 0;
  for (unsigned i = 0; i < 1 + 4 * count; i++) greatest = greatest < fabs(terms[i]) ? fabs(terms[i]) : greatest;
  int exponent = 0;
  frexp(greatest, &exponent);
  const double step = ldexp(1.0, exponent - 1 - 13);
  for (unsigned i = 0; i < 1 + 4 * count; i++) sum += trunc(terms[i] / step) * step;  // NaN stays
  return (float)sum;
}

}  // namespace emulation

inline void mma_e4m3(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  unsigned left[2][8], right[2][8];
  emulation::show_words({a0, a1, a2, a3}, {b0, b1}, left, right);
  for (unsigned i = 0; i < 4; i++) {
    c[i] = emulation::cut_sum(c[i], 8, [&](unsigned word) {
      return std::make_pair(left[i / 2][word], right[i % 2][word]);
    });
  }
}

inline unsigned pair_e4m3(float low, float high) {
  const auto byte = [](float x) { return fabsf(x) > 448.0f ? (x < 0 ? 0xfeu : 0x7eu) : encode_f8e4m3(x); };
  return byte(low) | byte(high) << 8;
}
