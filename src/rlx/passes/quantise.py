"""Products of f32 with weights become products of bytes, `precision="int8"`, or of floats of 8 bits, `precision="f8"`.

Unlike other passes this one changes what a graph computes, on purpose. It runs before a graph is compiled
(`runtime.quantised`), so that every device gets the same integers and gives the same numbers, but for what it has in 16
bits between them.

A weight is i8, symmetric, with a scale for each output channel: max |w| / 127. It depends on params alone, so it is
worked out when weights are set, and these can be swapped as before. The other operand is u8 with a zero point, because
u8 by i8 is what processors multiply (`codegen.simd.microkernels`): i8 would have its sign bits turned first. What a
zero point adds is a sum over a column of the weight, which is worked out once too. Scale and zero point come from

    a range    of calibration, one for all elements: they are constants of the graph. Channels that the product sums
               over may have parts of it; what they leave out the weight is multiplied by (`runtime.balance`)
    the data   where there is none. Each row of a product has its own, and each image of a convolution its own scale,
               with the zero point 128, or 0 for what is never negative: no row hangs on others

The sum is exact, becomes f32, and is multiplied by both scales. Biases, activations and the next quantisation are
elementwise and join the product's kernel.

A channel whose weight has an inf or a NaN gives inf or NaN, and so does a row with one that has no calibrated range.
Where there is a range, numbers beyond it count as its ends, and NaN as its low end.

Of floats of 8 bits (`FLOATS`) both sides are f8e4m3, whose steps are of each number's own size: there are no zero
points, and channels need no parts of a range. The greatest magnitude of a range, a row or a weight's channel becomes
448, the greatest number of the dtype. Sums are of f32. A row with an inf or a NaN gives NaN, with a range or without;
other numbers beyond a range count as its ends. Convolutions stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.literal import Array
from rlx.ir.op import Constant, Op, Param
from rlx.ops import build
from rlx.ops.activation import Relu, Sigmoid
from rlx.ops.convolution import Conv, ReduceWindow
from rlx.ops.elementwise import Abs, Add, Clamp, Maximum
from rlx.ops.linalg import DotGeneral, Matmul
from rlx.ops.shape import BroadcastTo, Concat, Pad, Reshape, Slice, Transpose
from rlx.ops.transcendental import Exp
from rlx.passes.driver import Context, Pass, Rebuild
from rlx.records import dataclass

LEAST_DEPTH = 16
"""Terms of a sum below which scaling its result costs what bytes save."""
LEAST_COLUMNS = 16
"""Results of an operand's element below which making a byte of it costs what bytes save."""
LEVELS = 255
"""Steps between the ends of a range."""
LEAST = 2.0**-100
"""The least magnitude that has a scale of its own, far above where scales or their inverses are subnormal."""
MAX_DEPTH = 16
"""Nodes behind a value that are looked at for its sign."""


@dataclass(frozen=True)
class Format:
    """What operands of products become, `left` and `right`, and the greatest number of a `right` one."""

    left: DType
    right: DType
    largest: float

    @property
    def is_integer(self) -> bool:
        """Whether numbers are whole numbers of steps, around a zero point on the left."""
        return self.left.is_integer


BYTES = Format(dtypes.u8, dtypes.i8, 127.0)
FLOATS = Format(dtypes.f8e4m3, dtypes.f8e4m3, 448.0)
FORMATS = {"int8": BYTES, "f8": FLOATS}
"""By their names as precisions."""


@dataclass(frozen=True)
class Range:
    """What the elements of an operand lie between; 0 is among it, as it has to be exact.

    parts  of that for each channel that a product sums over, 1 for the widest; empty where each may have all of it
    """

    low: float
    high: float
    parts: tuple[float, ...] = ()

    @property
    def scale(self) -> float:
        """Of a step."""
        return max((self.high - self.low) / LEVELS, LEAST)

    @property
    def zero(self) -> int:
        """The byte that stands for 0."""
        return min(max(round(-self.low / self.scale), 0), LEVELS)

    @property
    def magnitude(self) -> float:
        """The greatest."""
        return max(-self.low, self.high, LEAST)


@dataclass(frozen=True)
class Narrow:
    """An operand as u8 or f8e4m3. Scale and zero point, which floats have none of, are of all of it, or have an axis of
    1 where the product sums. `parts` of the scale are those of channels, in a shape that goes with the operand's; the
    weight is multiplied by them."""

    values: Value
    scale: Value | float
    zero: Value | None = None
    parts: Value | None = None


Known = dict[tuple[Value, int | None, Range | None], Narrow]


