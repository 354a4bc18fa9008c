"""Attention, norms and activations that models spell in primitives are found, in the spellings that exporters use."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from rlx.ir.verify import verify
from rlx.passes.pipeline import optimise, standard
from support import assert_close, run_on

B, H, SQ, SK, D, DV = 2, 4, 5, 7, 8, 6
SCALE = 1 / math.sqrt(D)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype(np.float32)


def operands(g: Graph, *, heads: int | None = None, batch: object = B) -> tuple[Value, Value, Value]:
    lead = (batch, H if heads is None else heads)
    return g.input("q", (batch, H, SQ, D)), g.input("k", (*lead, SK, D)), g.input("v", (*lead, SK, DV))


def transposed(x: Value) -> Value:
    return ops.swap_axes(x, -1, -2)  # type: ignore[no-any-return]


def plain(g: Graph) -> Value:
    q, k, v = operands(g)
    return ops.softmax(q @ transposed(k) * SCALE) @ v  # type: ignore[no-any-return]


def by_einsum(g: Graph) -> Value:
    """As diffusion nets write it, channels before positions; √scale on q and on k."""
    q, k, v = (g.input(name, (B, D, S)) for name, S in (("q", SQ), ("k", SK), ("v", SK)))
    half = math.sqrt(SCALE)
    scores = ops.einsum(q * half, k * half, equation="bct,bcs->bts")
    return ops.einsum(ops.softmax(scores), v, equation="bts,bcs->bct")  # type: ignore[no-any-return]


def by_einsum_values_first(g: Graph) -> Value:
    q, k, v = operands(g)
    scores = ops.einsum(k, q, equation="bhsd,bhtd->bhts") * SCALE
    return ops.einsum(v, ops.softmax(scores), equation="bhsd,bhts->bhtd")  # type: ignore[no-any-return]


def divided(g: Graph) -> Value:
    q, k, v = operands(g)
    return ops.softmax(q @ transposed(k) / math.sqrt(D)) @ v  # type: ignore[no-any-return]


def scale_on_q(g: Graph) -> Value:
    q, k, v = operands(g)
    return ops.softmax((q * SCALE) @ transposed(k)) @ v  # type: ignore[no-any-return]


def scale_on_both(g: Graph) -> Value:
    """As torch writes scaled_dot_product_attention: √scale on q and on kᵀ."""
    q, k, v = operands(g)
    half = math.sqrt(SCALE)
    return ops.softmax((q * half) @ (transposed(k) * half)) @ v  # type: ignore[no-any-return]


def scale_before_transpose(g: Graph) -> Value:
    q, k, v = operands(g)
    return ops.softmax(q @ transposed(k * SCALE)) @ v  # type: ignore[no-any-return]


def by_dot_axes(g: Graph) -> Value:
    q, k, v = operands(g)
    pair = {"lhs_batch": (0, 1), "rhs_batch": (0, 1), "lhs_contract": (3,)}
    weights = ops.softmax(ops.dot_general(q, k, rhs_contract=(3,), **pair) * SCALE)
    return ops.dot_general(weights, v, rhs_contract=(2,), **pair)  # type: ignore[no-any-return]


def additive_mask(g: Graph) -> Value:
    q, k, v = operands(g)
    mask = g.input("mask", (B, 1, 1, SK))
    return ops.softmax(q @ transposed(k) * SCALE + mask) @ v  # type: ignore[no-any-return]


def mask_first(g: Graph) -> Value:
    q, k, v = operands(g)
    mask = ops.broadcast_to(g.input("mask", (B, 1, 1, SK)), shape=(B, H, SQ, SK))
    return ops.softmax(mask + q @ transposed(k) * SCALE) @ v  # type: ignore[no-any-return]


def chosen_mask(g: Graph) -> Value:
    q, k, v = operands(g)
    keep = g.input("keep", (SQ, SK), "bool")
    return ops.softmax(ops.where(keep, q @ transposed(k) * SCALE, -math.inf)) @ v  # type: ignore[no-any-return]


def forbidden_mask(g: Graph) -> Value:
    q, k, v = operands(g)
    keep = g.input("keep", (SQ, SK), "bool")
    scores = ops.where(ops.logical_not(keep), -1e9, q @ transposed(k) * SCALE)
    return ops.softmax(scores) @ v  # type: ignore[no-any-return]


def guarded(g: Graph) -> Value:
    """As torch's exporter writes it: NaN of rows that are masked whole become zeros."""
    q, k, v = operands(g)
    keep = g.input("keep", (B, 1, SQ, SK), "bool")
    weights = ops.softmax(ops.where(keep, q @ transposed(k) * SCALE, -math.inf))
    return ops.where(ops.is_nan(weights), 0.0, weights) @ v  # type: ignore[no-any-return]


