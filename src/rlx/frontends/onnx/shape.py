"""Importer functions: shapes, and ops that move elements without computing anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.frontends.onnx import dynamic_shapes
from rlx.frontends.onnx.measuring import measure_all, number, vector
from rlx.frontends.onnx.model import dtype_of
from rlx.frontends.onnx.table import Known, OnnxNode, Operand, as_int, onnx_op
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Value
from rlx.ir.indexing import clamp_slice
from rlx.ops import build, shorthand
from rlx.ops.elementwise import Cast
from rlx.ops.shape import DimsTensor, Reshape

_FAR = 1 << 31  # slice ends at least this far are meant as "to the end"


@onnx_op("Shape")
def shape(node: OnnxNode, x: Operand) -> Operand:
    return node.knows(list(x.shape)[node.integer("start", None) : node.integer("end", None)])


@onnx_op("Size")
def size(node: OnnxNode, x: Operand) -> Operand:
    return node.knows(dims.product(x.shape))


@onnx_op("Constant")
def constant(node: OnnxNode) -> Operand:
    """Weights of models that keep them in nodes become params, small things constants."""
    array = node.tensor("value")
    if array is not None:
        return node.leaf(array)
    for name, dtype in (("value_float", "f4"), ("value_int", "i8")):
        if node.has(name):
            return node.leaf(np.array(node.real(name) if dtype == "f4" else node.integer(name), dtype))
    for name, dtype in (("value_floats", "f4"), ("value_ints", "i8")):
        if node.has(name):
            return node.leaf(np.array(node.reals(name) if dtype == "f4" else node.integers(name), dtype))
    raise node.unsupported("only constants of numbers are supported")


@onnx_op("Reshape", since=5)
def reshape(node: OnnxNode, x: Value, dims_operand: Operand) -> Value:
    """0 keeps a dim, -1 is worked out."""
    zero_stays = not node.flag("allowzero")
    if dims_operand.known is None:
        return dynamic_shapes.reshape(node, x, vector(dims_operand), zero_stays)
    target = list(dims_operand.known.reshape(-1))
    if zero_stays:
        if any(d == 0 and i >= x.rank for i, d in enumerate(target)):
            raise node.wrong(f"expected zeros for axes of {x.type} only, got the shape {target}")
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    return x.reshape(tuple(target))


@onnx_op("Flatten")
def flatten(node: OnnxNode, x: Value) -> Value:
    return shorthand.flatten(x, node.integer("axis", 1))


@onnx_op("Transpose")
def transpose(node: OnnxNode, x: Value) -> Value:
    order = node.integers("perm", None) or tuple(reversed(range(x.rank)))
    if sorted(order) != list(range(x.rank)):
        raise node.wrong(f"expected perm to be a permutation of {x.rank} axes, got {list(order)[:64]}")
    return x if order == tuple(range(x.rank)) else x.transpose(*order)


@onnx_op("Squeeze", since=13)
def squeeze(node: OnnxNode, x: Value, axes: Operand | None) -> Value:
    if axes is not None and axes.known is None:
        return dynamic_shapes.squeeze(node, x, vector(axes))
    return shorthand.squeeze(x, None if axes is None else node.axes(axes.known_or_fail, x.rank))


@onnx_op("Squeeze", until=12)
def squeeze_by_attribute(node: OnnxNode, x: Value) -> Value:
    axes = node.integers("axes", None)
    return shorthand.squeeze(x, None if axes is None else node.axes(axes, x.rank))


@onnx_op("Unsqueeze", since=13)
def unsqueeze(node: OnnxNode, x: Value, axes: Operand) -> Value:
    if axes.known is None:
        return dynamic_shapes.unsqueeze(node, x, vector(axes))
    return shorthand.expand_dims(x, node.axes(axes.known, x.rank + axes.known.size))


@onnx_op("Unsqueeze", until=12)
def unsqueeze_by_attribute(node: OnnxNode, x: Value) -> Value:
    axes = node.integers("axes")
    return shorthand.expand_dims(x, node.axes(axes, x.rank + len(axes)))


@onnx_op("Expand")
def expand(node: OnnxNode, x: Value, target_shape: Operand) -> Value:
    """Broadcast both ways: axes of 1 on either side take the other's dim."""
    if target_shape.known is None:
        return dynamic_shapes.expand(node, x, vector(target_shape))
    target = node.graph.broadcast(x.shape, tuple(target_shape.known.reshape(-1)))
    return x if target == x.shape else build.broadcast_to(x, shape=target)


