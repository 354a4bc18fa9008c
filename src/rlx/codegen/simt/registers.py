"""A value in a register."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.codegen.simt.language.wgsl.types import is_wide
from rlx.ir.dtype import DType


@dataclass(frozen=True)
class Reg:
    """A name or literal, its dtype, and for a 64-bit integer whether it is whole (`vec2<u32>`) or fits in an i32.
    `source` is the f32 that it was rounded from, where that is known: whoever stores it rounds it anyway."""

    name: str
    dtype: DType
    wide: bool
    source: str = ""

    @property
    def unrounded(self) -> str:
        """What gives the same when it is rounded to the dtype."""
        return self.source or self.name

    def like(self, name: str) -> Reg:
        """Another register of this kind."""
        return Reg(name, self.dtype, self.wide)

    def widened(self) -> Reg:
        """A 64-bit integer as a `vec2<u32>`."""
        return self if self.wide or not is_wide(self.dtype) else Reg(f"widen_i32({self.name})", self.dtype, True)

    def low(self) -> str:
        """The low 32 bits of an integer, as an i32."""
        return f"bitcast<i32>({self.name}.x)" if self.wide else self.name
