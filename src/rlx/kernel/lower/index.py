"""From values to scalar expressions: what one element of a value is, in terms of buffers that are in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import numpy as np

from rlx.errors import CompileError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.expr import Expr
from rlx.ir.graph import Node, Value
from rlx.ir.op import Constant, Elementwise
from rlx.kernel.ir.index import Linear, contiguous, dim_value, index_of, linear, load, place
from rlx.kernel.lower.views import view_of
from rlx.ops.convolution import Dilate
from rlx.ops.elementwise import Div
from rlx.ops.index import Gather, GatherElements, GatherNd
from rlx.ops.shape import BroadcastTo, DimsTensor, Frames, Iota, Pad, Reshape, Slice, Transpose

Key = tuple[int, int]
Index = tuple[Expr, ...]
Request = tuple[Value, Index]
Step = Generator[Request, Expr, Expr]
"""Works out one element; yields the elements that it needs and is sent each of them."""

MOVES = (
    Dilate, Reshape, Transpose, Slice, BroadcastTo, Frames, Pad, Gather, GatherElements, GatherNd, Iota, DimsTensor,
)  # fmt: skip
ZERO = ex.const(0, dtypes.i64)


def key_of(value: Value) -> Key:
    return (id(value.node), value.index)


def is_scalar_constant(value: Value) -> bool:
    """Constants of one element become part of the code."""
    return isinstance(value.node.op, Constant) and value.node.op.value.array.size == 1


def can_inline(value: Value) -> bool:
    """Whether an element of this value can be said as an expression of its operands' elements."""
    return isinstance(value.node.op, (Elementwise, *MOVES)) or is_scalar_constant(value)


