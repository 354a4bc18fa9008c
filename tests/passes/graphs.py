"""Graphs for the tests of passes: small models written the way exporters write them, and random graphs."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array

INPUTS: dict[str, tuple[int, ...]] = {"x": (2, 5, 32)}


def _numbers(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def linear(x: Value, name: str, size: int) -> Value:
    """x · w + b, as exporters write it."""
    g, width = x.graph, x.shape[-1]
    assert isinstance(width, int)
    seed = sum(map(ord, name))
    w = g.param(f"{name}.weight", (width, size), data=_numbers((width, size), seed, 1 / math.sqrt(width)))
    return x @ w + g.param(f"{name}.bias", (size,), data=_numbers((size,), seed + 1))


def layer_norm(x: Value, name: str) -> Value:
    """Layer norm in primitives, with x - mean written twice."""
    g, width = x.graph, x.shape[-1]
    assert isinstance(width, int)
    mean = ops.reduce_mean(x, axes=(-1,), keepdims=True)
    again = ops.reduce_mean(x, axes=(-1,), keepdims=True)
    variance = ops.reduce_mean(ops.pow(x - again, 2.0), axes=(-1,), keepdims=True)
    scale = g.param(f"{name}.scale", (width,), data=_numbers((width,), 5))
    bias = g.param(f"{name}.bias", (width,), data=_numbers((width,), 6))
    y: Value = (x - mean) / ops.sqrt(variance + 1e-5) * scale + bias
    return y


def gelu(x: Value) -> Value:
    y: Value = x * 0.5 * (ops.erf(x / 1.4142135381698608) + 1.0)
    return y


def encoder(layers: int = 1, heads: int = 4, width: int = 32) -> Graph:
    """A BERT-like encoder with an additive mask; batch and length are symbolic."""
    g = Graph("encoder")
    x, keep = g.input("x", ("b", "s", width)), g.input("mask", ("b", "s"), "i64")
    mask = ((1.0 - ops.cast(keep, to="f32")) * -3.4e38)[:, None, None, :]
    for layer in range(layers):
        name = f"layer{layer}"
        q, k, v = (
            linear(x, f"{name}.{part}", width).reshape("b", "s", heads, width // heads).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(width // heads) + mask
        mixed = (ops.softmax(scores, axis=-1) @ v).transpose(0, 2, 1, 3).reshape("b", "s", width)
        x = layer_norm(x + linear(mixed, f"{name}.out", width), f"{name}.norm1")
        x = layer_norm(x + linear(gelu(linear(x, f"{name}.up", 2 * width)), f"{name}.down", width), f"{name}.norm2")
    g.output(x, name="y")
    g.bounds = {"b": (1, None), "s": (1, 512)}
    return g


def encoder_inputs(width: int = 32) -> dict[str, Array]:
    return {"x": _numbers((2, 5, width), 3), "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])}


UNARY = ("exp", "tanh", "neg", "abs", "sqrt", "square", "relu", "sigmoid", "gelu", "rsqrt")
BINARY = ("add", "sub", "mul", "div", "minimum", "maximum", "pow")
CONSTANTS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 0.25, -0.5, 3.0, math.inf, math.nan)


@st.composite
def random_graphs(draw: st.DrawFn) -> Graph:
    """A graph of up to 12 ops on two inputs: arithmetic with constants, reductions, movement, casts, selects."""
    g = Graph("random")
    values: list[Value] = [g.input("x", (3, 4)), g.input("y", ("n", 4)), g.param("w", (4,), data=_numbers((4,), 7))]
    for _ in range(draw(st.integers(1, 12))):
        values.append(_step(draw, values))
    for i, value in enumerate(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))):
        g.output(value, name=f"out{i}")
    return g


def _step(draw: st.DrawFn, values: list[Value]) -> Value:
    x = draw(st.sampled_from(values))
    kind = draw(st.sampled_from(("unary", "constant", "binary", "move", "reduce", "cast", "select", "rows")))
    if kind == "constant":
        result: Value = getattr(ops, draw(st.sampled_from(BINARY)))(x, draw(st.sampled_from(CONSTANTS)))
        return result
    if kind == "binary":
        fit = [v for v in values if v.shape == x.shape or v.rank < 2]
        y = draw(st.sampled_from(fit or [x]))
        broadcasts = y.rank == 0 or y.shape == x.shape or (y.rank == 1 and x.rank and y.shape[-1] == x.shape[-1])
        return getattr(ops, draw(st.sampled_from(BINARY)))(x, y if broadcasts else x)  # type: ignore[no-any-return]
    if kind == "select":
        return ops.select(x > 0, x, draw(st.sampled_from(CONSTANTS)))  # type: ignore[no-any-return]
    if kind == "cast":
        wide = draw(st.sampled_from(("f64", "f32")))
        return ops.cast(ops.cast(x, to=wide), to="f32")  # type: ignore[no-any-return]
    if kind == "move" and x.rank:
        return _move(draw, x)
    if kind == "reduce" and x.rank:
        op = draw(st.sampled_from(("reduce_sum", "reduce_max", "reduce_mean")))
        return getattr(ops, op)(x, axes=(draw(st.integers(-x.rank, x.rank - 1)),), keepdims=draw(st.booleans()))  # type: ignore[no-any-return]
    if kind == "rows" and x.rank:
        return getattr(ops, draw(st.sampled_from(("softmax", "layer_norm", "rms_norm"))))(x)  # type: ignore[no-any-return]
    return getattr(ops, draw(st.sampled_from(UNARY)))(x)  # type: ignore[no-any-return]


def _move(draw: st.DrawFn, x: Value) -> Value:
    kind = draw(st.sampled_from(("transpose", "reshape", "slice", "concat", "pad", "broadcast")))
    if kind == "transpose":
        return x.transpose(*draw(st.permutations(range(x.rank))))
    if kind == "reshape":
        return ops.expand_dims(x, (draw(st.integers(0, x.rank)),)) if x.rank < 4 else x.reshape(-1)  # type: ignore[no-any-return]
    if kind == "slice":
        return x[..., ::-1] if draw(st.booleans()) else x[..., :]
    if kind == "concat":
        return ops.concat(x, x, axis=-1)  # type: ignore[no-any-return]
    if kind == "pad":
        ones = (1,) * x.rank
        padded = ops.pad(x, low=ones, high=(0,) * x.rank)
        return ops.pad(padded, low=(-1,) * x.rank, high=(0,) * x.rank)  # type: ignore[no-any-return]
    return ops.broadcast_to(x, shape=x.shape)  # type: ignore[no-any-return]
