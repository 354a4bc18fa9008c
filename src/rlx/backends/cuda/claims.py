"""The composites that NVIDIA's GPUs run without decomposing them: those of all devices with kernels from
`codegen/simt`, and products with weights of few bits."""

from __future__ import annotations

from rlx.backends import simt_claims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Node, Value
from rlx.ir.op import Constant, Param
from rlx.ops.packed import PackedMatmul

PIECE_BITS, WORD_BITS = 128, 32
"""What a lane loads of a row at once, and unpacks at once."""
LEAST_COLUMNS = 8


def claim(node: Node) -> str | None:
    """As `Backend.claim`."""
    return packed_matmul(node) if isinstance(node.op, PackedMatmul) else simt_claims.claim(node)


def packed_matmul(node: Node) -> str:
    """Why kernels do not unpack the weights of a product as they use them; empty if they do."""
    op, (x, w, scale, *zero) = node.op, node.inputs
    assert isinstance(op, PackedMatmul)
    narrow = x.dtype in (dtypes.f16, dtypes.bf16) and scale.dtype in (x.dtype, dtypes.f32)
    if not narrow and not (x.dtype is dtypes.f32 and scale.dtype is dtypes.f32):
        return f"{x.dtype} with scales of {scale.dtype}"
    if not all(is_static(operand) for operand in (w, scale, *zero)):
        return "weights that a run makes"
    columns = w.shape[0]
    if not isinstance(columns, int) or columns < LEAST_COLUMNS:
        return f"{columns} columns: a panel has {LEAST_COLUMNS}"
    piece, word = PIECE_BITS // op.bits, WORD_BITS // op.bits
    if op.depth % piece:
        return f"a depth of {op.depth}: 16 bytes have {piece} elements"
    if op.block % piece and (piece % op.block or op.block % word):
        return f"blocks of {op.block}: words have {word} elements"
    return ""


def is_static(value: Value) -> bool:
    """Whether a value is made of weights and constants alone."""
    pending, seen = [value.node], {id(value.node)}
    while pending:
        node = pending.pop()
        if node.regions or not (node.inputs or isinstance(node.op, (Param, Constant))):
            return False
        for operand in node.inputs:
            if id(operand.node) not in seen:
                seen.add(id(operand.node))
                pending.append(operand.node)
    return True
