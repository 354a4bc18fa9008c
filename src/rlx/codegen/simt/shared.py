"""What the lanes of a workgroup share: places in workgroup memory, and, where the device has them, subgroups.

A subgroup is a power of two of neighbouring lanes, in the order of their numbers; how many, the shader reads as it runs
(`backends/wgpu/subgroup_check.py` makes sure that all this holds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlx.codegen.simt.code import WORKGROUP, Code
from rlx.codegen.simt.registers import Reg
from rlx.ir.dtype import DType


def halves(lanes: int) -> list[int]:
    """lanes/2, lanes/4, … 1."""
    return [lanes >> i for i in range(1, lanes.bit_length())]


class Shared:
    """Arrays in workgroup memory with a place for every lane."""

    def __init__(self, code: Code) -> None:
        self.code = code

    def array(self, dtype: DType, wide: bool) -> str:
        """The name of the array for registers of this kind."""
        return self.code.language.shared_array(self.code, dtype, wide)

    def put(self, array: str, reg: Reg) -> None:
        """Writes this lane's place."""
        self.code.emit(f"{array}[lane] = {self.code.language.shared_value(reg)};")

    def get(self, array: str, at: str, like: Reg) -> Reg:
        """Reads a place."""
        return like.like(self.code.let(self.code.language.from_shared(f"{array}[{at}]", like)))

    def among_neighbours(self, reg: Reg, combine: Callable[[Reg, Reg], Reg]) -> Reg:
        """What the lanes of this lane's subgroup give together: in each step a lane joins what it has with what a lane
        twice as far away has. Steps beyond the subgroup change nothing; all lanes take them, as they must."""
        code, language = self.code, self.code.language
        held = code.fresh("held")
        code.emit(language.variable(held, language.register_type(reg.dtype, reg.wide), reg.name))
        for step in reversed(halves(WORKGROUP)):
            within = code.let(f"{step}u < subgroup_size", "within")
            mask = language.select(within, f"{step}u", "0u")
            other = reg.like(code.let(language.from_neighbour(reg.like(held), mask)))
            both = combine(reg.like(code.let(held)), other)
            code.emit(f"{held} = {language.select(within, both.name, held)};")
        return reg.like(held)

    @contextmanager
    def other_subgroups(self) -> Iterator[str]:
        """A loop over the first lanes of the subgroups but the first."""
        name = self.code.fresh("first")
        head = self.code.language.loop_while(name, "subgroup_size", f"{name} < {WORKGROUP}u", f"{name} + subgroup_size")
        with self.code.block(head):
            yield name

    def barrier(self) -> None:
        """Waits for all lanes; it has to stand where every lane comes by."""
        self.code.emit(self.code.language.barrier())