def soft_cap(g: Graph) -> Value:
    q, k, v = operands(g)
    scores = ops.tanh(q @ transposed(k) * SCALE / 5.0) * 5.0
    return ops.softmax(scores + g.input("mask", (SQ, SK))) @ v  # type: ignore[no-any-return]


def grouped(g: Graph) -> Value:
    """Heads repeated as transformers' repeat_kv does."""
    q, k, v = operands(g, heads=2)

    def repeat(x: Value) -> Value:
        spread = ops.broadcast_to(ops.expand_dims(x, (2,)), shape=(B, 2, 2, SK, x.shape[-1]))
        return spread.reshape(B, H, SK, x.shape[-1])  # type: ignore[no-any-return]

    return ops.softmax(q @ transposed(repeat(k)) * SCALE) @ repeat(v)  # type: ignore[no-any-return]


def rank_three(g: Graph) -> Value:
    q, k, v = g.input("q", (B, SQ, D)), g.input("k", (B, SK, D)), g.input("v", (B, SK, DV))
    return ops.softmax(q @ transposed(k) * SCALE + g.input("mask3", (B, SQ, SK))) @ v  # type: ignore[no-any-return]


def rank_two(g: Graph) -> Value:
    q, k, v = g.input("q", (SQ, D)), g.input("k", (SK, D)), g.input("v", (SK, DV))
    return ops.softmax(q @ k.T * SCALE) @ v  # type: ignore[no-any-return]


def from_projections(g: Graph) -> Value:
    """q, k, v as [B, S, H·D], split into heads and moved; k goes straight to [B, H, D, S]."""
    q, k, v = (g.input(n, ("b", s, H * size)) for n, s, size in (("q", SQ, D), ("k", SK, D), ("v", SK, DV)))
    heads = q.reshape("b", SQ, H, D).transpose(0, 2, 1, 3)
    keys = k.reshape("b", SK, H, D).transpose(0, 2, 3, 1)
    values = v.reshape("b", SK, H, DV).transpose(0, 2, 1, 3)
    return (ops.softmax(heads @ keys / math.sqrt(D)) @ values).transpose(0, 2, 1, 3)


FOUND: list[Callable[[Graph], Value]] = [
    plain, divided, by_einsum, by_einsum_values_first, scale_on_q, scale_on_both, scale_before_transpose, by_dot_axes,
    additive_mask, mask_first,
    chosen_mask, forbidden_mask, guarded, soft_cap, grouped, rank_three, rank_two, from_projections,
]  # fmt: skip


def inputs_of(graph: Graph) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    for value in graph.inputs:
        shape = tuple(d if isinstance(d, int) else 3 for d in value.shape)
        inputs[value.name] = numbers(*shape, seed=len(value.name))
        if value.dtype.name == "bool":
            inputs[value.name] = numbers(*shape) > -0.5
            inputs[value.name][..., 1, :] = False
    return inputs


@pytest.mark.parametrize("claims", [True, False], ids=["claimed", "decomposed"])
@pytest.mark.parametrize("build", FOUND, ids=lambda f: f.__name__)
def test_attention_is_found(build: Callable[[Graph], Value], claims: bool, device: str) -> None:
    graph = Graph()
    graph.output(build(graph), name="y")
    optimised, report = optimise(graph, standard(lambda node: claims))
    verify(optimised)
    assert report.rewrites.get("raise-attention/attention") == 1
    inputs = inputs_of(graph)
    assert_close(
        run_on(device, optimised, inputs)["y"], run_on("reference", graph, inputs)["y"], Tolerance(64, scale=1)
    )
    if claims:
        ops_left = {node.op.name for node in optimised.nodes}
        assert not ops_left & {"softmax", "matmul", "dot_general", "exp", "tanh"}


def test_attention_of_grouped_heads_keeps_them_few() -> None:
    graph = Graph()
    graph.output(grouped(graph), name="y")
    optimised, _ = optimise(graph, standard(lambda node: True))
    node = next(n for n in optimised.nodes if n.op.name == "attention")
    assert [v.shape[1] for v in node.inputs] == [4, 2, 2]


def weights_wanted(g: Graph) -> Value:
    q, k, v = operands(g)
    weights = ops.softmax(q @ transposed(k) * SCALE)
    g.output(weights, name="weights")
    return weights @ v  # type: ignore[no-any-return]


def other_axis(g: Graph) -> Value:
    q, k, v = operands(g)
    return ops.softmax(q @ transposed(k) * SCALE, axis=2) @ v  # type: ignore[no-any-return]


def batch_broadcast(g: Graph) -> Value:
    q, k, v = g.input("q", (B, H, SQ, D)), g.input("k", (1, H, SK, D)), g.input("v", (1, H, SK, DV))
    return ops.softmax(q @ transposed(k) * SCALE) @ v  # type: ignore[no-any-return]


