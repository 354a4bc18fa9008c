"""Quantised weights, stored small: when a model is loaded, MIL turns integers and scales into floats.

`constexpr_blockwise_shift_scale` is scale · (q - offset) with q of 4 or 8 bits and a scale for each block. If it cannot
express a weight, or not as exactly, the weight is computed here and takes as much space in the model as one of floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import flags
from rlx.backends.coreml.library import NAMES, Value, constant, known, mb, mil_types, shape_of
from rlx.backends.coreml.shapes import lowers
from rlx.errors import UnsupportedOp
from rlx.ir.graph import Node
from rlx.ir.graph import Value as Operand
from rlx.ir.literal import Array
from rlx.ir.op import Constant, Param
from rlx.ops.packed import PackedMatmul
from rlx.ops.quant import Dequantize

STAYS = (Dequantize, PackedMatmul)
"""Ops whose weights are told to MIL as they are: what makes floats of them is not worked out before."""
INTEGERS = {(kind, bits): f"{sign}int{bits}" for kind, sign in (("int", ""), ("uint", "u")) for bits in (4, 8)}
"""By kind and bits, what MIL calls the integers that it keeps weights in."""


def claim_weight(node: Node) -> str:
    """Why a dequantised array is none that MIL keeps as integers; empty if it is."""
    of = node.inputs[0].dtype
    if not of.is_integer or of.bits > 8:
        return f"{of}"
    return "" if all(map(is_weight, node.inputs)) else "what a run decides"


def claim_product(node: Node) -> str:
    """Why a packed product is none with a weight that MIL keeps as integers; empty if it is."""
    op: Any = node.op
    if op.added:
        return "what is added behind the scale"
    return "" if all(map(is_weight, node.inputs[1:])) else "a weight that a run decides"


def is_weight(value: Operand) -> bool:
    """Whether params and constants alone decide a value of known size."""
    seen, open_ = set(), [value.node]
    while open_:
        node = open_.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.regions or not all(of.is_static for of in node.types):
            return False
        if not node.inputs and not isinstance(node.op, (Param, Constant)):
            return False
        open_ += [v.node for v in node.inputs]
    return True


def _known(op: Any, *operands: Value | None) -> list[Any]:
    """The arrays of operands. Raises UnsupportedOp where the conversion did not work them out."""
    if any(v is not None and v.val is None for v in operands):
        raise UnsupportedOp(f"[{op.name}] expected weights that are known when a model is converted")
    return [None if v is None else np.asarray(v.val) for v in operands]


@lowers("dequantize")
def _dequantize(op: Any, x: Value, scale: Value, zero: Value | None = None) -> Value:
    whole, step, offset = _known(op, x, scale, zero)
    low, high = (int(whole.min()), int(whole.max())) if whole.size else (0, 0)
    least, most = (0, 0) if offset is None else (int(offset.min()), int(offset.max()))
    kind = _kind(min(low, least), max(high, most))
    aligned_scale = _laid(op, whole.shape, step)
    if aligned_scale is None or kind is None:
        weight = op.reference(*(part for part in (whole, step, offset) if part is not None))
        return constant(weight)
    zero_point = None if offset is None or not offset.any() else offset.reshape(aligned_scale.shape)
    return _cast(_compressed(whole, aligned_scale, zero_point, kind), NAMES[op.dtype])


def _cast(x: Value, name: str) -> Value:
    return x if NAMES[known(x)] == name else mb.cast(x=x, dtype=name)


def _kind(least: int, most: int) -> str | None:
    """The smallest integers that hold these; None if MIL keeps none such."""
    for (kind, bits), name in sorted(INTEGERS.items(), key=lambda item: item[0][1]):
        low = -(1 << (bits - 1)) if kind == "int" else 0
        if low <= least and most < low + (1 << bits):
            return name
    return None


def _laid(op: Any, shape: tuple[int, ...], step: Array) -> Array | None:
    """Scales with the axes of the array that they are for; None if blocks do not fill its axis, or digits are lost."""
    if not shape or not _holds(step):
        return None
    axis = op.axis % len(shape)
    if op.block:
        return step if shape[axis] % op.block == 0 else None
    if step.size == 1:
        return step.reshape([1] * len(shape))
    return step.reshape([-1 if i == axis else 1 for i in range(len(shape))])


def _holds(step: Array) -> bool:
    """Whether scales keep their digits where a model computes in f16: small ones would lose some by themselves, which
    the products with integers have."""
    if not np.isfinite(step).all():
        return False
    half, size = np.finfo(np.float16), np.abs(step[step != 0].astype(np.float64))
    return flags.coreml_precision() != "f16" or bool(np.all((size >= half.smallest_normal) & (size <= half.max)))


def _compressed(whole: Array, step: Array, offset: Array | None, kind: str) -> Value:
    """scale · (q - offset) in f32, which the conversion makes f16 where a model computes in that."""
    types = mil_types()
    integers = types.nptype_from_builtin(types.string_to_builtin(kind))
    arguments: dict[str, Any] = {"data": whole.astype(integers), "scale": step.astype(np.float32)}
    if offset is not None:
        arguments["offset"] = offset.astype(np.float32 if offset.dtype.kind == "f" else integers)
    return mb.constexpr_blockwise_shift_scale(**arguments)


@lowers("packed_matmul")
def _packed(op: Any, x: Value, w: Value, scale: Value, zero: Value | None = None) -> Value:
    """Of 2 bits MIL has no integers with scales: they are kept in 4."""
    packed, step, zero_point = _known(op, w, scale, zero)
    rows, depth = packed.shape[0], op.blocks * op.block
    shifts = np.arange(0, 8, op.bits)
    whole = (packed[..., None] >> shifts & ((1 << op.bits) - 1)).reshape(rows, depth)
    offset = np.full(step.shape, 1 << (op.bits - 1)) if zero_point is None else zero_point.astype(np.float32)
    if np.array_equal(offset, np.clip(np.rint(offset), 0, (1 << max(op.bits, 4)) - 1)):
        offset = offset.astype(np.int64)
    if _holds(step):
        weight = _cast(_compressed(whole, step, offset, INTEGERS["uint", max(op.bits, 4)]), NAMES[known(x)])
    else:
        spread = [np.repeat(part.astype(np.float64), op.block, 1) for part in (step, offset)]
        weight = constant(((whole - spread[1]) * spread[0]).astype(known(x).numpy))
    shape = shape_of(x)
    if depth != op.depth:  # padding of the last block meets zeros
        pads = np.array([0] * (2 * len(shape) - 1) + [depth - op.depth], np.int32)
        x = mb.pad(x=x, pad=pads, mode="constant", constant_val=known(x).numpy.type(0))
    flat = mb.reshape(x=x, shape=np.array([-1, depth], np.int32))
    product = mb.matmul(x=flat, y=weight, transpose_y=True)
    return mb.reshape(x=product, shape=np.array([*shape[:-1], rows], np.int32))
