"""Reductions: the place of the greatest or least, and row groups as one loop nest of several statements."""

from __future__ import annotations

from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.ir.graph import Value
from rlx.ir.op import Elementwise
from rlx.kernel.ir.index import axis, place, row, temp
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Statement, Store
from rlx.kernel.lower.context import KernelBuilder, LoweringContext
from rlx.kernel.lower.group import Group
from rlx.kernel.lower.growth import instructions
from rlx.kernel.lower.index import ZERO, Emitter, Index, Key, key_of
from rlx.kernel.lower.table import lowers
from rlx.ops.reduce import Argmax, Argmin, Reduction


@lowers(Argmax, Argmin)
def lower_argument(context: LoweringContext, group: Group) -> None:
    op, x, value = group.anchor.op, group.anchor.inputs[0], group.results[0]
    assert isinstance(op, (Argmax, Argmin))
    kernel = context.kernel(context.result(value))
    at = op.axis % x.rank
    body = kernel.emitter().emit(x, _row_index(x.rank, (at,)))
    outer = tuple(d for i, d in enumerate(x.shape) if i != at)
    strides = _drop_kept(context.memory.strides(value), (at,), op.keepdims)
    offset = place(tuple(axis(i) for i in range(len(outer))), strides)
    statements: tuple[Statement, ...] = (
        Reduce(op.combine, body, dtypes.i64, argument=True, last=op.last),
        Store(0, offset, row(0, dtypes.i64), False),
    )
    context.add(kernel, op.name, LoopNest(outer, (x.shape[at],), statements), [group.anchor])


@lowers(Reduction, grows="row")
def lower_row(context: LoweringContext, group: Group) -> None:
    x, op = group.anchor.inputs[0], group.anchor.op
    assert isinstance(op, Reduction)
    axes = tuple(sorted(a % x.rank for a in op.axes))
    kernel = context.kernel(*(context.result(v) for v in group.results))
    full = _row_index(x.rank, axes)
    rows = tuple(ZERO if i in axes else part for i, part in enumerate(full))
    statements = RowStatements(context, kernel, group, x, full, rows).build()
    outer = tuple(d for i, d in enumerate(x.shape) if i not in axes)
    inner = tuple(x.shape[a] for a in axes)
    name = "_".join(dict.fromkeys(n.op.name for n in group.members))
    context.add(kernel, name[:60], LoopNest(outer, inner, tuple(statements)), group.members)


class RowStatements:
    """Orders the members of a row group into statements: reductions, row buffers and stores."""

    def __init__(
        self, context: LoweringContext, kernel: KernelBuilder, group: Group, x: Value, full: Index, rows: Index
    ) -> None:
        self.context = context
        self.kernel = kernel
        self.group = group
        self.x = x
        self.full = full
        self.rows = rows
        self.members = {key_of(n.outputs[0]) for n in group.members}
        self.emitter = Emitter(self._strides_of, kernel.slot_of)
        self.statements: list[Statement] = []

    def _strides_of(self, value: Value) -> tuple[Dim, ...] | None:
        return None if key_of(value) in self.members else self.context.strides_of(value)

    def build(self) -> list[Statement]:
        repeated = self._repeated()
        for node in self.group.members:
            value = node.outputs[0]
            if isinstance(node.op, Reduction):
                self._before(node.inputs[0], repeated)
                total = dtypes.accumulator(value.dtype) if node.op.combine in ("add", "mul") else value.dtype
                body = ex.cast(self.emitter.emit(node.inputs[0], self.full), total)
                self.statements.append(Reduce(node.op.combine, body, total))
                self._know(value, self.rows, ex.cast(row(len(self.statements) - 1, total), value.dtype))
        for value in self.group.results:
            self._store(value, repeated)
        return self.statements

    def _know(self, value: Value, index: Index, expression: Expr) -> None:
        self.emitter.known[key_of(value)] = (index, expression)
        self.emitter.forget()

    def _before(self, value: Value, repeated: dict[Key, Value]) -> None:
        """Makes row buffers of what is below `value` and is needed again later; deepest first."""
        for operand in self._below(value):
            if key_of(operand) in repeated and key_of(operand) not in self.emitter.known:
                self.statements.append(RowBuffer(self.emitter.emit(operand, self.full)))
                self._know(operand, self.full, temp(len(self.statements) - 1, operand.dtype))

    def _store(self, value: Value, repeated: dict[Key, Value]) -> None:
        is_row = value.shape != self.x.shape
        self._before(value, repeated)
        index = self.rows if is_row else self.full
        rank = len(index)
        if is_row and value.rank != rank:  # a reduction that drops its axes
            offset = place(tuple(p for p in self.rows if p is not ZERO), self.context.memory.strides(value))
        else:
            offset = self.context.offset(value, index)
        slot = self.kernel.slot_of(value)
        self.statements.append(Store(slot, offset, self.emitter.emit(value, index), not is_row))

    def _repeated(self) -> dict[Key, Value]:
        """Full-shape values with arithmetic in them that two statements or more would compute."""
        counts: dict[Key, int] = {}
        values: dict[Key, Value] = {}
        tops = [n.inputs[0] for n in self.group.members if isinstance(n.op, Reduction)]
        for top in [*tops, *(v for v in self.group.results if v.shape == self.x.shape)]:
            for value in self._below(top):
                if value.shape == self.x.shape and instructions(value.node) > 1:
                    counts[key_of(value)] = counts.get(key_of(value), 0) + 1
                    values[key_of(value)] = value
        return {key: values[key] for key, count in counts.items() if count > 1 and self._is_top(values[key], counts)}

    def _below(self, top: Value) -> list[Value]:
        """Elementwise values that are computed here for `top`, without a reduction between, deepest first."""
        order: list[Value] = []
        seen: set[Key] = set()
        stack = [(top, False)]
        while stack:
            value, ready = stack.pop()
            if ready:
                order.append(value)
            elif key_of(value) not in seen and self._strides_of(value) is None:
                seen.add(key_of(value))
                if isinstance(value.node.op, Elementwise):
                    stack.append((value, True))
                    stack.extend((operand, False) for operand in reversed(value.node.inputs))
        return order

    def _is_top(self, value: Value, counts: dict[Key, int]) -> bool:
        """Not merely below another repeated value, used by that one alone."""
        users = self.context.facts.uses(value)
        if len(users) == 1 and counts.get(key_of(users[0].outputs[0]), 0) >= counts[key_of(value)]:
            return users[0].outputs[0].shape != self.x.shape
        return True


def _row_index(rank: int, axes: tuple[int, ...]) -> Index:
    """Outer axes are numbered first, reduced axes behind them."""
    kept = [i for i in range(rank) if i not in axes]
    numbers = {a: i for i, a in enumerate((*kept, *axes))}
    return tuple(axis(numbers[i]) for i in range(rank))


def _drop_kept(strides: tuple[Dim, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[Dim, ...]:
    return tuple(s for i, s in enumerate(strides) if i not in axes) if keepdims else strides