class Emitter:
    """Builds the expressions of one kernel.

    strides_of   strides of a value that lies in memory, None for others
    slot_of      the kernel's slot for that value's buffer
    known        values that the kernel itself holds (a row's reduction, its temporaries, the accumulator), each as the
                 index at which it does and the expression of the element there
    """

    def __init__(
        self,
        strides_of: Callable[[Value], tuple[Dim, ...] | None],
        slot_of: Callable[[Value], int],
    ) -> None:
        self.strides_of = strides_of
        self.slot_of = slot_of
        self.known: dict[Key, tuple[Index, Expr]] = {}
        self._memo: dict[tuple[Key, Index], Expr] = {}

    def forget(self) -> None:
        """Must be called after `known` has changed."""
        self._memo.clear()

    def emit(self, value: Value, index: Index) -> Expr:
        """The element of `value` at `index`.

        Steps ask for the elements that they need by yielding them: chains of ops may be longer than Python's stack.
        """
        next_request: Request = (value, index)
        stack: list[tuple[Request, Step]] = []
        expression = self._memo.get((key_of(value), index))
        if expression is None:
            stack.append((next_request, self._emit(value, index)))
        while stack:
            request, step = stack[-1]
            try:
                next_request = step.send(expression) if expression is not None else next(step)
            except StopIteration as done:
                expression = self._memo[key_of(request[0]), request[1]] = done.value
                stack.pop()
                continue
            expression = self._memo.get((key_of(next_request[0]), next_request[1]))
            if expression is None:
                stack.append((next_request, self._emit(*next_request)))
        assert expression is not None
        return expression

    def _emit(self, value: Value, index: Index) -> Step:
        held = self.known.get(key_of(value))
        if held is not None and is_same_place(value.shape, held[0], index):
            return held[1]
        op = value.node.op
        if isinstance(op, Constant) and is_scalar_constant(value):
            return ex.const(op.value.array.reshape(-1)[0], value.dtype)
        view = view_of(value, self.strides_of)
        if view is not None:
            return load(self.slot_of(view.root), place(index, view.strides, view.offset), value.dtype)
        if isinstance(op, Elementwise):
            operands = []
            for operand in value.node.inputs:
                operands.append((yield operand, operand_index(operand.shape, index)))
            return op.scalar(*operands)
        return (yield from self._emit_move(value, index))

    def _emit_move(self, value: Value, index: Index) -> Step:
        op, operands = value.node.op, value.node.inputs
        match op:
            case Transpose(permutation=order):
                return (yield operands[0], tuple(index[order.index(i)] for i in range(len(order))))
            case BroadcastTo():
                return (yield operands[0], operand_index(operands[0].shape, index))
            case Slice(starts=starts, steps=steps):
                moved = [plus(times(i, t), dim_value(s)) for i, s, t in zip(index, starts, steps)]
                return (yield operands[0], tuple(moved))
            case Frames(axis=axis, step=step):
                at = axis % operands[0].rank
                place = plus(times(index[at], step), index[at + 1])
                return (yield operands[0], (*index[:at], place, *index[at + 2 :]))
            case Reshape():
                return (yield operands[0], reshaped_index(value.shape, index, operands[0].shape))
            case Pad(low=low, high=high, value=fill):
                return (yield from self._emit_pad(operands[0], index, low, high, ex.const(fill, value.dtype)))
            case Dilate(steps=steps):
                return (yield from self._emit_dilated(operands[0], index, steps))
            case Gather(axis=axis):
                at = axis % operands[0].rank
                count = operands[1].rank
                kept = (*index[:at], ZERO, *index[at + count :])
                return (yield from self._taken(operands[0], at, operands[1], index[at : at + count], kept))
            case GatherElements(axis=axis):
                return (yield from self._taken(operands[0], axis % operands[0].rank, operands[1], index, index))
            case GatherNd(batch_dims=batch):
                return (yield from self._emit_gather_nd(operands[0], operands[1], index, batch))
            case Iota(axis=axis):
                return ex.cast(index[axis % len(index)], value.dtype)
            case DimsTensor(values=values):
                chosen = dim_value(values[-1]) if values else ZERO
                for number in reversed(range(len(values) - 1)):
                    here = ex.apply("eq", index[0], ex.const(number, dtypes.i64))
                    chosen = ex.select(here, dim_value(values[number]), chosen)
                return ex.cast(chosen, value.dtype)
        raise CompileError(f"[{op.name}] no expression for {value!r}")

    def _emit_pad(self, operand: Value, index: Index, low: Sequence[Dim], high: Sequence[Dim], fill: Expr) -> Step:
        guard: Expr | None = None
        moved = []
        for part, before, after, extent in zip(index, low, high, operand.shape):
            inner = plus(part, dim_value(dims.mul(before, -1)))
            moved.append(inner)
            tests = []
            # where nothing is added, nothing lies outside; tests along the innermost axis are one for each element
            if not (isinstance(before, int) and before <= 0):
                tests.append(ex.apply("le", ZERO, inner))
            if not (isinstance(after, int) and after <= 0):
                tests.append(ex.apply("lt", inner, dim_value(extent)))
            for test in tests:
                guard = test if guard is None else ex.apply("and", guard, test)
        inside = yield operand, tuple(moved)
        return inside if guard is None else ex.select(guard, guarded(inside, guard), fill)

    def _emit_gather_nd(self, x: Value, indices: Value, index: Index, batch: int) -> Step:
        depth = indices.shape[-1]
        assert isinstance(depth, int)  # the type rule says so
        count = indices.rank - 1
        places = []
        for i in range(depth):
            position = yield indices, (*index[:count], ex.const(i, dtypes.i64))
            places.append(_inside(position, x.shape[batch + i]))
        element = yield x, (*index[:batch], *places, *index[count:])
        return _zero_if_empty(element, x.shape[batch : batch + depth])

    def _emit_dilated(self, operand: Value, index: Index, steps: Sequence[int]) -> Step:
        guard: Expr | None = None
        place = []
        for part, step in zip(index, steps):
            if step == 1:
                place.append(part)
                continue
            place.append(part / step)
            test = ex.apply("eq", ex.apply("rem", part, step), ZERO)
            guard = test if guard is None else ex.apply("and", guard, test)
        inside = yield operand, tuple(place)
        return inside if guard is None else ex.select(guard, guarded(inside, guard), ex.const(0, operand.dtype))

    def _taken(self, x: Value, at: int, indices: Value, place: Index, index: Index) -> Step:
        """x at the position along axis `at` that `indices` has at `place`."""
        times = _repeats(indices, x.shape[at])
        if times > 1:  # a position that the kernel knows itself
            return (yield x, (*index[:at], place[0] / times, *index[at + 1 :]))
        position = yield indices, place
        if _known_inside(indices, x.shape[at]):
            return (yield x, (*index[:at], ex.cast(position, dtypes.i64), *index[at + 1 :]))
        element = yield x, (*index[:at], _inside(position, x.shape[at]), *index[at + 1 :])
        return _zero_if_empty(element, (x.shape[at],))


