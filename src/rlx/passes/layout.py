"""Channels last: convolutions run on [N, spatial..., C], where the columns and channels of a window lie side by side.

Every convolution gets a transpose before and behind it; what follows (elementwise ops, pads, windows,
concatenations, …) is done in the same order of axes, so that between convolutions no transpose is left. They are made
only where something asks for the old order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Constant, Elementwise, Op, Param
from rlx.ops.build import conv, dot_general, pad
from rlx.ops.convolution import Conv, Dilate, ReduceWindow
from rlx.ops.index import Gather
from rlx.ops.reduce import Reduction
from rlx.ops.shape import BroadcastTo, Concat, Pad, Reshape, Slice, Transpose
from rlx.passes.driver import Context, Pass, Rebuild

FEW_CHANNELS = 16
"""Fewer than a vector holds."""
PIECE_BYTES = 16
"""What GPUs take at once."""


class ChannelsLast(Pass):
    """Turns convolutions, and what lies between them. Those of dtypes in `pads` keep their pads; else a pad of its own
    stands before each."""

    name = "layout"

    def __init__(self, pads: Collection[DType] = ()) -> None:
        self.pads = pads

    def run(self, graph: Graph, context: Context) -> Graph:
        if not any(isinstance(n.op, Conv) and not n.op.channels_last for n in graph.nodes):
            return graph
        return _Walk(graph, context, self.pads).run()


def to_last(rank: int) -> tuple[int, ...]:
    """The permutation from channels first to channels last."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """The permutation from channels last to channels first."""
    return (0, rank - 1, *range(1, rank - 1))


def _turned(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Attributes per axis in the new order of axes."""
    return tuple(values[i] for i in to_last(len(values)))