class Quantise(Pass):
    """Products and convolutions with weights in bytes, or products in another format. `ranges` are those of operands,
    by the names of the nodes of the outermost graph that multiply them."""

    name = "quantise"
    outermost = True

    def __init__(self, ranges: Mapping[str, Range] | None = None, to: Format = BYTES) -> None:
        self.ranges = dict(ranges or {})
        self.to = to

    def run(self, graph: Graph, context: Context) -> Graph:
        takes = {id(node) for node in products(graph, self.to)}
        within = Quantise(to=self.to)
        bodies = {id(node): tuple(within.run(body, context) for body in node.regions) for node in graph.nodes}
        changed = any(new is not old for n in graph.nodes for new, old in zip(bodies[id(n)], n.regions))
        if not takes and not changed:
            return graph
        rebuild = Rebuild(graph)
        known: Known = {}
        carried = self._carried(graph, takes) if context.enabled(self.name, "convolution") else {}
        for node in graph.nodes:
            first = len(rebuild.new.nodes)
            if id(node) in takes and self._wanted(node, context):
                x, w = (rebuild[value] for value in node.inputs)
                rebuild.replace(node, _product(node, x, w, self.ranges.get(node.name), known, self.to), first=first)
            elif not carried.keys().isdisjoint(node.inputs) and context.spend(self.name, "sum", node):
                a, b = (_carried_sum(v, rebuild, carried, known) for v in node.inputs)
                rebuild.replace(node, a + b, first=first)
            else:
                rebuild.keep(node, bodies[id(node)] or None)
        return rebuild.finish()

    def _wanted(self, node: Node, context: Context) -> bool:
        if isinstance(node.op, Conv):
            return context.spend(self.name, "convolution", node)
        return context.spend(self.name, "product", node)

    def _carried(self, graph: Graph, takes: Container[int]) -> dict[Value, Range]:
        """What residual nets carry past convolutions behind a relu, with its range: nothing takes it but convolutions,
        which have it in bytes, and additions. In bytes it is a quarter of what memory has to bring. What has a sign is
        carried in floats: nets without a relu there (MobileNet, transformers) lose half of their digits by it."""
        found: dict[Value, Range] = {}
        ends = set(graph.outputs.values())
        for value in dict.fromkeys(n.inputs[0] for n in graph.nodes if id(n) in takes and isinstance(n.op, Conv)):
            users = graph.uses(value)
            ranges = {self.ranges.get(n.name) for n in users if id(n) in takes}
            of = next(iter(ranges))
            if (
                len(ranges) == 1
                and of
                and value not in ends
                and all(id(n) in takes or type(n.op) is Add for n in users)
            ):
                found[value] = of
        added = (value for value in found if any(type(n.op) is Add for n in graph.uses(value)))
        return {value: found[value] for value in added if _is_never_negative(value)}


def products(graph: Graph, to: Format = BYTES) -> Iterator[Node]:
    """The products that become such of bytes, or of another format: of f32, by a weight of known dims that is worth it.
    Those of regions are not among them."""
    fixed: set[Value] = set()
    for node in graph.nodes:
        if isinstance(node.op, (Param, Constant)) or (
            node.inputs and not node.regions and all(value in fixed for value in node.inputs)
        ):
            fixed.update(node.outputs)
        elif _has_form(node, to) and node.inputs[1] in fixed and node.inputs[0] not in fixed:
            yield node


def channels_of(node: Node) -> tuple[int, ...]:
    """Axes of a product's operand that are the channels it sums over."""
    x = node.inputs[0]
    if isinstance(node.op, Conv):
        return (1,)
    return tuple(range(x.rank - len(_axes_of(node.op, node.inputs[1])[0]), x.rank))


def by_channels(node: Node, weight: Array) -> Array:
    """The weight of a product as [columns, taps, channels]."""
    if isinstance(node.op, Conv):
        return np.moveaxis(weight.reshape(*weight.shape[:2], -1), 1, 2)
    depth, columns = _axes_of(node.op, node.inputs[1])
    terms = math.prod(weight.shape[axis] for axis in depth)
    return weight.transpose(*columns, *depth).reshape(-1, 1, terms)


def _has_form(node: Node, to: Format) -> bool:
    op = node.op
    if not isinstance(op, (Matmul, DotGeneral, Conv) if to.is_integer else (Matmul, DotGeneral)):
        return False
    x, w = node.inputs
    if x.dtype is not dtypes.f32 or w.dtype is not dtypes.f32 or not w.type.is_static:
        return False
    if isinstance(op, Conv):
        return op.groups == 1 and not op.channels_last and _is_worth(w.shape[1:], w.shape[:1])
    if isinstance(op, Matmul):
        return w.rank == 2 and _is_worth(w.shape[:1], w.shape[1:])
    inner = tuple(axis % x.rank for axis in op.lhs_contract)
    if op.lhs_batch or inner != tuple(range(x.rank - len(inner), x.rank)):
        return False
    depth, columns = _axes_of(op, w)
    return _is_worth([w.shape[axis] for axis in depth], [w.shape[axis] for axis in columns])


