"""Masks and gathers of positions: what they come to, and that results stay."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx import ops
from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from rlx.ir.verify import verify
from rlx.ops.transformer import Attention
from rlx.passes import simplify
from rlx.passes.affine import affine, not_negative
from rlx.passes.driver import Context, run_passes
from rlx.passes.masks import rules
from support import assert_close, binding_of, run_on

B, H, D = 2, 3, 4
Mask = Callable[[Graph], Value]


def positions(g: Graph, size: str, axis: int, rank: int = 2) -> Value:
    line = ops.iota(g, shape=(size,), dtype="i64")
    return line.reshape(tuple(size if a == axis % rank else 1 for a in range(rank)))  # type: ignore[no-any-return]


def row(g: Graph) -> Value:
    return positions(g, "s", 0)


def column(g: Graph) -> Value:
    return positions(g, "t", 1)


def padding(g: Graph) -> Value:
    return ops.cast(g.input("keep", (B, "t"), "i64"), to="bool")[:, None, None, :]  # type: ignore[no-any-return]


def additive(condition: Value, fill: float = -math.inf) -> Value:
    zero = condition.graph.constant(np.float32(0))
    return ops.where(condition, zero, condition.graph.constant(np.float32(fill)))  # type: ignore[no-any-return]


def by_tril(g: Graph) -> Value:
    """As torch's exporter writes is_causal: ones, a triangle, a comparison, a choice."""
    ones = ops.broadcast_to(g.constant(np.float32(1)), shape=("s", "t"))
    return additive(ops.ne(ops.tril(ones), 0.0))


CAUSAL: dict[str, tuple[Mask, int, bool]] = {
    # name: mask, offset, whether a mask is left
    "ge": (lambda g: row(g) >= column(g), 0, False),
    "le": (lambda g: column(g) <= row(g), 0, False),
    "lt-next": (lambda g: column(g) < row(g) + 1, 0, False),
    "not-gt": (lambda g: ops.logical_not(column(g) > row(g)), 0, False),
    "difference": (lambda g: column(g) - row(g) <= 2, 2, False),
    "leading-ones": (lambda g: (row(g) >= column(g))[None, None], 0, False),
    "additive": (lambda g: additive(row(g) >= column(g)), 0, False),
    "additive-finite": (lambda g: additive(row(g) >= column(g), -3.4028235e38), 0, False),
    "tril": (by_tril, 0, False),
    "with-padding": (lambda g: ops.logical_and(padding(g), row(g) >= column(g)), 0, True),
    "padding-added": (lambda g: additive(ops.logical_and(row(g) >= column(g), padding(g))), 0, True),
    "true-beside": (lambda g: ops.logical_and(row(g) >= 0, row(g) >= column(g)), 0, False),
}


def attention(mask: Mask) -> Graph:
    g = Graph()
    q, k, v = (g.input(n, (B, H, s, D)) for n, s in (("q", "s"), ("k", "t"), ("v", "t")))
    g.output(ops.attention(q, k, v, mask(g)), name="y")
    return g


def inputs_of(g: Graph, s: int = 5, t: int = 5) -> dict[str, Array]:
    dice = np.random.default_rng(1)
    inputs: dict[str, Array] = {}
    for value in g.inputs:
        shape = [{"s": s, "t": t}.get(str(d), d) for d in value.shape]
        inputs[value.name] = dice.normal(size=shape).astype(np.float32)
        if value.name == "keep":
            inputs["keep"] = (dice.normal(size=shape) > -0.8).astype(np.int64)
    return inputs


def simplified(g: Graph) -> tuple[Graph, dict[str, int]]:
    context = Context(stop_at=-1)
    optimised = run_passes(g, [simplify.rules, rules], context)
    verify(optimised)
    assert not context.report.unfinished
    return optimised, context.report.rewrites


def the_attention(g: Graph) -> tuple[Attention, int]:
    node = next(n for n in g.nodes if isinstance(n.op, Attention))
    assert isinstance(node.op, Attention)
    return node.op, len(node.inputs)