class _Walk:
    def __init__(self, graph: Graph, context: Context, pads: Collection[DType]) -> None:
        self.graph = graph
        self.context = context
        self.pads = pads
        self.rebuild = Rebuild(graph)
        self.inner: dict[Value, Value] = {}  # value in the old order of axes → the same with channels last
        self.static: set[Value] = set()

    def run(self) -> Graph:
        for node in self.graph.nodes:
            operands = [self.rebuild[v] for v in node.inputs]
            first = len(self.rebuild.new.nodes)
            result = self._made(node, operands)
            if result is None:
                self.rebuild.keep(node)
            else:
                outer = _in_order(result, to_first(result.rank))
                self.rebuild.replace(node, outer, first=first)
                self.inner[outer] = result
            self._note_static(node)
        return self.rebuild.finish()

    def _note_static(self, node: Node) -> None:
        fixed = isinstance(node.op, (Param, Constant)) or (
            bool(node.inputs) and all(self.rebuild[v] in self.static for v in node.inputs)
        )
        if fixed:
            self.static.update(self.rebuild[v] for v in node.outputs)

    def _made(self, node: Node, operands: list[Value]) -> Value | None:
        """The node's result with channels last, or None to leave it."""
        if len(node.types) != 1 or node.types[0].rank < 3:
            return None
        if isinstance(node.op, Transpose) and node.op.permutation == to_first(node.types[0].rank):
            return operands[0]
        if isinstance(node.op, Conv) and not node.op.channels_last:
            if not self.context.spend("layout", "convolution", node):
                return None
            return _convolution(node.op, self._last(operands[0]), operands[1], operands[0].dtype in self.pads)
        if not any(v in self.inner for v in operands):
            return None
        result = self._follower(node, operands)
        if result is not None and not self.context.spend("layout", "follow", node):
            return None
        return result

    def _follower(self, node: Node, operands: list[Value]) -> Value | None:
        op, rank = node.op, node.types[0].rank
        match op:
            case Elementwise():
                return self._elementwise(op, operands, rank)
            case Concat(axis=axis):
                at = to_first(rank)[axis % rank]
                return self._add(Concat(at), *(self._last(v) for v in operands))
            case Gather(axis=axis) if operands[1].rank == 1 and operands[0] in self.inner:
                return self._add(Gather(to_first(rank)[axis % rank]), self._last(operands[0]), operands[1])
        if operands[0] not in self.inner or operands[0].rank != rank:
            return None
        follower = self._turned_op(op, rank)
        return None if follower is None else self._add(follower, self._last(operands[0]))

    def _turned_op(self, op: Op, rank: int) -> Op | None:
        """Ops of one operand with an attribute entry per axis."""
        match op:
            case Pad(low=low, high=high):
                return dataclasses.replace(op, low=_turned(low), high=_turned(high))
            case Dilate(steps=steps):
                return dataclasses.replace(op, steps=_turned(steps))
            case Slice(starts=starts, stops=stops, steps=steps):
                return dataclasses.replace(op, starts=_turned(starts), stops=_turned(stops), steps=_turned(steps))
            case BroadcastTo(shape=shape) if len(shape) == rank:
                return dataclasses.replace(op, shape=_turned(shape))
            case ReduceWindow() if len(op.window) == rank - 2:
                sizes = ((*op.window, 1), (*op.strides, 1), (*op.dilations, 1), (*op.low, 0), (*op.high, 0))
                return ReduceWindow(op.combine, *sizes)
            case Reduction(axes=axes, keepdims=True):
                reduce_type: Any = type(op)
                reduction: Op = reduce_type(axes=tuple(to_first(rank)[a % rank] for a in axes), keepdims=True)
                return reduction
        return None

    def _elementwise(self, op: Elementwise, operands: list[Value], rank: int) -> Value | None:
        last = []
        for value in operands:
            if value.rank == 0:
                last.append(value)
                continue
            if value.rank < rank:
                value = value.reshape(*([1] * (rank - value.rank)), *value.shape)
            elif value not in self.inner and not self._is_cheap(value):
                return None
            last.append(self._last(value))
        return self._add(op, *last)

    def _is_cheap(self, value: Value) -> bool:
        """Whether a transpose costs nothing per run: the value is static, or only axes of 1 move."""
        return value in self.static or _moves_only_ones(value, to_last(value.rank))

    def _last(self, value: Value) -> Value:
        """A value with channels last; what goes around it goes around what is turned."""
        inner = self.inner.get(value)
        if inner is not None:
            return inner
        op = value.op
        if isinstance(op, Pad) and all(p == 0 for p in (*op.low[:2], *op.high[:1])):
            x = self._last(value.node.inputs[0])
            if op.high[1] != 0:
                x = pad(x, low=(0,) * x.rank, high=(*([0] * (x.rank - 1)), op.high[1]), value=op.value)
            return _padded(x, op.low[2:], op.high[2:], op.value)
        return _in_order(value, to_last(value.rank))

    def _add(self, op: Op, *operands: Value) -> Value:
        result = self.rebuild.new.add(op, *operands)
        assert isinstance(result, Value)
        return result


def _moves_only_ones(value: Value, permutation: tuple[int, ...]) -> bool:
    """Whether a permutation keeps the order of all axes that are not 1."""
    order = [i for i in permutation if value.shape[i] != 1]
    return order == sorted(order)


def _in_order(value: Value, permutation: tuple[int, ...]) -> Value:
    """A value with its axes in another order. Where only axes of 1 move that is a reshape, at once of what the value is
    itself a reshape of."""
    if not _moves_only_ones(value, permutation):
        return value.transpose(*permutation)
    whole = value.node.inputs[0] if isinstance(value.op, Reshape) else value
    return whole.reshape(*(value.shape[i] for i in permutation))


