"""A small graph for every named rewrite, on which it must happen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Value, call

Make = Callable[[Graph], Any]
SIZES = {"n": 3, "s": 4, "t": 5}
"""What symbolic dims are when the graphs run."""
GRAPHS: dict[str, Make] = {}


def f32(g: Graph, *shape: Any, name: str = "x") -> Value:
    return g.input(name, shape or (3, 4))


def pair(g: Graph) -> tuple[Value, Value]:
    return g.input("x", (3, 4)), g.input("y", (3, 4))


def positive(g: Graph) -> Value:
    y: Value = ops.abs(f32(g)) + 1.0
    return y


def shows(name: str) -> Callable[[Make], Make]:
    """Registers the graph of a rewrite."""

    def register(make: Make) -> Make:
        assert name not in GRAPHS, name
        GRAPHS[name] = make
        return make

    return register


def held(g: Graph, name: str, *shape: int) -> Value:
    """A weight of numbers that make results as large as operands."""
    data = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return g.param(name, shape, data=data / np.float32(data[0].size ** 0.5))


def convolved(x: Value, w: Value) -> Value:
    result: Value = ops.conv(x, w, strides=(1, 1), dilations=(1, 1), low=(1, 1), high=(1, 1))
    return result


GRAPHS.update({
    "simplify/cast-to-same": lambda g: ops.cast(f32(g), to="f32"),
    "simplify/cast-of-exact-cast": lambda g: ops.cast(ops.cast(f32(g), to="f64"), to="f32"),
    "simplify/widen-behind-moves": lambda g: ops.exp(f32(g)).cast("f16").cast("f32").T * 2.0,
    "simplify/narrow-before-moves": lambda g: ops.cast(ops.exp(f32(g)).T, to="f16"),
    "simplify/multiply-by-one": lambda g: f32(g) * 1.0,
    "simplify/divide-by-one": lambda g: f32(g) / 1.0,
    "simplify/add-negative-zero": lambda g: f32(g) + -0.0,
    "simplify/subtract-zero": lambda g: f32(g) - 0.0,
    "simplify/double-negation": lambda g: ops.neg(-f32(g)),
    "simplify/double-not": lambda g: ops.bitwise_not(ops.bitwise_not(g.input("i", (5,), "i32"))),
    "simplify/absolute-of-absolute": lambda g: ops.abs(ops.abs(f32(g))),
    "simplify/absolute-of-negation": lambda g: ops.abs(-f32(g)),
    "simplify/reciprocal-of-sqrt": lambda g: ops.reciprocal(ops.sqrt(positive(g))),
    "simplify/one-by-sqrt": lambda g: 1.0 / ops.sqrt(positive(g)),
    "simplify/divide-by-power-of-two": lambda g: f32(g) / 4.0,
    "simplify/power-of-one": lambda g: ops.pow(f32(g), 1.0),
    "simplify/power-of-two": lambda g: ops.pow(f32(g), 2.0),
    "simplify/power-of-three": lambda g: ops.pow(f32(g), 3.0),
    "simplify/power-of-minus-one": lambda g: ops.pow(f32(g), -1.0),
    "simplify/power-of-half": lambda g: ops.pow(ops.abs(f32(g)), 0.5),
    "simplify/power-of-minus-half": lambda g: ops.pow(ops.abs(f32(g)), -0.5),
    "simplify/multiply-by-itself": lambda g: (x := f32(g)) * x,
    "simplify/select-of-true": lambda g: ops.select(g.constant(True), *pair(g)),
    "simplify/select-of-false": lambda g: ops.select(g.constant(False), *pair(g)),
    "simplify/select-of-equals": lambda g: ops.select(g.input("p", (3, 4), "bool"), x := f32(g), x),
    "simplify/select-of-not": lambda g: ops.select(ops.bitwise_not(g.input("p", (3, 4), "bool")), *pair(g)),
    "simplify/identity-reshape": lambda g: ops.reshape(f32(g), shape=(3, 4)),
    "simplify/double-reshape": lambda g: ops.reshape(ops.reshape(f32(g), shape=(12,)), shape=(2, 6)),
    "simplify/double-transpose": lambda g: f32(g, 2, 3, 4).transpose(1, 2, 0).transpose(0, 2, 1),
    "simplify/transpose-of-ones": lambda g: f32(g, 1, 4).transpose(1, 0),
    "simplify/transpose-behind-merged-axes":
        lambda g: f32(g, 2, 3, 4, 5).reshape(6, 4, 5).transpose(0, 2, 1).reshape(2, 3, 5, 4),
    "simplify/identity-broadcast": lambda g: ops.broadcast_to(f32(g), shape=(3, 4)),
    "simplify/double-broadcast":
        lambda g: ops.broadcast_to(ops.broadcast_to(f32(g, 4), shape=(3, 4)), shape=(2, 3, 4)),
    "simplify/identity-slice": lambda g: ops.slice(f32(g), starts=(0, 0), stops=(3, 4), steps=(1, 1)),
    "simplify/slice-of-slice": lambda g: f32(g, 9)[1:][2:5],
    "simplify/identity-pad": lambda g: ops.pad(f32(g), low=(0, 0), high=(0, 0)),
    "simplify/concat-of-one": lambda g: ops.concat(f32(g), axis=0),
    "simplify/concat-of-concat": lambda g: ops.concat(ops.concat(*pair(g), axis=0), g.inputs[0], axis=0),
    "simplify/operand-broadcasts-by-itself":
        lambda g: f32(g) + ops.broadcast_to(g.input("v", (4,)), shape=(3, 4)),
    "simplify/gather-of-dims": lambda g: ops.gather(dims_of(g), g.constant(np.array([1, 0])), axis=0),
    "simplify/slice-of-dims": lambda g: ops.slice(dims_of(g), starts=(0,), stops=(1,), steps=(1,)),
    "simplify/cast-of-dims": lambda g: ops.cast(dims_of(g), to="f32"),
})  # fmt: skip


def dims_of(g: Graph) -> Value:
    x = g.input("x", ("n", 4))
    tensor: Value = ops.dims_tensor(g, values=x.shape, dtype="i64")
    return tensor


GRAPHS.update({
    "canonical/axis-from-the-front": lambda g: ops.concat(*pair(g), axis=-1),
    "canonical/axes-from-the-front": lambda g: ops.reduce_sum(f32(g), axes=(-1, 0), keepdims=True),
    "canonical/reduction-keeps-axes": lambda g: ops.reduce_sum(f32(g), axes=(1,)),
    "canonical/matmul-by-matrix": lambda g: ops.matmul(f32(g), g.input("w", (4, 2))),
    "canonical/gather-of-one": lambda g: ops.gather(f32(g), g.constant(np.array(2)), axis=0),
    "dce/drop": lambda g: (ops.exp(x := f32(g)), x + 1.0)[1],
    "cse/merge": lambda g: ops.exp(x := f32(g)) + ops.tanh(ops.exp(x)),
    "fold/evaluate": lambda g: f32(g) + ops.exp(g.constant(np.ones(4, np.float32))),
    "merge-dots/same-operand": lambda g: ops.tanh((x := f32(g)) @ weight(g, "a")) * ops.exp(x @ weight(g, "b")),
    "quantise/product": lambda g: f32(g, "n", 32) @ held(g, "w", 32, 16),
    "quantise/convolution": lambda g: convolved(f32(g, "n", 4, 7, 7), held(g, "w", 16, 4, 3, 3)),
    "quantise/sum": lambda g: ops.add(
        convolved(x := ops.relu(f32(g, "n", 16, 7, 7)), held(g, "w", 16, 16, 3, 3)), x
    ),
    "precision/compute-in": lambda g: ops.exp(f32(g)),
    "transpose-weights/right":
        lambda g: ops.dot_general(f32(g), weight(g, "w", 2, 4), lhs_contract=(1,), rhs_contract=(1,)),
    "layout/convolution": lambda g: convolution(g),
    "narrow-activations/activation": lambda g: pooled_convolution(g),
    "narrow-rows/rows": lambda g: rows_in_bytes(g),
    "narrow-norms/norm": lambda g: normed_between_products(g),
    "layout/follow": lambda g: ops.relu(convolution(g)),
    "raise-activation/gelu": lambda g: (x := f32(g)) * 0.5 * (ops.erf(x / math.sqrt(2)) + 1.0),
    "raise-activation/gelu-tanh": lambda g: (x := f32(g)) * 0.5 * (
        ops.tanh((x + ops.pow(x, 3.0) * 0.044715) * math.sqrt(2 / math.pi)) + 1.0),
    "raise-activation/silu": lambda g: (x := f32(g)) * ops.sigmoid(x),
    "raise-activation/mish": lambda g: (x := f32(g)) * ops.tanh(ops.softplus(x)),
    "raise-norm/layer-norm": lambda g: normed(g),
    "raise-norm/layer-norm-scale": lambda g: normed(g) * weight(g, "scale", 4),
    "raise-norm/group-norm": lambda g: instances_of_groups(g),
    "raise-norm/layer-norm-bias": lambda g: normed(g) * weight(g, "scale", 4) + weight(g, "bias", 4),
    "raise-norm/rms-norm": lambda g: by_mean_square(g),
    "raise-norm/rms-norm-scale": lambda g: by_mean_square(g) * weight(g, "scale", 4),
    "raise-attention/attention": lambda g: attention_in_parts(g),
})  # fmt: skip


def weight(g: Graph, name: str, *shape: int) -> Value:
    size = shape or (4, 5)
    return g.param(name, size, data=np.random.default_rng(len(name)).standard_normal(size, np.float32))


def convolution(g: Graph) -> Value:
    y: Value = ops.conv(f32(g, 1, 3, 6, 5), weight(g, "w", 4, 3, 2, 2), strides=(1, 1), dilations=(1, 1),
                           low=(1, 0), high=(0, 1))  # fmt: skip
    return y


def pooled_convolution(g: Graph) -> Value:
    """Of narrow floats, whose rounding a relu and a pool leave as it is."""
    x, w = g.input("x", (1, 3, 6, 5), "f16"), weight(g, "w", 4, 3, 2, 2).cast("f16")
    y = ops.conv(x, w, strides=(1, 1), dilations=(1, 1), low=(1, 0), high=(0, 1)).cast("f32")
    size = {"window": (2, 2), "strides": (1, 1), "dilations": (1, 1), "low": (0, 0), "high": (0, 0)}
    pooled: Value = ops.reduce_window(ops.relu(y), combine="max", **size)
    return ops.reduce_sum(pooled, axes=(2, 3))


def normed_between_products(g: Graph) -> Value:
    """Of narrow floats, with a norm whose operand nothing else reads, and whose result is added to a product of it."""

    def product(x: Value, name: str) -> Value:
        return (x.cast("f16") @ weight(g, name, 4, 4).cast("f16")).cast("f32")

    given = product(f32(g), "w") + 1.0
    y: Value = ops.layer_norm(given, weight(g, "scale", 4), weight(g, "bias", 4), epsilon=1e-5)
    return y + product(y, "v")


def rows_in_bytes(g: Graph) -> Value:
    """What a product of narrow floats makes, by the greatest of each row."""
    product = (f32(g).cast("f16") @ weight(g, "w", 4, 6).cast("f16")).cast("f32")
    most = ops.reduce_max(ops.relu(product), axes=(1,), keepdims=True) + 1.0
    return ops.round(ops.relu(product) * (255.0 / most)).cast("u8").cast("f32") * most * (1 / 255)


def instances_of_groups(g: Graph) -> Value:
    x = g.input("x", ("n", 6, 4, "s"))
    flat = x.reshape(x.shape[0], 3, dims.product((2, *x.shape[2:])))
    normed: Value = ops.instance_norm(flat, weight(g, "scale", 3), weight(g, "bias", 3), epsilon=1e-3)
    return normed.reshape(x.shape)


def normed(g: Graph) -> Value:
    x = f32(g)
    centred = x - ops.reduce_mean(x, axes=(1,), keepdims=True)
    y: Value = centred / ops.sqrt(ops.reduce_mean(ops.square(centred), axes=(1,), keepdims=True) + 1e-5)
    return y


def by_mean_square(g: Graph) -> Value:
    x = f32(g)
    y: Value = x * ops.rsqrt(ops.reduce_mean(ops.square(x), axes=(1,), keepdims=True) + 1e-5)
    return y


def queries_keys_values(g: Graph) -> tuple[Value, Value, Value]:
    return g.input("q", (2, 3, "s", 4)), g.input("k", (2, 3, "t", 4)), g.input("v", (2, 3, "t", 4))


def attention_in_parts(g: Graph) -> Value:
    q, k, v = queries_keys_values(g)
    y: Value = ops.softmax(q @ k.transpose(0, 1, 3, 2) * 0.5, axis=-1) @ v
    return y


# quantised


def of_bytes(g: Graph, name: str, *shape: int, dtype: str = "u8") -> Value:
    scale, zero = g.constant(np.float32(0.02)), g.constant(np.asarray(3, np.uint8 if dtype == "u8" else np.int8))
    value: Value = ops.dequantize(g.input(name, shape, dtype), scale, zero, dtype="f32")
    return value


@shows("raise-quantised/again")
def _again(g: Graph) -> Value:
    value: Value = ops.quantize(of_bytes(g, "b", 3, 4), *g.nodes[-1].inputs[1:], dtype="u8")
    return value


GRAPHS.update({
    "raise-quantised/matmul": lambda g: of_bytes(g, "a", 2, 3, 4) @ of_bytes(g, "b", 2, 4, 5, dtype="i8"),
    "raise-quantised/dot": lambda g: ops.dot_general(
        of_bytes(g, "a", 3, 4), of_bytes(g, "b", 4, 5, dtype="i8"), lhs_contract=(1,), rhs_contract=(0,)),
    "raise-quantised/conv": lambda g: ops.conv(
        of_bytes(g, "a", 1, 3, 6, 5), of_bytes(g, "b", 4, 3, 2, 2, dtype="i8"), strides=(1, 1), dilations=(1, 1),
        low=(0, 0), high=(0, 0)),
    "raise-quantised/move": lambda g: of_bytes(g, "a", 3, 4).reshape(12),
    "raise-quantised/transpose": lambda g: of_bytes(g, "a", 3, 4).transpose(1, 0),
    "raise-quantised/pool": lambda g: ops.reduce_window(
        of_bytes(g, "a", 1, 2, 6), combine="max", window=(2,), strides=(2,), dilations=(1,), low=(0,), high=(0,)),
})  # fmt: skip


@shows("raise-integers/matmul")
def _widened_bytes(g: Graph) -> Value:
    x, y = g.input("x", (2, 3, 4), "u8"), g.input("y", (2, 5, 4), "u8")
    product: Value = x.cast("i32") @ y.cast("i32").transpose(0, 2, 1)
    return product


# joins

GRAPHS.update({
    "joins/concat-as-choice": lambda g: ops.concat(f32(g, "s", 3), g.input("y", ("s", 2)) * 2.0, axis=-1) + 1.0,
})  # fmt: skip


# masks


def row(g: Graph) -> Value:
    iota: Value = ops.iota(g, shape=("s",), dtype="i64").reshape("s", 1)
    return iota


def column(g: Graph) -> Value:
    iota: Value = ops.iota(g, shape=("t",), dtype="i64").reshape(1, "t")
    return iota


def masked(g: Graph, mask: Callable[[Graph], Value]) -> Value:
    q, k, v = queries_keys_values(g)
    y: Value = ops.attention(q, k, v, mask(g))
    return y


def inside(g: Graph) -> Value:
    """Places of three rows."""
    indices: Value = ops.minimum(ops.maximum(g.input("i", (2,), "i64"), 0), 2)
    return indices


def places(g: Graph, size: Any, axis: int, rank: int) -> Value:
    iota: Value = ops.iota(g, shape=(size,), dtype="i64").reshape(*(size if a == axis else 1 for a in range(rank)))
    return iota


@shows("masks/gather-of-all-points")
def _points(g: Graph) -> Value:
    x = f32(g, "n", "s", 2)
    columns = [ops.broadcast_to(places(g, size, axis, 3), shape=("n", "s", 1)) for axis, size in enumerate("ns")]
    y: Value = ops.gather_nd(x, ops.concat(*columns, axis=-1))
    return y


@shows("masks/gather-of-all-places")
def _places(g: Graph) -> Value:
    x = f32(g, "n", "s", 2)
    flat = places(g, "n", 0, 2) * ops.dims_tensor(g, values=(x.shape[1],), dtype="i64") + places(g, "s", 1, 2)
    y: Value = ops.gather(x.reshape(x.shape[0] * x.shape[1], 2), flat, axis=0)
    return y


GRAPHS.update({
    "masks/comparison-of-places": lambda g: (f32(g, "s", 1), row(g) >= 0)[1],
    "masks/comparison-of-a-choice": lambda g: ops.eq(ops.select(f32(g) > 0, 1.0, 0.0), 1.0),
    "masks/and-of-true": lambda g: ops.bitwise_and(f32(g) > 0, g.constant(True)),
    "masks/gather-of-a-run": lambda g: ops.gather(f32(g, 9, 2), ops.iota(g, shape=(4,), dtype="i64") + 2, axis=0),
    "masks/gather-by-a-broadcast": lambda g: ops.gather(
        f32(g), ops.broadcast_to(inside(g), shape=(5, 2)), axis=0),
    "masks/gather-of-one-number": lambda g: ops.gather(
        g.constant(np.full((3, 4), 7, np.float32)), inside(g), axis=0),
    "masks/attention-by-choice": lambda g: masked(
        g, lambda g: ops.select(g.input("p", (2, 1, 1, "t"), "bool"), g.constant(np.float32(0)), -math.inf)),
    "masks/attention-broadcasts-its-mask": lambda g: masked(
        g, lambda g: ops.broadcast_to(g.input("m", (2, 1, 1, "t")), shape=(2, 3, "s", "t"))),
    "masks/causal-attention": lambda g: masked(g, lambda g: (row(g) + 1 >= column(g))[None, None]),
})  # fmt: skip


# loops, and what only mlx has


@shows("hoist/invariant")
def _invariant(g: Graph) -> Any:
    body = Graph("body")
    state, one, stays = body.input("state", (2,)), body.input("row", (2,)), body.input("stays", (2,))
    body.output(state + one * ops.exp(stays), name="state")
    operands = g.input("a", (2,)), g.input("rows", (3, 2)), g.input("stays", (2,))
    return call("scan", *operands, carried=1, sequences=1, length=3, regions=[body])


def packed(g: Graph, *zero: Value) -> Value:
    y: Value = ops.packed_matmul(f32(g, 3, 64), g.input("w", (4, 32), "u8"), g.input("scale", (4, 2)), *zero,
                                    depth=64, bits=4, block=32)  # fmt: skip
    return y


GRAPHS.update({
    "mlx-packed/half": lambda g: packed(g),
    "mlx-packed/zero": lambda g: packed(g, g.input("zero", (4, 2))),
    "mlx-weights/weight": lambda g: f32(g, 3, 64) @ ops.dequantize(
        g.constant((np.arange(64 * 5) % 251 - 125).reshape(64, 5).astype(np.int8)), g.constant(np.float32(0.02)),
        dtype="f32"),
})  # fmt: skip