@pytest.mark.parametrize("lengths", [(5, 5), (3, 7), (7, 3)])
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks_are_found(name: str, lengths: tuple[int, int]) -> None:
    mask, offset, remaining = CAUSAL[name]
    graph = attention(mask)
    optimised, _ = simplified(graph)
    op, operands = the_attention(optimised)
    assert (op.causal, op.offset, operands) == (True, offset, 4 if remaining else 3)
    inputs = inputs_of(graph, *lengths)
    assert_close(
        run_on("reference", optimised, inputs)["y"], run_on("reference", graph, inputs)["y"], Tolerance(64, scale=1)
    )


@pytest.mark.parametrize(
    "mask",
    [
        lambda g: row(g) <= column(g),
        lambda g: row(g) * 2 >= column(g),
        lambda g: ops.logical_or(row(g) >= column(g), padding(g)),
        lambda g: additive(row(g) >= column(g), -10000.0),
        lambda g: g.input("any", ("s", "t")),
    ],
)
def test_other_masks_stay(mask: Mask) -> None:
    graph = attention(mask)
    optimised, _ = simplified(graph)
    op, operands = the_attention(optimised)
    assert not op.causal and operands == 4
    inputs = inputs_of(graph)
    assert_close(
        run_on("reference", optimised, inputs)["y"], run_on("reference", graph, inputs)["y"], Tolerance(64, scale=1)
    )


def test_a_mask_that_always_holds_goes() -> None:
    optimised, _ = simplified(attention(lambda g: ops.logical_and(row(g) >= 0, column(g) > -1)))
    op, operands = the_attention(optimised)
    assert operands == 3 and not op.causal


def padded(g: Graph, how: str) -> Value:
    """The padding mask as transformers' masking utilities are exported: indexed by batch and key positions."""
    keep = ops.cast(g.input("keep", ("b", "t"), "i64"), to="bool")
    batch, key = positions(g, "b", 0, 4), positions(g, "t", 3, 4)
    if how == "points":
        shape = ("b", 1, 1, "t")
        vectors = [ops.broadcast_to(part, shape=shape).reshape(*shape, 1) for part in (batch, key)]
        picked = ops.gather_nd(keep, ops.concat(*vectors, axis=-1))
    else:
        flat = keep.reshape(-1, 1)
        length = ops.dims_tensor(g, values=("t",))
        picked = ops.gather(flat, key + batch * length).reshape("b", 1, 1, "t")
    rows = positions(g, "s", 2, 4)
    return ops.logical_and(ops.logical_and(g.constant(True), rows >= 0), picked)  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["points", "flat"])
def test_padding_masks_keep_one_row(how: str) -> None:
    graph = Graph()
    q, k, v = (graph.input(n, ("b", H, s, D)) for n, s in (("q", "s"), ("k", "t"), ("v", "t")))
    graph.output(ops.attention(q, k, v, additive(padded(graph, how), -3.4028235e38)), name="y")
    optimised, _ = simplified(graph)
    node = next(n for n in optimised.nodes if isinstance(n.op, Attention))
    assert str(node.inputs[3].type) == "bool[b, 1, 1, t]"
    assert not {"gather", "gather_nd", "iota", "ge", "bitwise_and"} & {n.op.name for n in optimised.nodes}
    dice = np.random.default_rng(0)
    inputs = {n: dice.normal(size=(2, H, 5, D)).astype(np.float32) for n in "qkv"}
    inputs["keep"] = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert_close(
        run_on("reference", optimised, inputs)["y"], run_on("reference", graph, inputs)["y"], Tolerance(64, scale=1)
    )


