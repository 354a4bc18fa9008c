"""CUDA C++ as NVRTC takes it, without headers. Compile with `--fmad=false`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rlx.codegen.simt.code import WIDE, WORKGROUP, Binding, Code, Record
from rlx.codegen.simt.language.cpp import INDEX, Cpp, CppRecord
from rlx.codegen.simt.language.cuda_warpgroups import WARPGROUPS
from rlx.codegen.simt.language.texts import GPU, conversions, text_of
from rlx.codegen.simt.registers import Reg
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr

NEAR = ("near_exp2", "near_reciprocal")
"""Instructions that no other language has."""


class Cuda(Cpp):
    """CUDA C++."""

    name = "cuda"
    label = "CUDA C++"
    group_size = "blockDim.x"
    wait = "follow();"

    def prelude(self) -> str:
        return prelude()

    def _text(self, node: Expr, args: Sequence[Reg]) -> str | None:
        if node.kind in NEAR and node.dtype is dtypes.f32:
            return f"{node.kind}({args[0].name})"
        return super()._text(node, args)

    def exchanged(self, value: str, mask: str) -> str:
        return f"__shfl_xor_sync(0xffffffffu, {value}, {mask})"

    def put(self, kind: str, place: str, words: Sequence[str]) -> str:
        if kind not in ("Piece", "HalfPiece"):
            return super().put(kind, place, words)
        return f"put_piece(({kind}*)({place}), {kind}{{{', '.join(words)}}});"

    def small(self, text: str) -> str:
        return f"(unsigned){text}"

    def large(self, text: str) -> str:
        return f"({INDEX})({text})"

    def qualifiers(self, lanes: int, cluster: int = 1, alone: bool = False) -> str:
        together = f" __cluster_dims__({cluster}, 1, 1)" if cluster > 1 else ""
        return f'extern "C" __global__ void{together} __launch_bounds__({lanes}{", 1" * alone})'

    def record_parameter(self, count: int) -> str:
        return f"const __grid_constant__ Record<{count}> record"

    def map_parameter(self, number: int) -> str:
        return f"const __grid_constant__ TensorMap map{number}"

    def asks_later(self, own: int, later: int) -> list[str]:
        return [f"  bring_later(record.dims[{own}], record.dims[{own + 1}]);"] if later else []

    def moved(self, place: str) -> str:
        return f"number_ahead({place})"

    def first_lines(self, code: Code) -> list[str]:
        shared = [f"  DYNAMIC_SHARED({code.dynamic_shared});"] if code.dynamic_shared else []
        return shared if code.follows or code.waits else [*shared, "  follow();"]

    def part(self, slots: int) -> CudaPart:
        """The language of parts of a kernel with so many slots."""
        return CudaPart(slots, self.moving)


class CudaPart(Cuda):
    """Parts of one kernel, which share a record of numbers and have blocks of their own."""

    def __init__(self, slots: int, moving: frozenset[str]) -> None:
        super().__init__(moving)
        self.shared = CppRecord(slots, 0, moving)

    def record(self, slots: int, rounds: int = 0) -> Record:
        return self.shared

    def assemble(
        self, code: Code, record: Record, bindings: Sequence[Binding], name: str, positions_a_group: int,
        lanes: int = WORKGROUP,
    ) -> str:  # fmt: skip
        """A part, for the blocks from 0 on."""
        return "\n".join(self.body(code, "block", positions_a_group))

    def whole(
        self, parts: Sequence[str], extents: Sequence[Dim], bindings: Sequence[Binding], name: str, wide: bool
    ) -> str:
        """The kernel of parts, each with so many blocks, or `wide` ones, each with so many lanes."""
        counts = [self.shared.dim(extent) for extent in extents]
        head = self.head(self.shared, bindings, name, WIDE if wide else WORKGROUP)
        lines = [*head, f"  {INDEX} block = {self.block_index};"]
        if wide:  # a division by what the compiler does not know to be a power of two takes thirty instructions
            few, many = WORKGROUP.bit_length() - 1, WIDE.bit_length() - 1
            lines.append(f"  const int shift = {self.group_size} == {WORKGROUP} ? {few} : {many};")
            for number, count in enumerate(counts):
                lines.append(f"  const {INDEX} blocks{number} = ({count} + {self.group_size} - 1) >> shift;")
            counts = [f"blocks{number}" for number in range(len(counts))]
        for part, count in zip(parts, counts):
            lines += [f"  if (block < {count}) {{", part, "    return;", "  }", f"  block -= {count};"]
        return "\n".join([*lines, "}"])


CUDA = Cuda()

PTX = (
    "cuda_floats.cuh",
    "cuda_halves.cuh",
    "cuda_launch.cuh",
    "cuda_matrix.cuh",
    "cuda_bytes.cuh",
    "cuda_float8.cuh",
    "cuda_copies.cuh",
    "cuda_clusters.cuh",
    "cuda_pipes.cuh",
)
"""Texts with instructions of PTX."""


@cache
def prelude(ptx: bool = True) -> str:
    """Device functions that kernels call: those of `gpu.cuh`, and conversions of small floats, of halves by
    instructions of PTX, and products of matrix units; for other compilers neither."""
    written = (dtypes.f16, dtypes.bf16) if ptx else ()
    parts = [text_of("cuda_warp.cuh", *GPU, *(PTX if ptx else ())), conversions(CUDA, written, fours=())]
    return "\n".join([*parts, *([WARPGROUPS, by_ptx()] if ptx else [])])


def by_ptx() -> str:
    """What calls instructions of PTX: products of f32 as sums of shorter floats, elements of few bits, and floats of 8
    bits."""
    return text_of("cuda_parts.cuh", "cuda_blocks.cuh", "cuda_float8_sums.cuh")