def _axes_of(op: Op, w: Value) -> tuple[list[int], list[int]]:
    """Axes of a weight that the product sums over, and the others."""
    depth = [axis % w.rank for axis in op.rhs_contract] if isinstance(op, DotGeneral) else [0]
    return depth, [axis for axis in range(w.rank) if axis not in depth]


def _is_worth(depth: Sequence[Dim], columns: Sequence[Dim]) -> bool:
    return _count(depth) >= LEAST_DEPTH and _count(columns) >= LEAST_COLUMNS


def _count(extents: Sequence[Dim]) -> int:
    return math.prod(extent for extent in extents if isinstance(extent, int))


def _product(node: Node, x: Value, w: Value, known_range: Range | None, known: Known, to: Format) -> Value:
    """The node's result by way of another format."""
    op = node.op
    if isinstance(op, Conv):
        return _convolution(op, x, w, known_range, known)
    depth, columns = _axes_of(op, w)
    matrix = w if depth == [0] and columns == [1] else w.transpose(*depth, *columns)
    terms = _count([w.shape[axis] for axis in depth])
    rows = (*(x.shape[: x.rank - len(depth)] or (1,)), terms)
    left = _narrow(x if x.shape == rows else x.reshape(rows), -1, known_range, known, to)
    matrix = matrix if matrix.rank == 2 else matrix.reshape(terms, -1)
    values, scale = _weight(matrix if left.parts is None else matrix * left.parts.reshape(-1, 1), (0,), to)
    if left.zero is None:
        total = build.float8_matmul(left.values, values)
    else:
        total = build.integer_matmul(left.values, values, left.zero, x.graph.constant(0, to.right))
    result = _scaled(total, left.scale, scale.reshape(-1))
    return result if result.shape == node.types[0].shape else result.reshape(node.types[0].shape)


def _convolution(op: Conv, x: Value, w: Value, known_range: Range | None, known: Known) -> Value:
    left = _narrow(x, None, known_range, known, BYTES)
    values, scale = _weight(w if left.parts is None else w * left.parts, tuple(range(1, w.rank)), BYTES)
    assert left.zero is not None  # of bytes
    total = build.integer_conv(
        left.values, values, left.zero, x.graph.constant(0, dtypes.i8),
        strides=op.strides, dilations=op.dilations, low=op.low, high=op.high, groups=1,
    )  # fmt: skip
    return _scaled(total, left.scale, scale.reshape(-1, *([1] * (w.rank - 2))))


def _scaled(total: Value, left: Value | float, right: Value) -> Value:
    """A sum as f32. Known scales are multiplied beforehand."""
    wide = total if total.dtype is dtypes.f32 else total.cast(dtypes.f32)
    return wide * (right * left) if isinstance(left, float) else wide * right * left


def _weight(w: Value, axes: tuple[int, ...], to: Format) -> tuple[Value, Value]:
    """What of a weight the product takes, and the scales of channels, with axes of 1 where a channel is."""
    most = build.reduce_max(build.abs(w), axes=axes, keepdims=True)
    scale = build.maximum(most, LEAST) / to.largest
    steps = w / scale
    return (build.round(steps) if to.is_integer else steps).cast(to.right), scale


def _narrow(x: Value, axis: int | None, known_range: Range | None, known: Known, to: Format) -> Narrow:
    """An operand in a format: by a range, or by its rows along `axis`, or by its images where that is None."""
    key = (x, axis, known_range)
    if key not in known:
        if not to.is_integer:
            known[key] = _floats_by_rows(x, to) if known_range is None else _floats_by_range(x, known_range, to)
        elif known_range is not None:
            known[key] = _by_range(x, axis, known_range)
        else:
            known[key] = _by_images(x) if axis is None else _by_rows(x)
    return known[key]


def _floats_by_rows(x: Value, to: Format) -> Narrow:
    """Each row of the last axis by its own greatest magnitude. Where that is inf, the row is NaN, as inf times 0 is."""
    magnitudes = x if _is_never_negative(x) else build.abs(x)
    most = build.maximum(build.reduce_max(magnitudes, axes=(x.rank - 1,), keepdims=True), LEAST)
    return Narrow((x * (to.largest / most)).cast(to.left), most * (1.0 / to.largest))


