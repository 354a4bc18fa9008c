"""The possible values of integers in a graph: lower and upper bounds, as dims, as far as the nodes determine them."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.ir import dim as dims
from rlx.ir.dim import Bounds, Dim
from rlx.ir.graph import Value
from rlx.ir.op import Measured
from rlx.ops.cumulative import Cummax, Cummin
from rlx.ops.elementwise import Abs, Add, Cast, Clamp, Maximum, Minimum, Mod, Mul, Neg, Select, Sub
from rlx.ops.index import Gather, GatherElements, GatherNd, ScatterElements, ScatterNd
from rlx.ops.ordering import Argsort, Sort, TopK
from rlx.ops.precondition import Require
from rlx.ops.reduce import Argmax, Argmin, ReduceMax, ReduceMin
from rlx.ops.selection import Positions
from rlx.ops.shape import BroadcastTo, Concat, DimsTensor, Frames, Iota, Reshape, Slice, Transpose
from rlx.ops.writing import UpdateSlice
from rlx.records import dataclass

MAX_DEPTH = 64
MAX_TEXT = 256  # characters of a bound: longer ones are not computed


@dataclass(frozen=True)
class Interval:
    """low ≤ n ≤ high, for every element; None where nothing is known."""

    low: Dim | None = None
    high: Dim | None = None

    def __neg__(self) -> Interval:
        return Interval(_times(self.high, -1), _times(self.low, -1))

    def __add__(self, other: Interval) -> Interval:
        return Interval(_sum(self.low, other.low), _sum(self.high, other.high))

    def joined(self, other: Interval) -> Interval:
        """That of elements of both."""
        low = None if self.low is None or other.low is None else dims.minimum(self.low, other.low)
        high = None if self.high is None or other.high is None else dims.maximum(self.high, other.high)
        return Interval(low, high)

    def inside(self, low: Dim, high: Dim, bounds: Bounds) -> bool:
        """Whether all elements provably lie in [low, high)."""
        if self.low is None or self.high is None:
            return False
        above = dims.bounds(dims.add(self.low, dims.mul(low, -1)), bounds)[0]
        below = dims.bounds(dims.add(high, dims.add(dims.mul(self.high, -1), -1)), bounds)[0]
        return above >= 0 and below >= 0


NOTHING = Interval()


def _sum(a: Dim | None, b: Dim | None) -> Dim | None:
    return None if a is None or b is None else dims.add(a, b)


def _times(a: Dim | None, factor: int) -> Dim | None:
    return None if a is None else dims.mul(a, factor)


class Intervals:
    """The intervals of one graph's values. `inputs` are those of its inputs, where they are known."""

    def __init__(self, bounds: Bounds, inputs: Mapping[Value, Interval] | None = None) -> None:
        self.bounds = bounds
        self._found: dict[Value, Interval] = dict(inputs or {})

    def of(self, value: Value, depth: int = 0) -> Interval:
        """That of an integer or bool value."""
        if value not in self._found:
            interval = self._of(value, depth) if depth < MAX_DEPTH else NOTHING
            narrow = _of_dtype(value)
            interval = _fitting(interval, narrow)
            low = narrow.low if interval.low is None else interval.low
            self._found[value] = Interval(low, narrow.high if interval.high is None else interval.high)
        return self._found[value]

    def of_component(self, value: Value, place: int) -> Interval:
        """That of one place along the last axis."""
        array = value.constant
        if array is not None and array.size:
            part = array[..., place]
            return Interval(int(part.min()), int(part.max()))
        match value.op:
            case Transpose(permutation=(1, 0)) if isinstance(value.node.inputs[0].op, Positions):
                (flags,) = value.node.inputs[0].node.inputs
                return Interval(0, dims.add(flags.shape[place], -1))
            case Concat(axis=axis) if axis in (-1, value.rank - 1):
                for operand in value.node.inputs:
                    width = operand.shape[-1]
                    if not isinstance(width, int):
                        break
                    if place < width:
                        return self.of_component(operand, place)
                    place -= width
        return self.of(value)

    def _of(self, value: Value, depth: int) -> Interval:
        array = value.constant
        if array is not None:
            if array.dtype.kind not in "iub" or array.size == 0:
                return NOTHING
            return Interval(int(array.min()), int(array.max()))
        op, node = value.op, value.node
        match op:
            case Iota():
                return Interval(0, dims.add(op.shape[op.axis], -1))
            case DimsTensor():
                interval = Interval(op.values[0], op.values[0]) if op.values else NOTHING
                for dim in op.values[1:]:
                    interval = interval.joined(Interval(dim, dim))
                return interval
            case Argmax() | Argmin() | Argsort() | TopK():
                if value.index != isinstance(op, TopK):
                    return NOTHING
                return Interval(0, dims.add(node.inputs[0].shape[op.axis], -1))
            case Positions():
                return Interval(0, dims.maximum(dims.add(node.inputs[0].type.size, -1), 0))
            case Measured():
                return Interval(op.lower, op.upper)
        parts = [self.of(v, depth + 1) if v.dtype.kind in ("int", "uint", "bool") else NOTHING for v in node.inputs]
        return self._of_parts(value, parts)

    def _of_parts(self, value: Value, parts: list[Interval]) -> Interval:  # noqa: C901 - a row for each op
        if isinstance(value.op, (Add, Sub, Mul, Neg, Abs)) and any(map(_may_wrap, parts)):
            return NOTHING
        match value.op:
            case (
                Reshape() | Transpose() | BroadcastTo() | Slice() | Frames() | Gather() | GatherElements() | GatherNd()
                | Require() | Sort() | ReduceMax() | ReduceMin() | Cummax() | Cummin()
            ):  # fmt: skip
                return parts[0]
            case Concat():
                interval = parts[0]
                for part in parts[1:]:
                    interval = interval.joined(part)
                return interval
            case Select():
                return parts[1].joined(parts[2])
            case ScatterElements(combine=None) | ScatterNd(combine=None):
                return parts[0].joined(parts[2])
            case UpdateSlice():
                return parts[0].joined(parts[1])
            case Cast():
                return parts[0] if value.node.inputs[0].dtype.kind in ("int", "uint", "bool") else NOTHING
            case Add():
                return parts[0] + parts[1]
            case Sub():
                return parts[0] + -parts[1]
            case Neg():
                return -parts[0]
            case Abs():
                return self._absolute(parts[0])
            case Mul():
                return self._product(*parts)
            case Minimum():
                return _least(*parts)
            case Maximum():
                return -_least(*(-part for part in parts))
            case Clamp():
                return -_least(-_least(parts[0], parts[2]), -parts[1])
            case Mod():
                divisor = parts[1]
                positive = divisor.low is not None and dims.bounds(divisor.low, self.bounds)[0] > 0
                return Interval(0, _sum(divisor.high, -1)) if positive else NOTHING
        return NOTHING

    def _absolute(self, x: Interval) -> Interval:
        if x.low is not None and dims.bounds(x.low, self.bounds)[0] >= 0:
            return x
        greatest = None if x.low is None or x.high is None else dims.maximum(x.high, dims.mul(x.low, -1))
        return Interval(0, greatest)

    def _product(self, x: Interval, y: Interval) -> Interval:
        lows = [None if part.low is None else dims.bounds(part.low, self.bounds)[0] for part in (x, y)]
        if any(low is None or low < 0 for low in lows):
            return NOTHING
        assert x.low is not None and y.low is not None  # both are known not to be negative
        high = None if x.high is None or y.high is None else dims.mul(x.high, y.high)
        return Interval(dims.mul(x.low, y.low), high)


