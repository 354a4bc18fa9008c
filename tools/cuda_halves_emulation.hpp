// Two floats of 16 bits a word, rounded once each.

namespace emulation {

template <unsigned encode(float), float decode(unsigned), class F>
unsigned of_pairs(unsigned a, unsigned b, F of) {
  return encode(of(decode(a & 0xffff), decode(b & 0xffff))) | encode(of(decode(a >> 16), decode(b >> 16))) << 16;
}

inline float less(float a, float b) { return a - b; }
inline float times(float a, float b) { return a * b; }

}  // namespace emulation

inline unsigned less_f16(unsigned a, unsigned b) {
  return emulation::of_pairs<encode_f16, decode_f16>(a, b, emulation::less);
}

inline unsigned times_f16(unsigned a, unsigned b) {
  return emulation::of_pairs<encode_f16, decode_f16>(a, b, emulation::times);
}

inline unsigned less_bf16(unsigned a, unsigned b) {
  return emulation::of_pairs<encode_bf16, decode_bf16>(a, b, emulation::less);
}

inline unsigned times_bf16(unsigned a, unsigned b) {
  return emulation::of_pairs<encode_bf16, decode_bf16>(a, b, emulation::times);
}
