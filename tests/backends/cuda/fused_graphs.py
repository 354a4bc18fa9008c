"""Graphs whose small kernels become parts of others on CUDA, by the passes that do so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.runtime.session import Precision

WIDTH, COLUMNS, HEAD = 64, 40, 16


def weight(graph: Graph, name: str, *shape: int, dtype: str = "f32") -> Value:
    drawn = np.random.default_rng(len(name)).standard_normal(shape) / np.sqrt(shape[0])
    return graph.param(name, shape, dtype, data=drawn.astype(graph_dtype(dtype)))


def graph_dtype(dtype: str) -> np.dtype[np.generic]:
    import ml_dtypes

    return np.dtype({"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}[dtype])


def layer_norm(x: Value, scale: Value, shift: Value) -> Value:
    centred = x - ops.reduce_mean(x, axes=(-1,), keepdims=True)
    spread = ops.reduce_mean(ops.square(centred), axes=(-1,), keepdims=True)
    y: Value = centred * ops.rsqrt(spread + 1e-6) * scale + shift
    return y


def normed_product(graph: Graph, rows: int | str = "n", dtype: str = "f16", width: int = WIDTH) -> None:
    """A norm that a product reads, and others behind it too."""
    x = graph.input("x", (rows, width))
    normed = layer_norm(x, weight(graph, "scale", width), weight(graph, "shift", width))
    product = normed.cast(dtype) @ weight(graph, "w", width, COLUMNS, dtype=dtype)
    graph.output(product.cast("f32"), normed)


def exact_product(graph: Graph, rows: int | str = "n") -> None:
    """The same, all of it of f32."""
    normed_product(graph, rows, "f32")


def gated_product(graph: Graph, rows: int | str = "n", dtype: str = "bf16") -> None:
    """An activation of two halves that a product reads."""
    both = graph.input("both", (rows, 2 * WIDTH), dtype)
    gated = ops.silu(both[:, :WIDTH]) * both[:, WIDTH:]
    product = gated @ weight(graph, "w", WIDTH, COLUMNS, dtype=dtype)
    graph.output(product.cast("f32"), name="y")


def active_product(graph: Graph, rows: int | str = "n", dtype: str = "f16") -> None:
    """A gelu whose results have 16 bits."""
    product = graph.input("x", (rows, WIDTH), dtype) @ weight(graph, "w", WIDTH, COLUMNS, dtype=dtype)
    graph.output(ops.gelu(product.cast("f32") * 4.0).cast(dtype), name="y")


def gate_of_both(graph: Graph, rows: int | str = "n", dtype: str = "f16") -> None:
    """A product of which a gate reads both halves."""
    both = graph.input("x", (rows, WIDTH), dtype) @ weight(graph, "w", WIDTH, 4 * COLUMNS, dtype=dtype)
    graph.output((ops.silu(both[:, : 2 * COLUMNS]) * both[:, 2 * COLUMNS :]).cast("f32"), name="y")


def turned(x: Value, angles: Value) -> Value:
    """Rotary positions: halves of rows, one turned against the other."""
    half = HEAD // 2
    low, high = x[..., :half], x[..., half:]
    cos, sin = ops.cos(angles), ops.sin(angles)
    y: Value = ops.concat(low * cos - high * sin, high * cos + low * sin, axis=-1)
    return y


def rotary_norm(graph: Graph, rows: int | str = "n") -> None:
    """Rows of heads are normed and turned."""
    x, angles = graph.input("x", (3, rows, HEAD)), graph.input("angles", (rows, HEAD // 2))
    spread = ops.reduce_mean(ops.square(x), axes=(-1,), keepdims=True)
    normed = x * ops.rsqrt(spread + 1e-6) * weight(graph, "scale", HEAD)
    graph.output(turned(normed, angles), name="y")


def written_norm(graph: Graph, rows: int | str = "n") -> None:
    """Normed rows that go to places of a state, some of which may lie outside."""
    x, at = graph.input("x", (rows, HEAD)), graph.input("at", (), "i64")
    spread = ops.reduce_mean(ops.square(x), axes=(-1,), keepdims=True)
    state = graph.state("cache", (24, HEAD))
    written = ops.update_slice(state, x * ops.rsqrt(spread + 1e-6), at)
    graph.set_next(state, written)
    graph.output(ops.reduce_sum(written, axes=(0,)), name="sum")


def two_norms(graph: Graph, rows: int | str = "n") -> None:
    """Two softmaxes that need nothing of each other, and one that needs both."""
    x, y = graph.input("x", (rows, 40)), graph.input("y", (3, rows))
    a, b = ops.softmax(x, axis=-1), ops.softmax(y, axis=-1)
    graph.output(a, b, ops.softmax(ops.matmul(b, a), axis=-1))


def windows(graph: Graph, batch: int | str = "n") -> None:
    """Rows of a product along images and two axes of each, with pads."""
    x, w = graph.input("x", (batch, 16, 5, 6), "f16"), weight(graph, "w", 24, 16, 3, 3, dtype="f16")
    graph.output(ops.conv(x, w, strides=(2, 1), dilations=(1, 1), low=(1, 1), high=(1, 0)).cast("f32"), name="y")


def scaled_attention(graph: Graph, queries: int | str = "n") -> None:
    """Attention whose result is scaled and widened, element by element."""
    q, k, v = (graph.input(name, (2, 2, queries, HEAD), "f16") for name in "qkv")
    graph.output(ops.attention(q, k, v).transpose(0, 2, 1, 3).cast("f32") * 2.0 + 1.0, name="y")


def packed_product(graph: Graph, rows: int | str = "n", dtype: str = "f16") -> None:
    """A weight of four bits."""
    x, random = graph.input("x", (rows, WIDTH), dtype), np.random.default_rng(0)
    w = graph.param("w", (COLUMNS, WIDTH // 2), "u8", data=random.integers(0, 256, (COLUMNS, WIDTH // 2), np.uint8))
    step = random.uniform(0.01, 0.1, (COLUMNS, 2)).astype(graph_dtype(dtype))
    scale = graph.param("scale", (COLUMNS, 2), dtype, data=step)
    graph.output(ops.packed_matmul(x, w, scale, depth=WIDTH, bits=4, block=32).cast("f32"), name="y")


GRAPHS: dict[str, Callable[[Graph], None]] = {
    "flat-rows": windows,
    "side-writes": written_norm,
    "row-tails": rotary_norm,
    "one-side": rotary_norm,
    "short-factors": active_product,
    "row-prologues": normed_product,
    "paired-sums": gate_of_both,
    "side-by-side": two_norms,
    "float-parts": exact_product,
    "attention-tails": scaled_attention,
    "pack-blocks": packed_product,
    "unpack-blocks": packed_product,
}
"""By the pass without which they become other kernels."""
PRECISIONS: dict[str, Precision] = {"float-parts": "f32_fast"}
"""In which there are passes that f32 does not have."""


def graph_of(make: Callable[..., None], *args: int | str) -> Graph:
    graph = Graph(make.__name__)
    make(graph, *args)
    return graph


def inputs_of(graph: Graph, rows: int) -> dict[str, Array]:
    """Inputs for so many rows."""
    random = np.random.default_rng(rows)
    given: dict[str, Array] = {}
    for value in graph.inputs:
        shape = tuple(rows if d == "n" or not isinstance(d, int) else d for d in value.shape)
        drawn = random.standard_normal(shape)
        given[value.name] = np.array(3) if value.name == "at" else drawn.astype(value.dtype.numpy)
    return given
