"""Loop nests: parallel outer axes, inner axes that make a row, and statements that run in order for each outer
position. Softmax, norms and other chains of reductions over one row are single nests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Self

from rlx.ir.dim import Shape
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr, walk
from rlx.kernel.ir.index import Linear
from rlx.kernel.ir.work import Place, Renderable
from rlx.records import dataclass


@dataclass(frozen=True)
class Reduce:
    """Joins `body` over the inner axes with an instruction (add mul min max and or), starting from its identity.

    `argument` is set for argmax and argmin: `combine` is then max or min, and the result is the position along the
    inner axis; `last` prefers the last of equals.
    """

    combine: str
    body: Expr
    dtype: DType
    argument: bool = False
    last: bool = False


@dataclass(frozen=True)
class RowBuffer:
    """Keeps `body` for every position of the row, for later statements."""

    body: Expr


@dataclass(frozen=True)
class Store:
    """Writes `body` at `offset` of the buffer in `slot`: for every element of the row, or once per row; where there is
    a `guard`, if it holds."""

    slot: int
    offset: Linear
    body: Expr
    per_element: bool
    guard: Expr | None = None

    def needs(self) -> tuple[Expr, ...]:
        """All expressions that it evaluates."""
        return (self.body, *([] if self.guard is None else [self.guard]), *(e for e, _ in self.offset.others))


Statement = Reduce | RowBuffer | Store


def row_passes(statements: Mapping[int, Statement]) -> list[list[int]]:
    """Numbers of the statements that share a walk over the row: those that do not need results of the same walk. One
    that is done once a row, or finds a place, is alone."""
    groups: list[list[int]] = []
    shared: list[int] = []

    def close() -> None:
        if shared:
            groups.append(shared.copy())
            shared.clear()

    for number, statement in statements.items():
        needed = statement.needs() if isinstance(statement, Store) else [statement.body]
        used = {node.attr for node in walk(needed) if node.kind == "row"}
        alone = (isinstance(statement, Reduce) and statement.argument) or is_once_a_row(statement)
        if alone or used & set(shared):
            close()
        shared.append(number)
        if alone:
            close()
    close()
    return groups


def is_once_a_row(statement: Statement) -> bool:
    """Whether a statement is done once for a row, behind what makes its value."""
    return isinstance(statement, Store) and not statement.per_element


@dataclass(frozen=True)
class LoopNest(Renderable):
    """A loop nest: `outer` axes are parallel (numbers 0 …), `inner` axes make a row (the next numbers); statements run
    in order for each outer position. Without inner axes it is a map."""

    outer: Shape
    inner: Shape
    statements: tuple[Statement, ...]

    @property
    def reduces(self) -> bool:
        """Whether any statement sums up, or the like, over the row."""
        return any(isinstance(statement, Reduce) for statement in self.statements)

    def stores(self) -> Iterator[Store]:
        """The statements that write."""
        return (statement for statement in self.statements if isinstance(statement, Store))

    def extents(self) -> Shape:
        return (*self.outer, *self.inner)

    def bodies(self) -> tuple[Expr, ...]:
        guards = (store.guard for store in self.stores())
        return (*(statement.body for statement in self.statements), *(g for g in guards if g is not None))

    def writes(self) -> tuple[Place, ...]:
        return tuple(Place(s.slot, s.offset, self.extents(), s.body.dtype) for s in self.stores())

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        statements: list[Statement] = []
        for statement in self.statements:
            changed = dataclasses.replace(statement, body=change(statement.body))
            if isinstance(changed, Store) and changed.guard is not None:
                changed = dataclasses.replace(changed, guard=change(changed.guard))
            statements.append(changed)
        return dataclasses.replace(self, statements=tuple(statements))
