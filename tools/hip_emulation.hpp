// In the place of `hip.h`, on top of `cuda_emulation.hpp`.

inline unsigned block_index() { return blockIdx.x; }
inline unsigned lane_number() { return threadIdx.x; }
inline unsigned wavefront() { return emulation::warp; }

#define neighbour(value, mask) emulation::exchanged(__LINE__, value, mask)
