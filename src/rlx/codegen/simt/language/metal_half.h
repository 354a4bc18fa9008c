inline float decode_f16(unsigned bits) { return (float)as_type<half>((unsigned short)bits); }
inline unsigned encode_f16(float x) { return as_type<unsigned short>((half)x); }
inline unsigned pair_f16(float low, float high) { return encode_f16(low) | encode_f16(high) << 16; }
