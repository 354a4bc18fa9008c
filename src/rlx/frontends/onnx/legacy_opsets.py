"""Importer functions for opsets 1 to 6, where they differ from those that came later.

Arithmetic had one-sided broadcasting, with an axis that says where the second operand lies along the first; shapes and
the like were attributes.
"""

from __future__ import annotations

from rlx.frontends.onnx import shape as shapes
from rlx.frontends.onnx.elementwise import SAME_BINARY
from rlx.frontends.onnx.linalg import gemm
from rlx.frontends.onnx.nn import batch_norm
from rlx.frontends.onnx.resize import upsample_by_scales
from rlx.frontends.onnx.table import Known, OnnxNode, as_int, onnx_op
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Value
from rlx.ops import build, shorthand

_BINARY = ("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Less", "Greater")
_NAMES = {"float": "f32", "double": "f64", "float16": "f16", "bool": "bool"} | {
    f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
"""Names of dtypes as Cast had them, in lower case."""


def _laid_along(node: OnnxNode, x: Value, y: Value) -> Value:
    """The second operand with axes of 1 behind it, so that its first axis lies at the node's axis of the first."""
    if not node.flag("broadcast"):
        node.integer("axis", 0)  # speaks of broadcasting
        return y
    axis = node.integer("axis", None)
    if axis is None or y.rank == 0:
        return y
    behind = x.rank - node.normal_axis(axis, x.rank) - y.rank
    if behind < 0:
        raise node.wrong(f"expected an operand that fits {x.type} from axis {axis} on, got {y.type}")
    return y.reshape(*y.shape, *([1] * behind))


def _binary(name: str) -> None:
    def run(node: OnnxNode, x: Value, y: Value) -> Value:
        return build.op(SAME_BINARY[name])(x, _laid_along(node, x, y))

    onnx_op(name, until=6)(run)


for _name in _BINARY:
    _binary(_name)


@onnx_op("Pow", until=6)
def power(node: OnnxNode, x: Value, y: Value) -> Value:
    return build.pow(x, _laid_along(node, x, y))


@onnx_op("PRelu", until=6)
def prelu(node: OnnxNode, x: Value, slope: Value) -> Value:
    """One slope, or one for each channel."""
    if slope.rank == 1 and x.rank > 1:
        slope = slope.reshape(-1, *([1] * (x.rank - 2)))
    return build.prelu(x, slope)


@onnx_op("Gemm", until=6)
def gemm_with_flag(node: OnnxNode, a: Value, b: Value, c: Value) -> Value:
    node.flag("broadcast")  # says that what broadcasts may
    return gemm(node, a, b, c)


@onnx_op("BatchNormalization", until=6)
def batch_norm_with_flag(
    node: OnnxNode, x: Value, scale: Value, bias: Value, mean: Value, variance: Value
) -> list[Value]:
    if not node.flag("is_test") and any(node.outputs[1:]):
        raise node.unsupported("statistics of the batch are not supported before opset 7")
    return batch_norm(node, x, scale, bias, mean, variance)


@onnx_op("Reshape", until=4)
def reshape_by_attribute(node: OnnxNode, x: Value) -> Value:
    return shapes.reshape(node, x, node.knows(list(node.integers("shape"))))


@onnx_op("Concat", until=3)
def concat(node: OnnxNode, *parts: Value) -> Value:
    return build.concat(*parts, axis=node.axis(parts[0].rank, 1))


@onnx_op("Tile", until=5)
def tile_along_axis(node: OnnxNode, x: Value, count: Known, axis: Known) -> Value:
    at = node.normal_axis(as_int(node, axis.reshape(-1)[0], "the axis"), x.rank)
    return shorthand.tile(x, [count.reshape(-1)[0] if i == at else 1 for i in range(x.rank)])


@onnx_op("Pad", until=1)
def pad(node: OnnxNode, x: Value) -> Value:
    fill = node.graph.constant(node.real("value", 0.0), x.dtype)
    return shapes.pad(node, x, node.knows(list(node.integers("paddings"))), fill, None)


@onnx_op("Cast", until=5)
def cast_to_name(node: OnnxNode, x: Value) -> Value:
    name = node.text("to").lower()
    if name not in _NAMES:
        raise node.unsupported(f"the dtype {name!r} is not supported")
    return x.cast(dtypes.parse(_NAMES[name]))


@onnx_op("Upsample", until=6)
def upsample(node: OnnxNode, x: Value) -> Value:
    """Of images alone."""
    return upsample_by_scales(node, x, (1.0, 1.0, node.real("height_scale"), node.real("width_scale")))
