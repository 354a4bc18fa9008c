"""How elements lie in buffers and in registers. WGSL computes on f32, i32, u32 and bool; all else is built from these.

In registers narrow floats are f32 (rounded after every instruction), narrow integers are i32 or u32 (wrapped after
every instruction), and 64-bit integers are `vec2<u32>`, low word first, or a plain i32 where the value is known to fit.

In memory an element has one of two forms. *Packed* is what the host has: halves, bytes, and integers and floats below
a byte that take a whole one, several to a word. *Words* is what kernels write: a whole u32 an element, two for 64 bits.
An invocation can then store an element without a thought for its neighbours, where packed elements would need atomics.
Where a device has f16, elements of that dtype have a third form, *halves*, as on the host, in memory of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.codegen.scalar import small_floats as narrow
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType

WORD_BITS = 32
WORD_BYTES = 4
HALF_BYTES = 2


@dataclass(frozen=True)
class Target:
    """What shaders may use of what not every WebGPU device has.

    halves      f16 in memory and in conversions
    subgroups   exchange between neighbouring lanes without workgroup memory
    software    processors do the work: a few rows of updates, each in order, keep them busy
    teams       workgroups may be of many lanes, and have matrix units: CUDA C++
    rows        what products are laid out for, where only a run tells how many rows they have
    warpgroups  four warps make products together: NVIDIA's compute capability 9.0
    """

    halves: bool = False
    subgroups: bool = False
    software: bool = False
    teams: bool = False
    rows: int = 4096
    warpgroups: bool = False

    @property
    def square(self) -> int:
        """Side of the squares that maps which transpose take through workgroup memory, at most; 1 is none."""
        return 1

    @property
    def shares_sums(self) -> bool:
        """Whether lanes of a workgroup share the sums of products that have few results."""
        return False

    def is_native(self, dtype: DType) -> bool:
        """Whether elements lie as halves."""
        return self.halves and dtype is dtypes.f16


PLAIN = Target()


def why_unsupported(dtype: DType) -> str | None:
    """The reason why kernels cannot hold this dtype, or None."""
    if dtype is dtypes.f64:
        return "WGSL has no f64"
    return "WGSL has no complex numbers" if dtype.is_complex else None


def is_wide(dtype: DType) -> bool:
    """Whether elements are 64-bit integers."""
    return dtype in (dtypes.i64, dtypes.u64)


def is_narrow_float(dtype: DType) -> bool:
    """Whether elements are bits in memory and f32 in registers."""
    return dtype in narrow.DTYPES


def atomic_type(dtype: DType) -> str:
    """The type of the atomics that words of elements are joined as."""
    return "i32" if dtype.kind == "int" and not is_wide(dtype) else "u32"


def element_words(dtype: DType) -> int:
    """Words of an element in the words form."""
    return 2 if is_wide(dtype) else 1


def can_pack(dtype: DType) -> bool:
    """Whether several elements share a word in the packed form."""
    return dtype.bits < WORD_BITS


def register_type(dtype: DType, wide: bool) -> str:
    """WGSL type of a register; `wide` tells a 64-bit integer that is kept whole from one that fits in i32."""
    if is_wide(dtype):
        return "vec2<u32>" if wide else "i32"
    return {"bool": "bool", "float": "f32", "int": "i32", "uint": "u32"}[dtype.kind]
