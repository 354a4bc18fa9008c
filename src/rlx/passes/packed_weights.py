"""Finds products with weights of few bits where a graph has them as products with a dequantised weight.

What is made of weights alone is worked out once, when they are set.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Value
from rlx.ir.op import Constant, Param
from rlx.ops import build
from rlx.ops.linalg import DotGeneral, Matmul
from rlx.ops.packed import WIDTHS, packed
from rlx.ops.quant import Dequantize
from rlx.ops.shape import Transpose
from rlx.passes.driver import Rules
from rlx.passes.pattern import Is, Var

BlockOf = Callable[[int, int, int, int], int | None]
"""Bits, elements that share a scale at most, depth and columns → the elements that are to share one; None for a product
that stays as it is."""


def rules_of(name: str, block_of: BlockOf) -> Rules:
    """Rewrites of a target that has such products."""
    rules = Rules(name)

    def is_packable(root: Value) -> bool:
        axis = _contracted(root)
        return axis is not None and _block(*_source(root.node.inputs[1], axis), block_of) is not None

    @rules.rule("weight", Is((Matmul, DotGeneral), Var("x"), Var("y")), when=is_packable)
    def weight(root: Value, x: Value, y: Value) -> Value:
        contracted = _contracted(root)
        assert contracted is not None  # the rule asks for both
        source, axis = _source(y, contracted)
        block = _block(source, axis, block_of)
        assert block is not None
        return _packed(x, source, axis, block)

    return rules


def _contracted(root: Value) -> int | None:
    """The axis of a product's right side that is summed, if it is x times a matrix."""
    op, (x, y) = root.op, root.node.inputs
    if y.rank != 2:
        return None
    if isinstance(op, Matmul):
        return 0
    assert isinstance(op, DotGeneral)
    plain = not op.lhs_batch and op.lhs_contract == (x.rank - 1,) and op.sum_dtype is None
    return op.rhs_contract[0] if plain and len(op.rhs_contract) == 1 else None


def _source(y: Value, axis: int) -> tuple[Value, int]:
    """A matrix and an axis of it, before it was turned."""
    turned = isinstance(y.op, Transpose) and y.op.permutation == (1, 0)
    return (y.node.inputs[0], 1 - axis) if turned else (y, axis)


def _is_number(parameter: Value) -> bool:
    return parameter.rank == 0 or parameter.shape == (1,)


def _is_given(value: Value) -> bool:
    """Whether it is a weight or a constant, as it is or turned."""
    while isinstance(value.op, Transpose):
        value = value.node.inputs[0]
    return isinstance(value.op, (Param, Constant))


def _block(weight: Value, axis: int, block_of: BlockOf) -> int | None:
    """Elements along an axis of a dequantised weight that are to share a scale; None where it stays as it is."""
    op = weight.op
    if not isinstance(op, Dequantize) or not all(map(_is_given, weight.node.inputs)):
        return None
    source, scale = weight.node.inputs[:2]
    depth, columns = weight.shape[axis], weight.shape[1 - axis]
    if not (isinstance(depth, int) and isinstance(columns, int) and depth and columns):
        return None
    if not source.dtype.is_integer or source.dtype.bits not in WIDTHS or dtypes.f64 in (weight.dtype, scale.dtype):
        return None
    if op.block:
        fits = op.axis % 2 == axis and depth % op.block == 0
        return block_of(source.dtype.bits, op.block, depth, columns) if fits else None
    along = _is_number(scale) or op.axis % 2 == 1 - axis
    return block_of(source.dtype.bits, depth, depth, columns) if along else None


def _packed(x: Value, weight: Value, axis: int, block: int) -> Value:
    """x times the dequantised weight, whose rows run along `axis`. A weight is rounded once: scales are f32 where they
    have another dtype than it."""
    whole, scale, *rest = weight.node.inputs
    bits = whole.dtype.bits
    moved = 1 << (bits - 1) if whole.dtype.kind == "int" else 0
    extents = weight.shape
    rows, blocks = extents[1 - axis], dims.floordiv(extents[axis], block)
    dtype = scale.dtype if scale.dtype is weight.dtype else dtypes.f32

    def laid(parameter: Value) -> Value:
        """[rows, blocks]."""
        if parameter.rank == 2:
            turned = parameter.transpose(1, 0) if axis == 0 else parameter
            times = dims.floordiv(blocks, turned.shape[1])
            spread = build.broadcast_to(turned.reshape(*turned.shape, 1), shape=(*turned.shape, times))
            return spread.reshape(rows, blocks)
        return build.broadcast_to(parameter.reshape(-1, 1), shape=(rows, blocks))

    small = (whole.cast(dtypes.i32) + moved).cast(dtypes.u8) if moved else whole.cast(dtypes.u8)
    small = packed(small.transpose(1, 0) if axis == 0 else small, bits)
    parameters = [laid(scale).cast(dtype)]
    if rest or not moved:
        zero = rest[0] if rest else x.graph.constant(0, dtypes.u8)
        whole_zero = (zero.cast(dtypes.i32) + moved).cast(dtypes.u8)
        parameters.append(laid(whole_zero).cast(dtype))
    made: Value = build.packed_matmul(x, small, *parameters, depth=extents[axis], bits=bits, block=block)
    return made
