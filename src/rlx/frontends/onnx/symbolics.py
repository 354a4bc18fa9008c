"""Shape arithmetic: integer ops on numbers that the import knows. A function returns None if it cannot compute its
result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.frontends.onnx.model import dtype_of
from rlx.frontends.onnx.operand import MAX_KNOWN, Operand, is_number
from rlx.frontends.onnx.table import Known, OnnxNode, symbolic
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.literal import Array


class _Undecided(Exception):
    """The truth hangs on the value of a dim."""


def _each(function: Callable[..., Any], *arrays: Known) -> Array:
    """`function` of every element, with broadcasting; always an object array."""
    result = np.frompyfunc(function, len(arrays), 1)(*arrays)
    out = np.empty(np.shape(result), object)
    out[...] = result
    return out


def _elementwise(function: Callable[..., Any], result: DType | None = None) -> Callable[..., Operand | None]:
    def run(node: OnnxNode, *arrays: Known) -> Operand | None:
        try:
            results = _each(function, *arrays)
        except _Undecided:
            return None
        first = node.inputs[0]
        assert first is not None
        return node.knows(results, result or first.dtype) if results.size <= MAX_KNOWN else None

    return run


def _divide(a: Dim, b: Dim) -> Dim:
    """Division towards zero, as ONNX divides integers. By a dim that may be zero: undefined there, here it is zero."""
    if b == 0:
        raise _Undecided
    if not is_number(b):
        exact = dims.exact_div(a, b)
        if exact is not None:
            return exact
        if dims.bounds(b, {})[0] < 0 or dims.bounds(a, {})[0] < 0:
            raise _Undecided
        return dims.floordiv(a, b)
    sign = -1 if b < 0 else 1
    up, down = dims.maximum(0, dims.mul(a, sign)), dims.maximum(0, dims.mul(a, -sign))
    size = dims.mul(b, sign)
    return dims.add(dims.floordiv(up, size), dims.mul(dims.floordiv(down, size), -1))


def _modulo(a: Dim, b: Dim) -> Dim:
    if b == 0 or (not is_number(b) and dims.bounds(b, {})[0] < 0):
        raise _Undecided
    return dims.mod(a, b)


def _absolute(a: Dim) -> Dim:
    return dims.maximum(a, dims.mul(a, -1))


def _less(a: Dim, b: Dim) -> bool:
    low, high = dims.bounds(dims.add(a, dims.mul(b, -1)), {})
    if high is not None and high < 0:
        return True
    if low >= 0:
        return False
    raise _Undecided


def _equal(a: Dim, b: Dim) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or a == b:
        return a == b
    low, high = dims.bounds(dims.add(a, dims.mul(b, -1)), {})
    if low > 0 or (high is not None and high < 0):
        return False
    raise _Undecided


def _both(function: Callable[[bool, bool], bool]) -> Callable[..., Operand | None]:
    return _elementwise(lambda a, b: function(bool(a), bool(b)), dtypes.bool_)


symbolic("Add")(_elementwise(lambda a, b: a + b))
symbolic("Sub")(_elementwise(lambda a, b: a - b))
symbolic("Mul")(_elementwise(lambda a, b: a * b))
symbolic("Div")(_elementwise(_divide))
symbolic("Neg")(_elementwise(lambda a: -a))
symbolic("Abs")(_elementwise(_absolute))
symbolic("Identity")(_elementwise(lambda a: a))
symbolic("Less")(_elementwise(_less, dtypes.bool_))
symbolic("Greater")(_elementwise(lambda a, b: _less(b, a), dtypes.bool_))
symbolic("LessOrEqual")(_elementwise(lambda a, b: not _less(b, a), dtypes.bool_))
symbolic("GreaterOrEqual")(_elementwise(lambda a, b: not _less(a, b), dtypes.bool_))
symbolic("Equal")(_elementwise(_equal, dtypes.bool_))
symbolic("Not")(_elementwise(lambda a: not a, dtypes.bool_))
symbolic("And")(_both(lambda a, b: a and b))
symbolic("Or")(_both(lambda a, b: a or b))
symbolic("Xor")(_both(lambda a, b: a != b))


@symbolic("Mod")
def _mod(node: OnnxNode, a: Known, b: Known) -> Operand | None:
    return None if node.flag("fmod") else _elementwise(_modulo)(node, a, b)


def _fold(function: Callable[[Dim, Dim], Dim]) -> Callable[..., Operand | None]:
    def run(node: OnnxNode, first: Known, *rest: Known) -> Operand | None:
        for other in rest:
            first = _each(function, first, other)
        return _elementwise(lambda a: a)(node, first)

    return run


symbolic("Min")(_fold(dims.minimum))
symbolic("Max")(_fold(dims.maximum))


@symbolic("Where")
def _where(node: OnnxNode, condition: Known, x: Known, y: Known) -> Operand | None:
    item = node.inputs[1]
    assert item is not None
    return node.knows(_each(lambda c, a, b: a if c else b, condition, x, y), item.dtype)


@symbolic("Cast")
def _cast(node: OnnxNode, x: Known) -> Operand | None:
    to = dtype_of(node.integer("to"))
    if to is dtypes.bool_:
        return _elementwise(lambda a: not _equal(int(a) if is_number(a) else a, 0), to)(node, x)
    if not to.is_integer:
        return None
    low, high = (0, 1 << to.bits) if to.kind == "uint" else (-(1 << (to.bits - 1)), 1 << (to.bits - 1))
    if any(is_number(n) and not low <= n < high for n in x.reshape(-1)):
        return None
    return node.knows(_each(lambda a: int(a) if is_number(a) else a, x), to)


@symbolic("Gather")
def _gather(node: OnnxNode, x: Known, indices: Known) -> Operand | None:
    if not all(is_number(i) for i in indices.reshape(-1)):
        return None
    return _like(node, np.take(x, indices.astype(np.int64), axis=node.integer("axis", 0)))


@symbolic("Concat")
def _concat(node: OnnxNode, *parts: Known) -> Operand | None:
    return _like(node, np.concatenate(parts, axis=node.integer("axis")))


@symbolic("Transpose")
def _transpose(node: OnnxNode, x: Known) -> Operand | None:
    return _like(node, np.transpose(x, node.integers("perm", None)))


@symbolic("Unsqueeze")
def _unsqueeze(node: OnnxNode, x: Known, axes: Known | None = None) -> Operand | None:
    return _like(node, np.expand_dims(x, _axes(node, axes) or ()))


@symbolic("Squeeze")
def _squeeze(node: OnnxNode, x: Known, axes: Known | None = None) -> Operand | None:
    return _like(node, np.squeeze(x, _axes(node, axes)))


@symbolic("Reshape")
def _reshape(node: OnnxNode, x: Known, shape: Known) -> Operand | None:
    if not all(is_number(n) for n in shape):
        return None
    zero_stays = not node.flag("allowzero")
    target = [x.shape[i] if n == 0 and zero_stays else n for i, n in enumerate(shape)]
    return _like(node, x.reshape(target))


@symbolic("Slice")
def _slice(
    node: OnnxNode, x: Known, starts: Known, ends: Known, axes: Known | None = None, steps: Known | None = None
) -> Operand | None:
    bounds = [starts, ends, *(a for a in (axes, steps) if a is not None)]
    if not all(is_number(n) for array in bounds for n in array):
        return None
    which = range(len(starts)) if axes is None else axes
    key = [slice(None)] * x.ndim
    for i, axis in enumerate(which):
        step = 1 if steps is None else steps[i]
        end = None if step < 0 and ends[i] < -x.shape[axis] else ends[i]
        key[axis] = slice(starts[i], end, step)
    return _like(node, x[tuple(key)])


@symbolic("Expand")
def _expand(node: OnnxNode, x: Known, shape: Known) -> Operand | None:
    if not all(is_number(n) for n in shape) or np.prod(shape) > MAX_KNOWN:
        return None
    return _like(node, np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))))


@symbolic("ConstantOfShape")
def _constant_of_shape(node: OnnxNode, shape: Known) -> Operand | None:
    fill = node.tensor("value")
    if fill is None or fill.dtype.kind not in "iub" or not all(is_number(n) for n in shape):
        return None
    if np.prod(shape) > MAX_KNOWN:
        return None
    return node.knows(np.full(tuple(shape), fill.reshape(-1)[0].item(), object), dtypes.of(fill.dtype))


@symbolic("Range")
def _range(node: OnnxNode, start: Known, limit: Known, delta: Known) -> Operand | None:
    ends = [array.reshape(-1)[0] for array in (start, limit, delta)]
    if not all(is_number(n) for n in ends) or ends[2] == 0 or len(range(*ends)) > MAX_KNOWN:
        return None
    return _like(node, np.array(range(*ends), object))


def _reduction(function: Callable[[Dim, Dim], Dim], empty: int | None) -> Callable[..., Operand | None]:
    def run(node: OnnxNode, x: Known, axes: Known | None = None) -> Operand | None:
        which = _axes(node, axes)
        if x.ndim > 1 or (which is not None and len(which) != x.ndim) or (x.size == 0 and empty is None):
            return None
        if which is None and node.flag("noop_with_empty_axes"):
            return _like(node, x)
        values = list(x.reshape(-1))
        total = functools.reduce(function, values) if values else empty
        return _like(node, np.array([total] if node.flag("keepdims", True) and x.ndim else total, object))

    return run


symbolic("ReduceSum")(_reduction(dims.add, 0))
symbolic("ReduceProd")(_reduction(dims.mul, 1))
symbolic("ReduceMax")(_reduction(dims.maximum, None))
symbolic("ReduceMin")(_reduction(dims.minimum, None))


def _axes(node: OnnxNode, axes: Known | None) -> tuple[int, ...] | None:
    """Axes by attribute or by input; None if neither gives any."""
    axes_found = node.integers("axes", None) if axes is None else tuple(int(a) for a in axes.reshape(-1))
    return axes_found or None


def _like(node: OnnxNode, known: Any) -> Operand:
    first = node.inputs[0]
    assert first is not None
    return node.knows(known, first.dtype)