@onnx_op("Concat")
def concat(node: OnnxNode, *parts: Value) -> Value:
    axis = node.axis(parts[0].rank)
    return parts[0] if len(parts) == 1 else build.concat(*parts, axis=axis)


@onnx_op("Split", since=13)
def split(node: OnnxNode, x: Value, sizes: Operand | None) -> Sequence[Value]:
    if sizes is not None and sizes.known is None:
        return dynamic_shapes.split(node, x, vector(sizes), node.axis(x.rank, 0))
    return _split(node, x, None if sizes is None else list(sizes.known_or_fail.reshape(-1)))


@onnx_op("Split", until=12)
def split_by_attribute(node: OnnxNode, x: Value) -> Sequence[Value]:
    return _split(node, x, node.integers("split", None))


def _split(node: OnnxNode, x: Value, sizes: Sequence[Dim] | None) -> Sequence[Value]:
    """Parts of the sizes given; else equal parts, the last one smaller if they do not come out even."""
    axis = node.axis(x.rank, 0)
    if sizes is None:
        count = node.integer("num_outputs", len(node.outputs))
        extent = x.shape[axis]
        whole = dims.exact_div(extent, count)
        part = whole if whole is not None else dims.ceildiv(extent, count)
        sizes = [part] * (count - 1) + [dims.add(extent, dims.mul(part, 1 - count))]
    if any(isinstance(s, int) and s < 0 for s in sizes):
        raise node.wrong(f"expected sizes that make up {x.shape[axis]}, got {list(sizes)}")
    return shorthand.split(x, sizes, axis)


@onnx_op("Slice", until=9)
def slice_by_attribute(node: OnnxNode, x: Value) -> Value:
    starts, ends = (np.array(node.integers(name), object) for name in ("starts", "ends"))
    axes = node.integers("axes", None)
    return _slice(node, x, starts, ends, None if axes is None else np.array(axes, object), None)


@onnx_op("Slice", since=10)
def slice_(
    node: OnnxNode, x: Value, starts: Operand, ends: Operand, axes: Operand | None, steps: Operand | None
) -> Value:
    """Python's slices; ends past the array are cut off."""
    known = [None if item is None else item.known for item in (starts, ends, axes, steps)]
    if any(item is not None and item.known is None for item in (starts, ends, axes, steps)):
        return dynamic_shapes.slice_(
            node, x, vector(starts), vector(ends), axes, None if steps is None else vector(steps)
        )
    return _slice(node, x, starts.known_or_fail, ends.known_or_fail, known[2], known[3])


def _slice(node: OnnxNode, x: Value, starts: Known, ends: Known, axes: Known | None, steps: Known | None) -> Value:
    which = node.axes(range(starts.size) if axes is None else axes, x.rank)
    if not starts.size == ends.size == len(which):
        raise node.wrong(f"expected as many starts as ends and axes, got {starts.size}, {ends.size}, {len(which)}")
    key: list[tuple[Dim, Dim, int]] = [(0, d, 1) for d in x.shape]
    for i, axis in enumerate(which):
        step = as_int(node, 1 if steps is None else steps[i], "a step")
        if step == 0:
            raise node.wrong("expected steps that are not zero, got 0")
        start, end = _near(starts[i], step > 0), _near(ends[i], step < 0)
        key[axis] = clamp_slice(start, end, step, x.shape[axis])
    if all(part == (0, d, 1) for part, d in zip(key, x.shape)):
        return x
    begin, stop, stride = zip(*key)
    return build.slice(x, starts=begin, stops=stop, steps=stride)


def _near(end: Any, low_is_open: bool) -> Any:
    """None for an end so far away that it means the array's own on that side.

    Past the other side an end stays what it is: `x[2**31:]` is empty.
    """
    if isinstance(end, int) and ((end <= -_FAR and low_is_open) or (end >= _FAR and not low_is_open)):
        return None
    return end


