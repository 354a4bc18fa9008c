"""What SIMD code generation needs to know about an instruction set: vectors, registers, matrix block, caches."""

from __future__ import annotations

from rlx.records import dataclass


@dataclass(frozen=True)
class Isa:
    """`cpu` and `features` are LLVM's; sizes are bytes; `lanes` are f32 per vector.

    A matrix kernel keeps a block of `gemm_rows` by `gemm_vectors` vectors of the result in registers; besides them it
    needs `gemm_vectors` registers for one operand and at least one for the other.
    """

    name: str
    triple_arch: str
    cpu: str
    features: str
    lanes: int
    vector_registers: int
    gemm_rows: int
    gemm_vectors: int
    has_fma: bool
    line_bytes: int = 64
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    l3_bytes: int = 8 << 20

    @property
    def byte_products(self) -> str:
        """How bytes are multiplied and added to i32, as `codegen.simd.function.Target` names it."""
        feature = {16: "+avx512vnni", 8: "+avxvnni"}.get(self.lanes, "")
        if feature and feature in self.features.split(","):
            return "fours"
        return "pairs" if self.triple_arch == "x86_64" else ""

    @property
    def byte_rows(self) -> int:
        """Rows of a block of byte products: without an instruction of its own a product needs more registers."""
        return self.gemm_rows if self.byte_products == "fours" else self.gemm_rows - 2

    @property
    def widest_block(self) -> int:
        """Vectors in a row of the widest block: with few registers, one more than usual is as fast in fewer rows."""
        return self.gemm_vectors + (1 if self.has_fma and self.vector_registers == 16 else 0)

    def block_rows(self, vectors: int) -> int:
        """Rows of a block of f32 that is so many vectors wide."""
        if vectors <= self.gemm_vectors:
            return self.gemm_rows
        return (self.vector_registers - vectors - 1) // vectors

    @property
    def converts_f16(self) -> bool:
        """Whether instructions turn f16 into f32 and back."""
        return self.name != "sse"

    @property
    def vector_bytes(self) -> int:
        return 4 * self.lanes

    @property
    def clock(self) -> str:
        """LLVM's intrinsic for a counter that runs at a steady rate and that programs may read."""
        return "llvm.readcyclecounter" if self.triple_arch == "x86_64" else "llvm.readsteadycounter"
