"""Finds what quantised nets mean: products of dequantised operands are products of bytes, times both scales.

Quantised nets are written in floats, with a dequantise before every op and a quantise behind it. A product of two
dequantised operands becomes `integer_matmul` or `integer_conv`; the sum is exact, and rounds when it becomes f32, so a
result differs from the float net's by an ulp or two, and a quantised one by a step where that meets a tie. Biases,
activations and the next quantise are elementwise and join the product's kernel as they are. What moves elements moves
bytes, and quantising what was dequantised by the same numbers is nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Value
from rlx.ops import build
from rlx.ops.convolution import Conv, ReduceWindow
from rlx.ops.linalg import DotGeneral, Matmul
from rlx.ops.quant import Dequantize, Quantize
from rlx.ops.shape import Reshape, Slice, Transpose
from rlx.passes.driver import Rules
from rlx.passes.pattern import Is, Var

rules = Rules("raise-quantised")
_left = Is(Dequantize, name="left")
_right = Is(Dequantize, name="right")


def _of_bytes(value: Value) -> bool:
    """Whether these are dequantised bytes, f32, with no blocks."""
    op, source = value.op, value.node.inputs[0]
    assert isinstance(op, Dequantize)
    return source.dtype in (dtypes.u8, dtypes.i8) and value.dtype is dtypes.f32 and op.block == 0


def _scale(value: Value) -> Value:
    return value.node.inputs[1]


def _is_positive(scale: Value) -> bool:
    """Whether a scale is known to be above 0."""
    return scale.constant is not None and bool(np.all(scale.constant > 0))


def _is_number(parameter: Value) -> bool:
    return parameter.rank == 0 or parameter.shape == (1,)


def _has_one_scale(value: Value) -> bool:
    return all(_is_number(parameter) for parameter in value.node.inputs[1:])


def _goes_along(value: Value, axis: int) -> bool:
    """Whether scale and zero point are one number each, or vectors along this axis."""
    op = value.op
    assert isinstance(op, Dequantize)
    return _has_one_scale(value) or op.axis % value.rank == axis % value.rank


def _is_conv(left: Value, right: Value) -> bool:
    return _of_bytes(left) and _of_bytes(right) and _has_one_scale(left) and _goes_along(right, 0)


def _is_matmul(left: Value, right: Value) -> bool:
    fits = left.rank > 1 and right.rank > 1 and _has_one_scale(left) and _goes_along(right, -1)
    return fits and _of_bytes(left) and _of_bytes(right)


def _parts(value: Value) -> tuple[Value, Value, Value]:
    """The bytes, the scale and the zero point of a dequantised value in the graph being built."""
    source, scale, *zero = value.node.inputs
    zero_point = zero[0] if zero else value.graph.constant(0, source.dtype)
    flat = [part.reshape() if _is_number(part) else part for part in (scale, zero_point)]
    return source, flat[0].cast(dtypes.f32), flat[1]


@rules.rule("matmul", Is(Matmul, _left, _right), when=_is_matmul)
def matmul(left: Value, right: Value) -> Value:
    (a, a_scale, a_zero), (b, b_scale, b_zero) = _parts(left), _parts(right)
    return build.integer_matmul(a, b, a_zero, b_zero).cast(dtypes.f32) * (a_scale * b_scale)


def _is_plain_dot(root: Value, left: Value, right: Value) -> bool:
    """Whether a dot is what matmul by a matrix is, before or behind it was called so."""
    op = root.op
    assert isinstance(op, DotGeneral)
    plain = not op.lhs_batch and op.lhs_contract == (left.rank - 1,) and op.rhs_contract == (0,)
    return plain and right.rank == 2 and _is_matmul(left, right)


rules.add("dot", Is(DotGeneral, _left, _right), matmul, when=_is_plain_dot)


@rules.rule("conv", Is(Conv, _left, _right), when=_is_conv)
def conv(left: Value, right: Value, root: Value) -> Value:
    (a, a_scale, a_zero), (b, b_scale, b_zero) = _parts(left), _parts(right)
    op = root.op
    assert isinstance(op, Conv)
    total = build.integer_conv(
        a, b, a_zero, b_zero, strides=op.strides, dilations=op.dilations, low=op.low, high=op.high, groups=op.groups
    )
    scale = a_scale * b_scale
    return total.cast(dtypes.f32) * (scale.reshape(-1, *([1] * (root.rank - 2))) if scale.rank else scale)


# what only moves elements


def _again(left: Value, source: Value, axis: int | None = None) -> Value:
    """Other bytes dequantised by the same numbers."""
    op = left.op
    assert isinstance(op, Dequantize)
    changed = op if axis is None else dataclasses.replace(op, axis=axis)
    result = source.graph.add(changed, source, *left.node.inputs[1:])
    assert isinstance(result, Value)
    return result


_once = Is(Dequantize, name="left", once=True)


@rules.rule("move", Is((Reshape, Slice), _once), when=lambda left: _of_bytes(left) and _has_one_scale(left))
def move(left: Value, root: Value, graph: Graph) -> Value:
    result = graph.add(root.op, left.node.inputs[0])
    assert isinstance(result, Value)
    return _again(left, result)


@rules.rule("transpose", Is(Transpose, _once), when=lambda left: _of_bytes(left))
def transpose(left: Value, root: Value) -> Value:
    op, inner = root.op, left.op
    assert isinstance(op, Transpose) and isinstance(inner, Dequantize)
    order = op.permutation
    axis = None if _has_one_scale(left) else order.index(inner.axis % len(order))
    return _again(left, left.node.inputs[0].transpose(*order), axis)


def _keeps_order(root: Value, left: Value) -> bool:
    """Whether the greatest byte is the greatest number."""
    op = root.op
    assert isinstance(op, ReduceWindow)
    return op.combine in ("max", "min") and _of_bytes(left) and _has_one_scale(left) and _is_positive(_scale(left))


@rules.rule("pool", Is(ReduceWindow, _once), when=_keeps_order)
def pool(left: Value, root: Value, graph: Graph) -> Value:
    result = graph.add(root.op, left.node.inputs[0])
    assert isinstance(result, Value)
    return _again(left, result)


def _is_undone(root: Value, left: Value) -> bool:
    outer, inner = root.op, left.op
    assert isinstance(outer, Quantize) and isinstance(inner, Dequantize)
    same = root.node.inputs[1:] == left.node.inputs[1:] and outer.dtype is left.node.inputs[0].dtype
    return (
        same
        and _is_positive(_scale(left))
        and _of_bytes(left)
        and (outer.axis, outer.block) == (inner.axis, inner.block)
    )


@rules.rule("again", Is(Quantize, _left, Var("scale"), Var("zero")), when=_is_undone)
def again(left: Value) -> Value:
    return left.node.inputs[0]
