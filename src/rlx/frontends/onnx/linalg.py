"""Importer functions: products of matrices."""

from __future__ import annotations

from rlx.frontends.onnx.table import OnnxNode, onnx_op
from rlx.ir.graph import Value
from rlx.ops import build, shorthand


@onnx_op("MatMul")
def matmul(node: OnnxNode, a: Value, b: Value) -> Value:
    return build.matmul(a, b)


@onnx_op("Gemm")
def gemm(node: OnnxNode, a: Value, b: Value, c: Value | None) -> Value:
    """alpha · A B + beta · C, either matrix transposed if the node says so."""
    a = a.transpose(1, 0) if node.flag("transA") else a
    b = b.transpose(1, 0) if node.flag("transB") else b
    product = build.matmul(a, b)
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    product = product if alpha == 1.0 else _scaled(product, alpha)
    if c is None or beta == 0.0:
        return product
    return product + (c if beta == 1.0 else _scaled(c, beta))


def _scaled(x: Value, factor: float) -> Value:
    return x * factor if x.dtype.is_float else x * int(factor)


@onnx_op("MatMulInteger")
def matmul_integer(node: OnnxNode, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """(A - zero) (B - zero) in 32 bits. A vector of zero points goes by rows of A, by columns of B."""
    left, right = a.cast("i32"), b.cast("i32")
    if a_zero is not None:
        zero = a_zero.cast("i32")
        left = left - (zero.reshape(-1, 1) if zero.rank == 1 and zero.shape != (1,) else zero)
    if b_zero is not None:
        right = right - b_zero.cast("i32")
    return build.matmul(left, right)


@onnx_op("Einsum")
def einsum(node: OnnxNode, *operands: Value) -> Value:
    """One operand is transposed and summed; of several, the first two are joined until one is left."""
    text = node.text("equation").replace(" ", "")
    if "." in text:
        raise node.unsupported("an ellipsis in the equation is not supported")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands) or any(len(t) != v.rank for t, v in zip(terms, operands)):
        raise node.wrong(f"expected an equation for operands {[str(v.type) for v in operands]}, got {text!r}")
    if any(len(set(t)) != len(t) for t in terms):
        raise node.unsupported("a repeated index in one operand is not supported")
    if not arrow:
        out = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    values = list(zip(terms, operands))
    while len(values) > 1:
        rest = "".join(t for t, _ in values[2:]) + out
        values[:2] = [_join(values[0], values[1], rest)]
    term, value = _summed(values[0], out)
    order = tuple(term.index(c) for c in out)
    return value if order == tuple(range(value.rank)) else value.transpose(*order)


Term = tuple[str, Value]


def _summed(term: Term, kept: str) -> Term:
    """Indices that nobody asks for any more are summed away."""
    letters, value = term
    axes = tuple(i for i, c in enumerate(letters) if c not in kept)
    return ("".join(c for c in letters if c in kept), build.reduce_sum(value, axes=axes)) if axes else term


def _join(left: Term, right: Term, kept: str) -> Term:
    (a, x), (b, y) = _summed(left, right[0] + kept), _summed(right, left[0] + kept)
    batch = [c for c in a if c in b and c in kept]
    inner = [c for c in a if c in b and c not in kept]
    made = build.dot_general(
        x, y,
        lhs_contract=tuple(a.index(c) for c in inner), rhs_contract=tuple(b.index(c) for c in inner),
        lhs_batch=tuple(a.index(c) for c in batch), rhs_batch=tuple(b.index(c) for c in batch),
    )  # fmt: skip
    shared = set(batch) | set(inner)
    return "".join([*batch, *(c for c in a if c not in shared), *(c for c in b if c not in shared)]), made


@onnx_op("FusedMatMul", "TransposeMatMul", domain="com.microsoft")
def fused_matmul(node: OnnxNode, a: Value, b: Value) -> Value:
    """alpha · A B; the flags exchange the last two axes, the batch flags move the second-to-last group up front."""
    if node.flag("transBatchA") or node.flag("transBatchB"):
        raise node.unsupported("batch axes behind the matrix are not supported")
    a = shorthand.swap_axes(a, -1, -2) if node.flag("transA") and a.rank > 1 else a
    b = shorthand.swap_axes(b, -1, -2) if node.flag("transB") and b.rank > 1 else b
    product = build.matmul(a, b)
    alpha = node.real("alpha", 1.0)
    return product if alpha == 1.0 else product * alpha
