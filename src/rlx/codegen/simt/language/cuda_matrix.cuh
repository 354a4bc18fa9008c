// Four matrices of 8 rows of 16 bytes from workgroup memory, of which each eighth of a warp says where the rows of one
// are; each lane has the elements of each that products want.
__device__ __forceinline__ Piece load_matrices(const Piece* row) {
  Piece made;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(made.x), "=r"(made.y), "=r"(made.z), "=r"(made.w)
      : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
  return made;
}

// The same of matrices whose columns products want as rows.
__device__ __forceinline__ Piece load_transposed(const Piece* row) {
  Piece made;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(made.x), "=r"(made.y), "=r"(made.z), "=r"(made.w)
      : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
  return made;
}

// c[16][8] += a[16][8] · b[8][8] of floats whose lower 13 bits are left out.
__device__ __forceinline__ void mma_tf32(
    float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// One product of the matrix units: c[16][8] += a[16][16] · b[16][8], each lane with the elements that PTX says.

__device__ __forceinline__ void mma_f16(
    float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16(
    float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
