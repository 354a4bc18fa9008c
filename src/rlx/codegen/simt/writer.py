"""The frame of shaders that are no nests: a body, a record, and a grid of positions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rlx.codegen.scalar.int_ranges import Check, Ranges
from rlx.codegen.simt.body import Body
from rlx.codegen.simt.code import WORKGROUP, Binding, Code, Rounds, Shader, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.language import WGSL
from rlx.ir import dim as dims
from rlx.ir.dim import Dim, Shape
from rlx.kernel.schedule.schedule import UNTILED, Schedule


class Writer(ABC):
    """A shader in the making.

    grid      the axes along which invocations, or workgroups if `team`, lie
    extents   those of all axes, by number
    """

    rounds: Rounds | None = None
    schedule: Schedule = UNTILED
    lanes: int = WORKGROUP
    fewer: tuple[Dim, ...] = ()

    def __init__(
        self,
        slots: Sequence[Slot],
        grid: Shape,
        extents: Shape,
        team: bool = False,
        rounds: int = 0,
        language: Language = WGSL,
    ) -> None:
        self.language = language
        self.code = Code(language)
        self.record = language.record(len(slots), rounds)
        self.body = Body(self.code, self.record, slots, Ranges())
        self.grid, self.extents, self.team = grid, extents, team

    @abstractmethod
    def write(self) -> Dim:
        """Writes all that is done at a position, and tells how many iterations of loops that takes at most."""

    def shader(self, bindings: Sequence[Binding], name: str) -> Shader:
        place(self.body, self.grid, self.team)
        iterations = self.write()
        positions = 1 if self.team else self.lanes
        text = self.language.assemble(self.code, self.record, bindings, name, positions, self.lanes)
        checks = (Check(tuple(self.body.indices), self.extents),) if self.body.indices else ()
        return Shader(
            text, tuple(bindings), self.record.slots, self.record.numbers, dims.product(self.grid), self.team,
            iterations, checks, self.rounds, self.schedule, self.lanes, self.code.follows,
            self.code.dynamic_shared, self.code.later, fewer=self.fewer, maps=tuple(self.code.maps),
        )  # fmt: skip


def place(body: Body, extents: Shape, team: bool = False) -> None:
    """Leaves if the invocation has no position; else names its position along every axis, the last one fastest. Earlier
    kernels may still run meanwhile; lines that do not wait for them themselves come behind."""
    code = body.code
    leave = f"{code.language.wait} return;".strip()
    code.emit(f"if (position >= {body.record.dim(dims.product(extents))}) {{ {leave} }}")
    name_axes(body, extents, "position", team)
    if code.language.wait and not code.follows:
        code.emit(code.language.wait)
        code.waits = True


def name_axes(body: Body, extents: Shape, position: str, team: bool) -> None:
    """Names where a position is along every axis, the last one fastest."""
    code, rest = body.code, position
    for number in reversed(range(len(extents))):
        if number == 0:
            body.axes[number] = rest
        else:
            extent = body.record.divisor(extents[number])
            if team:  # fewer than 2^31 of them
                rest, extent = code.language.small(rest), code.language.small(extent)
            body.axes[number] = code.let(code.language.large(f"{rest} % {extent}"), "index")
            rest = code.let(code.language.large(f"{rest} / {extent}"), "rest")