@pytest.mark.parametrize(
    ("build", "remaining"),
    [
        (lambda g, x: ops.gather(x, ops.iota(g, shape=(3,), dtype="i64")), {"slice"}),
        (lambda g, x: ops.gather(x, np.arange(1, 5)[None]), {"slice", "reshape"}),
        (lambda g, x: ops.gather(x, np.arange(4, 8)), {"gather"}),
        (lambda g, x: ops.gather(x, np.arange(0, 6, 2)), {"gather"}),
        (lambda g, x: ops.gather(x, np.array([-1, 0])), {"gather"}),
        (lambda g, x: ops.gather(x, ops.broadcast_to(g.constant(np.array([[1], [3]])), shape=(2, 4))),
         {"gather", "broadcast_to"}),
        (lambda g, x: ops.gather(g.constant(np.full((4, 2), 7.0)), g.input("i", (5,), "i64")), {"broadcast_to"}),
        (lambda g, x: ops.gather(g.constant(np.eye(4)), g.input("i", (5,), "i64")), {"gather"}),
    ],
)  # fmt: skip
def test_gathers_of_places(build: Callable[[Graph, Value], Value], remaining: set[str]) -> None:
    graph = Graph()
    graph.output(build(graph, graph.input("x", (6, 3))), name="y")
    optimised, _ = simplified(graph)
    assert {n.op.name for n in optimised.nodes} - {"input", "constant", "iota"} == remaining
    inputs = {"x": np.arange(18, dtype=np.float32).reshape(6, 3), "i": np.array([0, 3, 1, 9, -1])}
    inputs = {v.name: inputs[v.name] for v in graph.inputs}
    np.testing.assert_array_equal(run_on("reference", optimised, inputs)["y"], run_on("reference", graph, inputs)["y"])


@st.composite
def integer_values(draw: st.DrawFn) -> tuple[Graph, Value]:
    """An integer value built of positions, numbers from dims and constants."""
    g = Graph()
    g.input("x", ("n", 3))
    values: list[Value] = [
        ops.iota(g, shape=("n", 3), dtype="i64", axis=draw(st.integers(0, 1))),
        ops.iota(g, shape=(3,), dtype="i64"),
        ops.dims_tensor(g, values=("n",)).reshape(),
        g.constant(np.array(draw(st.integers(-4, 4)))),
        g.constant(np.arange(3)[::-1].copy()),
    ]
    for _ in range(draw(st.integers(1, 6))):
        a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        kind = draw(st.sampled_from(("add", "sub", "mul", "move", "broadcast", "cast")))
        if kind in ("add", "sub", "mul"):
            with contextlib.suppress(rlx.ShapeError):  # slices have made them of unlike extents
                values.append(getattr(ops, kind)(a, b))
        elif kind == "move" and a.rank == 2 and a.shape[1] == 3:
            values.append(a[:, ::-1] if draw(st.booleans()) else a[None, :, 1:].reshape("n", 2))
        elif kind == "broadcast" and a.rank < 2 and (a.rank == 0 or a.shape == (3,)):
            values.append(ops.broadcast_to(a, shape=("n", 3)))
        elif kind == "cast":
            values.append(ops.cast(ops.cast(a, to="i32"), to="i64"))
    return g, values[-1]


@settings(max_examples=300, deadline=None)
@given(case=integer_values(), n=st.integers(1, 4))
def test_affine_forms_are_what_the_values_are(case: tuple[Graph, Value], n: int) -> None:
    graph, value = case
    form = affine(value)
    if form is None:
        return
    graph.output(value, value >= 1, name=None)
    inputs = {"x": np.zeros((n, 3), np.float32)}
    env = binding_of(graph, inputs)
    actual = next(iter(run_on("reference", graph, inputs).values()))
    expected = np.full(actual.shape, dims.evaluate(form.constant, env))
    for axis, coefficient in form.coefficients.items():
        places = np.arange(actual.shape[axis]).reshape(
            [-1 if a - actual.ndim == axis else 1 for a in range(actual.ndim)]
        )
        expected = expected + places * dims.evaluate(coefficient, env)
    np.testing.assert_array_equal(actual, expected)
    gap = not_negative(graph.nodes[-1].outputs[0])
    assert gap is not None
    assert actual.min() - 1 >= gap.least(value.shape, {"n": (1, 4)})