@onnx_op("Tile")
def tile(node: OnnxNode, x: Value, repeats: Operand) -> Value:
    return shorthand.tile(x, _dims(node, repeats))


@onnx_op("Pad", until=10)
def pad_by_attribute(node: OnnxNode, x: Value) -> Value:
    fill = node.graph.constant(node.real("value", 0.0), x.dtype)
    return pad(node, x, node.knows(list(node.integers("pads"))), fill, None)


@onnx_op("Pad", since=11)
def pad(node: OnnxNode, x: Value, amounts: Operand, fill: Value | None, axes: Operand | None) -> Value:
    """Constant, edge, reflect or wrap; negative pads crop, before anything is added."""
    mode = node.text("mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise node.unsupported(f"the mode {mode!r} is not supported")
    pads = amounts.known
    if pads is None or (axes is not None and axes.known is None):
        return dynamic_shapes.pad(node, x, vector(amounts), axes, mode, fill)
    which = range(x.rank) if axes is None else node.axes(axes.known_or_fail, x.rank)
    if pads.size != 2 * len(which):
        raise node.wrong(f"expected {2 * len(which)} pads, got {pads.size}")
    low: list[Dim] = [0] * x.rank
    high: list[Dim] = [0] * x.rank
    for i, axis in enumerate(which):
        low[axis], high[axis] = pads[i], pads[i + len(which)]
    if mode == "constant":
        return _pad_constant(node, x, low, high, fill)
    for axis in range(x.rank):
        if low[axis] != 0 or high[axis] != 0:
            x = _pad_axis(node, x, axis, low[axis], high[axis], mode)
    return x


def _pad_constant(node: OnnxNode, x: Value, low: list[Dim], high: list[Dim], fill: Value | None) -> Value:
    ends = {"low": tuple(low), "high": tuple(high)}
    if fill is None:
        return build.pad(x, **ends)
    if fill.constant is not None and fill.dtype.is_float:
        return build.pad(x, value=float(fill.constant.reshape(-1)[0]), **ends)
    inside = build.pad(build.broadcast_to(node.graph.constant(True), shape=x.shape), value=False, **ends)
    return build.select(inside, build.pad(x, **ends), fill.cast(x.dtype).reshape())


def _pad_axis(node: OnnxNode, x: Value, axis: int, low: Dim, high: Dim, mode: str) -> Value:
    """One axis of a padding that repeats elements: a gather at indices that fold back into the axis."""
    extent = x.shape[axis]
    total = dims.add(dims.add(extent, low), high)
    at = build.iota(node.graph, shape=(total,), dtype="i64") - number(node, low)
    return build.gather(x, dynamic_shapes.folded(at, number(node, extent), mode), axis=axis)


@onnx_op("ConstantOfShape")
def constant_of_shape(node: OnnxNode, dims_operand: Operand) -> Value:
    fill = node.tensor("value")
    value = node.graph.constant(np.float32(0) if fill is None else fill.reshape(-1)[0])
    return build.broadcast_to(value, shape=tuple(_dims(node, dims_operand)))


def _dims(node: OnnxNode, dims_operand: Operand) -> list[Dim]:
    """The numbers of a vector; those that only a run knows are measured."""
    return (
        measure_all(node, vector(dims_operand)) if dims_operand.known is None else list(dims_operand.known.reshape(-1))
    )


@onnx_op("Range")
def range_(node: OnnxNode, start: Operand, limit: Operand, delta: Operand) -> Value:
    """start, start + delta, … short of limit. How many there are must be known from shapes."""
    dtype = start.dtype
    if dtype.is_float:
        return _float_range(node, start, limit, delta)
    known = [item.known for item in (start, limit, delta)]
    if any(k is None for k in known):
        return dynamic_shapes.line(node, start, limit, delta)
    begin, end, by = (k.reshape(-1)[0] for k in known if k is not None)
    if not isinstance(by, int):
        return dynamic_shapes.line(node, start, limit, delta)
    stride = by
    if stride == 0:
        raise node.wrong("expected a step that is not zero, got 0")
    span = dims.add(end, dims.mul(begin, -1)) if stride > 0 else dims.add(begin, dims.mul(end, -1))
    line = build.iota(node.graph, shape=(dims.maximum(0, dims.ceildiv(span, abs(stride))),), dtype=dtype)
    line = line if stride == 1 else line * stride
    return line if begin == 0 else line + start.value.reshape()


def _float_range(node: OnnxNode, start: Operand, limit: Operand, delta: Operand) -> Value:
    """A range of floats, whose limit may be a dim in disguise."""
    ends = [_end_of(item) for item in (start, limit, delta)]
    first, last, step = ends
    if last is None or not isinstance(first, float) or not isinstance(step, float):
        return dynamic_shapes.line(node, start, limit, delta)
    if step == 0:
        raise node.wrong("expected a step that is not zero, got 0")
    if isinstance(last, float):
        count: Dim = max(0, math.ceil((last - first) / step))
    elif first.is_integer() and step.is_integer() and step > 0:
        span = dims.add(last, -int(first))
        count = dims.maximum(0, dims.ceildiv(span, int(step)))
    else:
        return dynamic_shapes.line(node, start, limit, delta)
    return build.iota(node.graph, shape=(count,), dtype="i64").cast(start.dtype) * step + first


def _end_of(item: Operand) -> float | Dim | None:
    """The number of an item of one element: a float that is constant, or a dim that was cast to one."""
    value = item.value
    constant = value.constant
    if constant is not None:
        return float(constant.reshape(-1)[0])
    while isinstance(value.op, (Cast, Reshape)):
        value = value.node.inputs[0]
    if not isinstance(value.op, DimsTensor) or len(value.op.values) != 1:
        return None
    (only,) = value.op.values
    return float(only) if isinstance(only, int) else only


@onnx_op("Trilu")
def trilu(node: OnnxNode, x: Value, offset: Operand | None) -> Value:
    k = 0 if offset is None else None if offset.known is None else offset.known.reshape(-1)[0]
    upper = node.flag("upper", True)
    if not isinstance(k, int):
        return dynamic_shapes.trilu(node, x, offset.value if offset is not None else number(node, 0), upper)
    return (shorthand.triu if upper else shorthand.tril)(x, k)


@onnx_op("EyeLike")
def eye_like(node: OnnxNode, x: Operand) -> Value:
    code = node.integer("dtype", 0)
    if len(x.shape) != 2:
        raise node.wrong(f"expected a matrix, got {x.type}")
    row, column = (build.iota(node.graph, shape=x.shape, dtype="i64", axis=a) for a in (0, 1))
    return build.eq(column - row, node.integer("k", 0)).cast(dtype_of(code) if code else x.dtype)


@onnx_op("DepthToSpace")
def depth_to_space(node: OnnxNode, x: Value) -> Value:
    n, c, h, w = _image(x)
    b = node.integer("blocksize")
    if b < 1:
        raise node.wrong(f"expected a blocksize of at least 1, got {b}")
    rest = dims.floordiv(c, b * b)
    if _depth_first(node):
        split_up, order = x.reshape(n, b, b, rest, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split_up, order = x.reshape(n, rest, b, b, h, w), (0, 1, 4, 2, 5, 3)
    return split_up.transpose(*order).reshape(n, rest, dims.mul(h, b), dims.mul(w, b))


@onnx_op("SpaceToDepth")
def space_to_depth(node: OnnxNode, x: Value) -> Value:
    n, c, h, w = _image(x)
    b = node.integer("blocksize")
    if b < 1:
        raise node.wrong(f"expected a blocksize of at least 1, got {b}")
    rows, columns = dims.floordiv(h, b), dims.floordiv(w, b)
    order = (0, 3, 5, 1, 2, 4) if _depth_first(node) else (0, 1, 3, 5, 2, 4)
    transposed = x.reshape(n, c, rows, b, columns, b).transpose(*order)
    return transposed.reshape(n, dims.mul(c, b * b), rows, columns)


def _depth_first(node: OnnxNode) -> bool:
    mode = node.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise node.wrong(f"expected the mode DCR or CRD, got {mode!r}")
    return bool(mode == "DCR")


def _image(x: Value) -> tuple[Dim, Dim, Dim, Dim]:
    if x.rank != 4:
        raise ShapeError(f"expected x of rank 4, got {x.type}")
    return x.shape[0], x.shape[1], x.shape[2], x.shape[3]