def _floats_by_range(x: Value, of: Range, to: Format) -> Narrow:
    scale = float(np.float32(of.magnitude / to.largest))
    steps = build.clamp(x * (1.0 / scale), -to.largest, to.largest)
    return Narrow(build.select(build.is_inf(x), math.nan, steps).cast(to.left), scale)


def _by_range(x: Value, axis: int | None, of: Range) -> Narrow:
    scale = float(np.float32(of.scale))
    if _is_greatest(x, axis, of):  # the greatest byte is of the greatest number
        inner = _by_range(x.node.inputs[0], axis, of)
        pooled = x.graph.add(x.op, inner.values)
        assert isinstance(pooled, Value)
        return replace(inner, values=pooled)
    zero = x.graph.constant(of.zero, dtypes.u8)
    if not of.parts:
        return Narrow(_rounded(x * (1.0 / scale), of.zero), scale, zero)
    parts = np.array(of.parts, np.float32).reshape(-1, *([1] * (x.rank - 2 if axis is None else 0)))
    steps = x * x.graph.constant((1.0 / (scale * parts)).astype(np.float32))
    return Narrow(_rounded(steps, of.zero), scale, zero, x.graph.constant(parts))


def _is_greatest(x: Value, axis: int | None, of: Range) -> bool:
    """Whether x is the greatest of each window, all of whose elements have the same step."""
    if not isinstance(x.op, ReduceWindow) or x.op.combine != "max":
        return False
    windows = (*[1] * (x.rank - len(x.op.window)), *x.op.window)
    inner = x.node.inputs[0]
    return not of.parts or (axis is None and windows[1] == 1 and inner.shape[1] == x.shape[1])


def _by_rows(x: Value) -> Narrow:
    """Each row of the last axis between its own ends."""
    if _is_never_negative(x):
        return _by_greatest(x, (x.rank - 1,), 0)
    low = build.minimum(build.reduce_min(x, axes=(x.rank - 1,), keepdims=True), 0.0)
    high = build.maximum(build.reduce_max(x, axes=(x.rank - 1,), keepdims=True), 0.0)
    scale = build.maximum(high * (1.0 / LEVELS) - low * (1.0 / LEVELS), LEAST)
    steps = 1.0 / scale
    zero = build.round(-low * steps)
    return Narrow((build.round(x * steps) + zero).cast(dtypes.u8), scale, zero.cast(dtypes.u8))


def _by_images(x: Value) -> Narrow:
    """Each image between 0 and its greatest number, or as far below 0, as all share the zero point that is around
    them."""
    return _by_greatest(x, tuple(range(1, x.rank)), 0 if _is_never_negative(x) else LEVELS // 2 + 1)


def _by_greatest(x: Value, axes: tuple[int, ...], zero: int) -> Narrow:
    most = build.maximum(build.reduce_max(build.abs(x) if zero else x, axes=axes, keepdims=True), LEAST)
    steps = float(LEVELS - zero)
    return Narrow(_rounded(x * (steps / most), zero), most * (1.0 / steps), x.graph.constant(zero, dtypes.u8))


def _carried_sum(value: Value, rebuild: Rebuild, carried: Mapping[Value, Range], known: Known) -> Value:
    """An operand of an addition, by way of the bytes that convolutions have it in."""
    of = carried.get(value)
    if of is None:
        return rebuild[value]
    taken = _narrow(rebuild[value], None, of, known, BYTES)
    wide = taken.values.cast(dtypes.f32)
    steps = wide - float(of.zero) if of.zero else wide
    return steps * taken.scale if taken.parts is None else steps * (taken.parts * taken.scale)


def _rounded(steps: Value, zero: int) -> Value:
    """u8, which saturates, of numbers of steps from the zero point."""
    whole = build.round(steps)
    return (whole + float(zero) if zero else whole).cast(dtypes.u8)


def _is_never_negative(x: Value, depth: int = 0) -> bool:
    """Whether no element can be below 0, as far as the nodes behind it tell."""
    if x.constant is not None:
        return bool(np.all(x.constant >= 0))
    if depth == MAX_DEPTH:
        return False

    def behind(*operands: Value) -> list[bool]:
        return [_is_never_negative(operand, depth + 1) for operand in operands]

    match x.op:
        case Relu() | Sigmoid() | Exp() | Abs():
            return True
        case Maximum():
            return any(behind(*x.node.inputs))
        case Clamp():
            return all(behind(x.node.inputs[1]))
        case Pad(value=value):
            return value >= 0 and all(behind(x.node.inputs[0]))
        case Reshape() | Transpose() | Slice() | BroadcastTo() | ReduceWindow() | Concat():
            return all(behind(*x.node.inputs))
    return False
