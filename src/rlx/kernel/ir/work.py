"""What generic code asks of a piece of work, whatever its kind: extents, bodies, places in memory, kernels it owns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Self

from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import Linear, offset_of
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.kernel.ir.program import Kernel


@dataclass(frozen=True)
class Place:
    """Elements that work reads or writes itself, not by a `load` in a body.

    extents   of the axes that the offset is linear in, by number; none where the elements are not told one by one
    dtype     of the elements, None where the buffer's is taken
    """

    slot: int
    offset: Linear
    extents: Shape
    dtype: DType | None = None


class Work:
    """A kind of work. Subclasses are frozen dataclasses; equal work becomes one function."""

    def extents(self) -> Shape:
        """Extents of the loop axes that bodies speak of, by number."""
        return ()

    def bodies(self) -> tuple[Expr, ...]:
        """The scalar expressions of the work."""
        return ()

    def parts(self) -> tuple[Work, ...]:
        """Pieces of the work that have axes of their own: itself, where it has no others."""
        return (self,)

    def writes(self) -> tuple[Place, ...]:
        """Where results go."""
        return ()

    def reads(self) -> tuple[Place, ...]:
        """What is read beside the loads in bodies."""
        return ()

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        """The work with other bodies."""
        return self

    def children(self) -> tuple[Kernel, ...]:
        """Kernels that the work owns, in the order in which they may run."""
        return ()

    def map_children(self, change: Callable[[tuple[Kernel, ...]], Iterable[Kernel]]) -> Self:
        """The work with other rows of kernels in it."""
        return self

    @property
    def owns_kernels(self) -> bool:
        """Whether it runs kernels instead of computing something itself."""
        return False

    def loads(self) -> Iterator[Expr]:
        """The loads in bodies and in the offsets of places, each once."""
        roots = [*self.bodies(), *(e for place in (*self.writes(), *self.reads()) for e, _ in place.offset.others)]
        return (node for node in ex.walk(roots) if node.kind == "load")

    def dims(self) -> Iterator[Dim]:
        """Every dim that the work depends on; a run alone knows those that are no integers."""
        yield from self.extents()
        yield from (node.attr for node in ex.walk(list(self.bodies())) if node.kind == "dim")
        lines = [place.offset for place in (*self.writes(), *self.reads())]
        for line in (*lines, *map(offset_of, self.loads())):
            yield line.const
            yield from (coefficient for _, coefficient in (*line.axes, *line.others))
            yield from (node.attr for node in ex.walk([e for e, _ in line.others]) if node.kind == "dim")

    def depends_on_run(self) -> bool:
        """Whether extents, strides or bodies hold dims that only a run knows."""
        return any(not isinstance(dim, int) for dim in self.dims())


class Renderable(Work, ABC):
    """Work that a code generator turns into a function; all but branches and loops."""

    @abstractmethod
    def writes(self) -> tuple[Place, ...]: ...