@pytest.mark.parametrize("build", [weights_wanted, other_axis, batch_broadcast], ids=lambda f: f.__name__)
def test_what_is_no_attention_stays(build: Callable[[Graph], Value]) -> None:
    graph = Graph()
    graph.output(build(graph), name="y")
    optimised, report = optimise(graph, standard(lambda node: True))
    assert "raise-attention/attention" not in report.rewrites
    inputs = inputs_of(graph)
    expected = run_on("reference", graph, inputs)
    for name, array in run_on("reference", optimised, inputs).items():
        assert_close(array, expected[name], Tolerance(64, scale=1))


def raised(build: Callable[[Value], Value], shape: tuple[int, ...] = (2, 3, 16), dtype: str = "f32") -> list[str]:
    """Names of the ops that are left of a graph on one input, whose meaning must stay."""
    graph = Graph()
    x = graph.input("x", shape, dtype)
    graph.output(build(x), name="y")
    optimised, report = optimise(graph, standard(lambda node: True))
    verify(optimised)
    assert not report.unfinished
    inputs = {"x": numbers(*shape).astype(x.dtype.numpy)}
    actual, expected = run_on("reference", optimised, inputs)["y"], run_on("reference", graph, inputs)["y"]
    # what is written out in f16 is rounded at every step
    assert_close(actual, expected, Tolerance(64 if dtype == "f32" else 4 * 2**13, scale=1))
    return [node.op.name for node in optimised.nodes if node.op.name not in ("input", "constant", "param")]


HALF_PI = math.sqrt(2 / math.pi)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x * 0.5 * (ops.erf(x / math.sqrt(2)) + 1),
        lambda x: 0.5 * (x * (1 + ops.erf(x * math.sqrt(0.5)))),
        lambda x: x * ((1 + ops.erf(x / 1.4142099618911743)) * 0.5),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_gelu_is_found(build: Callable[[Value], Value], dtype: str) -> None:
    assert raised(build, dtype=dtype) == ["gelu"]


@pytest.mark.parametrize(
    "build",
    [
        lambda x: 0.5 * x * (1 + ops.tanh(HALF_PI * (x + 0.044715 * ops.pow(x, 3.0)))),
        lambda x: 0.5 * x * (1 + ops.tanh(0.7978845608 * (x + 0.044715 * (x * x * x)))),
        lambda x: 0.5 * x * (1 + ops.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))),
        lambda x: x * (0.5 * (ops.tanh((x + ops.pow(x, 3.0) * 0.044715) * HALF_PI) + 1)),
    ],
)
def test_gelu_in_the_tanh_form_is_found(build: Callable[[Value], Value]) -> None:
    assert raised(build) == ["gelu"]


def test_silu_and_mish_are_found() -> None:
    assert raised(lambda x: x * ops.sigmoid(x)) == ["silu"]
    assert raised(lambda x: ops.tanh(ops.softplus(x)) * x) == ["mish"]


def norm(x: Value, how: str) -> Value:
    mean = ops.reduce_mean(x, axes=(-1,), keepdims=True)
    d = x - mean
    variance = ops.reduce_mean({"pow": ops.pow(d, 2.0), "mul": d * d, "twice": (x - mean) * d}[how], axes=(-1,),
                               keepdims=True)  # fmt: skip
    return d / ops.sqrt(variance + 1e-5)  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["pow", "mul", "twice"])
def test_layer_norm_is_found(how: str) -> None:
    scale, bias = numbers(16, seed=1), numbers(16, seed=2)
    assert raised(lambda x: norm(x, how)) == ["layer_norm"]
    assert raised(lambda x: norm(x, how) * scale + bias) == ["layer_norm"]
    assert raised(lambda x: bias + scale * norm(x, how)) == ["layer_norm"]


def test_scale_that_varies_by_row_is_not_taken_in() -> None:
    scale = numbers(3, 1, seed=1)
    assert raised(lambda x: norm(x, "mul") * scale) == ["layer_norm", "mul"]


@pytest.mark.parametrize(
    "root",
    [
        lambda x, v: x / ops.sqrt(v),
        lambda x, v: x * ops.rsqrt(v),
        lambda x, v: x * ops.reciprocal(ops.sqrt(v)),
        lambda x, v: x * (1.0 / ops.sqrt(v)),
        lambda x, v: x * ops.pow(v, -0.5),
    ],
)
def test_rms_norm_is_found(root: Callable[[Value, Value], Value]) -> None:
    scale = numbers(16, seed=1)

    def build(x: Value) -> Value:
        mean_square = ops.reduce_mean(ops.pow(x, 2.0), axes=(-1,), keepdims=True)
        return root(x, mean_square + 1e-6) * scale

    assert raised(build) == ["rms_norm"]
