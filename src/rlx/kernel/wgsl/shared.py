"""Workgroup memory: places that the lanes of a workgroup share."""

from __future__ import annotations

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.kernel.wgsl.code import WORKGROUP, Code
from rlx.kernel.wgsl.registers import Reg
from rlx.kernel.wgsl.types import register_type


def halves(lanes: int) -> list[int]:
    """lanes/2, lanes/4, … 1."""
    return [lanes >> i for i in range(1, lanes.bit_length())]


class Shared:
    """Arrays in workgroup memory with a place for every lane. Bools lie there as u32: NVIDIA's driver loses them."""

    def __init__(self, code: Code) -> None:
        self.code = code

    def array(self, dtype: DType, wide: bool) -> str:
        """The name of the array for registers of this kind."""
        element = "u32" if dtype is dtypes.bool_ else register_type(dtype, wide)
        name = "shared_" + element.replace("<", "_").replace(">", "")
        self.code.shared[name] = f"array<{element}, {WORKGROUP}>"
        return name

    def put(self, array: str, reg: Reg) -> None:
        """Writes this lane's place."""
        value = f"select(0u, 1u, {reg.name})" if reg.dtype is dtypes.bool_ else reg.name
        self.code.emit(f"{array}[lane] = {value};")

    def get(self, array: str, at: str, like: Reg) -> Reg:
        """Reads a place."""
        place = f"{array}[{at}]"
        return like.like(self.code.let(f"{place} != 0u" if like.dtype is dtypes.bool_ else place))

    def barrier(self) -> None:
        """Waits for all lanes; it has to stand where every lane comes by."""
        self.code.emit("workgroupBarrier();")