def _convolution(op: Conv, x: Value, w: Value, keeps_pads: bool) -> Value:
    """A convolution on a turned operand; a window of one element is a matrix product."""
    rank = len(op.strides)
    low, high = op.low, op.high
    channels = _more_channels(op, x, w) if keeps_pads else 0
    if channels:
        added = channels - x.shape[-1]
        x = _widened(op, x, channels)
        low = high = (0,) * rank
    elif any(p != 0 for p in (*low, *high)) and not keeps_pads:
        x = _padded(x, low, high)
        low = high = (0,) * rank
    kernel = w.shape[2:]
    plain = op.groups == 1 and all(p == 0 for p in (*low, *high))
    single = all(k == 1 for k in kernel) and all(s == 1 for s in op.strides) and plain
    if single:
        columns = w.reshape(w.shape[0], w.shape[1])
        return dot_general(x, columns, lhs_contract=(x.rank - 1,), rhs_contract=(1,), sum_dtype=op.sum_dtype)
    weight = w.transpose(*range(2, 2 + rank), 1, 0)
    if channels:
        none = (0,) * rank
        weight = pad(weight, low=(*none, 0, 0), high=(*none, added, 0), value=0.0)
    return conv(
        x, weight, strides=op.strides, dilations=op.dilations, low=low, high=high, groups=op.groups, channels_last=True,
        sum_dtype=op.sum_dtype,
    )  # fmt: skip


def _more_channels(op: Conv, x: Value, w: Value) -> int:
    """How many channels pictures are to have, with their pads in one copy; 0 to leave them. Of few, those of a row of
    the window are neighbours then, and begin at multiples of 16 bytes; products of 16 bits also take rows that end with
    half of them. Of more, those that are no multiple of four are made whole pieces, which products take."""
    channels, pads = x.shape[-1], (*op.low, *op.high)
    known = all(isinstance(d, int) for d in (*w.shape[2:], *pads))
    if not isinstance(channels, int) or not known or op.groups != 1:
        return 0
    piece = PIECE_BYTES // x.dtype.itemsize
    if any(p < 0 for p in pads) or all(extent == 1 for extent in w.shape[2:]):
        return 0
    if channels >= piece:
        return 0 if channels % 4 == 0 else -(-channels // piece) * piece
    if op.dilations[-1] != 1 or w.shape[-1] == 1:
        return 0
    columns = x.shape[-2] + op.low[-1] + op.high[-1] if isinstance(x.shape[-2], int) else None
    if columns and all(extent * channels % piece == 0 for extent in (op.strides[-1], w.shape[-1], columns)):
        return channels
    half = piece // 2
    even = op.strides[-1] % 2 == 0 and columns is not None
    fits = x.dtype.bits == 16 and channels <= half and even and w.shape[-1] * half >= 2 * piece
    return half if fits else piece


def _widened(op: Conv, x: Value, channels: int) -> Value:
    """Pictures with more channels, and all pads around them."""
    high = list(op.high)
    if channels * x.dtype.itemsize < PIECE_BYTES:
        high[-1] += (x.shape[-2] + op.low[-1] + high[-1]) % 2
    wide: Value = pad(x, low=(0, *op.low, 0), high=(0, *high, channels - x.shape[-1]), value=0.0)
    return wide


def _padded(x: Value, low: tuple[Dim, ...], high: tuple[Dim, ...], value: float = 0.0) -> Value:
    """`value` around the spatial axes. Few channels are one axis with the columns, which fills vectors."""
    channels = x.shape[-1]
    if not isinstance(channels, int) or channels >= FEW_CHANNELS:
        return pad(x, low=(0, *low, 0), high=(0, *high, 0), value=value)
    rows = x.reshape(*x.shape[:-2], dims.mul(x.shape[-2], channels))
    before, behind = (0, *low[:-1], dims.mul(low[-1], channels)), (0, *high[:-1], dims.mul(high[-1], channels))
    space = [dims.add(d, dims.add(a, b)) for d, a, b in zip(x.shape[1:-1], low, high)]
    return pad(rows, low=before, high=behind, value=value).reshape(x.shape[0], *space, channels)