def is_listed(node: Node, value: Value) -> bool:
    """Whether an operand is indices that a kernel knows without reading them."""
    return isinstance(node.op, Gather) and value == node.inputs[1] and _repeats(value, _extent(node)) > 1


def _extent(gather: Node) -> Dim:
    assert isinstance(gather.op, Gather)
    return gather.inputs[0].shape[gather.op.axis % gather.inputs[0].rank]


def _repeats(indices: Value, extent: Dim) -> int:
    """How often indices list every position of an axis, one after the other; 0 where they are others, or nobody knows.
    They are constants, or positions divided by a number."""
    if isinstance(indices.node.op, Div):
        positions, by = indices.node.inputs[0], indices.node.inputs[1].constant
        if not isinstance(positions.node.op, Iota) or by is None or by.size != 1 or indices.rank != 1:
            return 0
        count = int(by.reshape(-1)[0])
        return count if count > 0 and indices.shape == (dims.mul(extent, count),) else 0
    array = indices.constant
    if array is None or array.ndim != 1 or not isinstance(extent, int) or extent == 0 or array.size % extent:
        return 0
    times: int = array.size // extent
    return times if bool((array.reshape(extent, times) == np.arange(extent)[:, None]).all()) else 0


def _known_inside(indices: Value, extent: Dim) -> bool:
    """Whether these are constants that need no check."""
    array = indices.constant
    if array is None or not isinstance(extent, int) or array.size == 0:
        return False
    return bool(array.min() >= 0 and array.max() < extent)


def _inside(position: Expr, extent: Dim) -> Expr:
    """A position from data as an index: counted from the back if negative, clamped."""
    last = dim_value(dims.add(extent, -1))
    if position.dtype is dtypes.u64:  # the upper half of its numbers is negative as an i64
        position = ex.apply("min", position, ex.cast(last, dtypes.u64))
    wide = ex.cast(position, dtypes.i64)
    if position.dtype.kind == "int":
        wide = ex.select(ex.apply("lt", wide, ZERO), wide + dim_value(extent), wide)
    return ex.apply("max", ex.apply("min", wide, last), ZERO)


def _zero_if_empty(element: Expr, extents: Sequence[Dim]) -> Expr:
    """The element; 0, and no load, where one of the axes that it was taken from is empty."""
    open_ = [d for d in extents if not isinstance(d, int) or d == 0]
    if not open_:
        return element
    some = ex.apply("lt", ZERO, dim_value(dims.product(open_)))
    return ex.select(some, guarded(element, some), ex.const(0, element.dtype))


def guarded(root: Expr, guard: Expr) -> Expr:
    """The expression with every load done only where the guard holds."""

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind != "load":
            return None
        access = node.attr
        both = ex.apply("and", guard, args[0]) if access.guarded else guard
        others = args[1:] if access.guarded else args
        return load(access.slot, Linear(access.const, access.axes, tuple(zip(others, access.scales))), node.dtype, both)

    return ex.rewrite(root, rule)


def is_same_place(shape: Shape, a: Index, b: Index) -> bool:
    """Whether two indices are of one element: along axes of 1 there is only one. A row's index may have axes more than
    its result, which drops those that were reduced."""
    if len(shape) != len(a):
        return a == b
    return all(d == 1 or mine is other for d, mine, other in zip(shape, a, b))


def operand_index(shape: Shape, index: Index) -> Index:
    """The index into a broadcast operand: aligned at the right, 0 along axes of 1."""
    lead = len(index) - len(shape)
    return tuple(ZERO if d == 1 else index[lead + i] for i, d in enumerate(shape))


def reshaped_index(shape: Shape, index: Index, old: Shape) -> Index:
    """The index into the operand of a reshape: axis for axis where only 1s come and go, else through the flat one."""
    kept = [part for part, d in zip(index, shape) if d != 1]
    if [d for d in shape if d != 1] == [d for d in old if d != 1]:
        parts = iter(kept)
        return tuple(ZERO if d == 1 else next(parts) for d in old)
    rest = index_of(place(index, contiguous(shape)))
    result = []
    for position, stride in enumerate(contiguous(old)):
        digit = rest if stride == 1 else rest / dim_value(stride)
        result.append(digit if position == 0 else ex.apply("rem", digit, dim_value(old[position])))
    return tuple(result)


def plus(a: Expr, b: Expr) -> Expr:
    """a + b with the linear parts put together."""
    return index_of(linear(a).plus(linear(b)))


def times(a: Expr, factor: int) -> Expr:
    return index_of(linear(a).times(factor))