def _least(x: Interval, y: Interval) -> Interval:
    """Of the lesser of two numbers."""
    low = None if x.low is None or y.low is None else dims.minimum(x.low, y.low)
    if x.high is None or y.high is None:
        return Interval(low, y.high if x.high is None else x.high)
    return Interval(low, dims.minimum(x.high, y.high))


def _of_dtype(value: Value) -> Interval:
    """What narrow integers and truths can be at all."""
    of = value.dtype
    if of.kind == "bool":
        return Interval(0, 1)
    if of.kind == "uint":
        return Interval(0, (1 << of.bits) - 1)
    return Interval(-(1 << (of.bits - 1)), (1 << (of.bits - 1)) - 1) if of.kind == "int" else NOTHING


def _may_wrap(x: Interval) -> bool:
    """Whether what is reckoned with such numbers may be beyond 64 bits."""
    return any(end is None or (isinstance(end, int) and abs(end) >= 1 << 62) for end in (x.low, x.high))


def _fitting(interval: Interval, narrow: Interval) -> Interval:
    """What is known if the value's dtype can hold it: integers wrap. Ends that are too long to reckon with are not."""
    ends = [(interval.low, narrow.low), (interval.high, narrow.high)]
    for end, _ in ends:
        if isinstance(end, int) and isinstance(narrow.low, int) and isinstance(narrow.high, int):
            if not narrow.low <= end <= narrow.high:
                return NOTHING
        elif end is not None and len(str(end)) > MAX_TEXT:
            return NOTHING
    return interval


def with_elements(value: Value, bounds: Bounds) -> Bounds:
    """The bounds where the value has an element: what is said of its elements need not hold if it has none."""
    named = [name for dim in value.shape if not isinstance(dim, int) for name in dims.symbols(dim) if str(dim) == name]
    return {
        **bounds,
        **{name: (max(bounds.get(name, (0, None))[0], 1), bounds.get(name, (0, None))[1]) for name in named},
    }
