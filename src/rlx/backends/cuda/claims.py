"""The composites that NVIDIA's GPUs run without decomposing them: those of all devices with kernels from
`codegen/simt`, and products with weights of few bits or of floats of 8 bits."""

from __future__ import annotations

from rlx.backends import simt_claims
from rlx.backends.claims import is_static
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Node
from rlx.ops.float8 import Float8Matmul
from rlx.ops.packed import PackedMatmul
from rlx.passes.packed_weights import rules_of

PIECE_BITS, WORD_BITS, PIECE_BYTES = 128, 32, 16
"""What a lane loads of a row at once, and unpacks at once."""
LEAST_COLUMNS = 8


def claim(node: Node) -> str | None:
    """As `Backend.claim`."""
    match node.op:
        case PackedMatmul():
            return packed_matmul(node)
        case Float8Matmul():
            return float8_matmul(node)
    return simt_claims.claim(node)


def float8_matmul(node: Node) -> str:
    """Why matrix units do not multiply floats of 8 bits; empty if they do."""
    x, y = node.inputs
    if x.dtype is not dtypes.f8e4m3:
        return f"{x.dtype}"
    depth = x.shape[-1]
    if y.rank != 2 or not is_static(y):
        return "a right side that a run makes, or several"
    if not isinstance(depth, int) or depth == 0 or depth % PIECE_BYTES:
        return f"a depth of {depth}: 16 bytes have as many elements"
    return ""


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
    if not isinstance(columns, int):
        return f"{columns} columns"
    return _misfit(op.bits, op.block, op.depth, columns)


def _misfit(bits: int, block: int, depth: int, columns: int) -> str:
    """What of a weight does not fit; empty if all of it does."""
    piece, word = PIECE_BITS // bits, WORD_BITS // bits
    if columns < LEAST_COLUMNS:
        return f"{columns} columns: a panel has {LEAST_COLUMNS}"
    if depth % piece:
        return f"a depth of {depth}: 16 bytes have {piece} elements"
    if block % piece and (piece % block or block % word):
        return f"blocks of {block}: words have {word} elements"
    return ""


def _block_of(bits: int, block: int, depth: int, columns: int) -> int | None:
    return None if _misfit(bits, block, depth, columns) else block


weights = rules_of("packed-weights", _block_of)
"""Dequantised weights as what they were, before products with them merge."""
