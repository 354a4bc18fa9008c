"""Metal's language (MSL 3.0), as the compiler of macOS takes it. Compile with fast math off.

Pointers name the memory that they point to, a launch's numbers are a buffer behind those of slots, and what a kernel
knows of its place comes in parameters. There is no f64, and atomics have 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rlx.codegen.simt.code import Binding, Code, Record
from rlx.codegen.simt.language.cpp import Cpp, CppRecord
from rlx.codegen.simt.language.texts import conversions, text_of
from rlx.codegen.simt.registers import Reg
from rlx.errors import CompileError
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType

BUFFERS = 31
"""That a kernel may have. The last one brings a launch's numbers; where there are more operands, the one before it has
the places of those for which no buffer is left."""
SHARED_BYTES = 32 << 10
"""Of memory that a workgroup may have."""
IDS = (
    "unsigned block_number [[threadgroup_position_in_grid]]",
    "unsigned lane_number [[thread_index_in_threadgroup]]",
    "unsigned subgroup_size [[threads_per_simdgroup]]",
)
"""Parameters that a kernel has behind its buffers."""
_BYTES = {"bool": 1, "float": 4, "int": 4, "unsigned int": 4, "float4": 16, "long": 8, "unsigned long": 8}


class Metal(Cpp):
    """Metal's language."""

    name = "metal"
    label = "MSL"
    index_type = "long"
    index_ending = "l"
    slot_space = "device "
    shared_space = "threadgroup"
    block_index = "block_number"
    lane_number = "lane_number"

    def prelude(self) -> str:
        return prelude()

    def register_type(self, dtype: DType, wide: bool) -> str:
        return super().register_type(_held(dtype), wide)

    def memory_type(self, dtype: DType) -> str:
        return super().memory_type(_held(dtype))

    def quad(self, parts: Sequence[str] = ()) -> str:
        return f"quad_of({', '.join(parts or ['0.0f'] * 4)})"

    def floats_of(self, quads: str) -> str:
        return f"((threadgroup float*){quads})"

    def has_atomic(self, combine: str, dtype: DType) -> bool:
        """On elements that are words, and sums of two words, where what one carries goes to the other."""
        if dtype in (dtypes.i64, dtypes.u64):
            return combine == "add"
        return dtype in (dtypes.f32, dtypes.i32, dtypes.u32)

    def barrier(self) -> str:
        return "metal::threadgroup_barrier(metal::mem_flags::mem_device | metal::mem_flags::mem_threadgroup);"

    def exchanged(self, value: str, mask: str) -> str:
        return f"metal::simd_shuffle_xor({value}, (unsigned short)({mask}))"

    def from_neighbour(self, reg: Reg, mask: str) -> str:
        if reg.dtype.bits != 64:
            return super().from_neighbour(reg, mask)
        return f"as_type<{self.register_type(reg.dtype, False)}>({self.exchanged(f'as_type<uint2>({reg.name})', mask)})"

    def qualifiers(self, lanes: int, cluster: int = 1, alone: bool = False) -> str:
        return f"[[max_total_threads_per_threadgroup({lanes})]] kernel void"

    def record_parameter(self, count: int) -> str:
        return f"constant Record<{count}>& record"

    def head(
        self, record: Record, bindings: Sequence[Binding], name: str, lanes: int, cluster: int = 1, later: int = 0,
        alone: bool = False, maps: int = 0,
    ) -> list[str]:  # fmt: skip
        assert isinstance(record, CppRecord)  # this language's own
        pointers = [
            (f"{'' if binding.writable else 'const '}device {binding.element}*", f"slot{number}")
            for number, binding in enumerate(bindings)
        ]
        if record.moves:
            pointers.append((f"const device {self.index_type}*", "moving"))
        near = len(pointers) if len(pointers) < BUFFERS else BUFFERS - 2
        buffers = [f"{kind} {pointer}" for kind, pointer in pointers[:near]]
        far = [f"  {kind} {p} = ({kind})far[{i}].start;" for i, (kind, p) in enumerate(pointers[near:])]
        buffers += ["constant Place* far"] if far else []
        buffers.append(self.record_parameter(max(record.rounds + len(record.numbers), 1)))
        places = [f"{text} [[buffer({number})]]" for number, text in enumerate(buffers)]
        return [self.qualifiers(lanes), f"{name}({', '.join([*places, *IDS])}) {{", *far, *self.brought(record)]

    def body(self, code: Code, block: str, positions_a_group: int) -> list[str]:
        nbytes = sum(_BYTES[kind] * count for kind, count in code.shared.values())
        if nbytes > SHARED_BYTES:
            raise CompileError(f"[kernel] expected at most {SHARED_BYTES} bytes of workgroup memory, got {nbytes}")
        return super().body(code, block, positions_a_group)


METAL = Metal()


def why_unsupported(dtype: DType) -> str | None:
    """The reason why kernels cannot hold this dtype, or None."""
    if dtype is dtypes.f64:
        return "Metal has no f64"
    return "kernels in MSL have no complex numbers" if dtype.is_complex else None


def _held(dtype: DType) -> DType:
    """The dtype. Raises CompileError where kernels cannot hold it."""
    reason = why_unsupported(dtype)
    if reason:
        raise CompileError(f"[kernel] expected a dtype that MSL has, got {dtype}: {reason}")
    return dtype


@cache
def prelude(halves: bool = True) -> str:
    """Device functions that kernels call. Without `halves` those of f16 are made of integers, for compilers that have
    no such type."""
    parts = [text_of("metal.h", "gpu_arithmetic.cuh"), *([text_of("metal_half.h")] if halves else [])]
    return "\n".join([*parts, conversions(METAL, (dtypes.f16,) if halves else ())])
