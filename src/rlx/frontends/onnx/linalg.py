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


@onnx_op("Det")
def det(node: OnnxNode, x: Value) -> Value:
    return build.det(x)


@onnx_op("Einsum")
def einsum(node: OnnxNode, *operands: Value) -> Value:
    return build.einsum(*operands, equation=node.text("equation"))


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
