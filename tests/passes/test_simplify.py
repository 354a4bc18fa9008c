"""Each identity: it applies where it holds, and gives the same, NaN, infinities and signed zeros included."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.op import Elementwise, Op, Tolerance
from rlx.ir.verify import verify
from rlx.passes import canonical, simplify
from rlx.passes.cse import Cse
from rlx.passes.dce import Dce
from rlx.passes.driver import Context, Pass, Rules, run_passes
from rlx.passes.fold import Fold
from rlx.passes.merge_dots import MergeDots
from rlx.passes.pattern import Const, Is, Var, Where
from rlx.passes.pipeline import optimise
from rlx.passes.precision import Precision
from support import assert_close, run_on

Build = Callable[[Value], Value]

SPECIAL = np.array([[0.0, -0.0, 1, -1, 0.3], [math.inf, -math.inf, math.nan, 2.5, -7], [1e-40, 3e38, 1e-3, 8, -0.1]],
                   np.float32)  # fmt: skip


def after(passes: Pass | list[Pass], build: Build, x: Array = SPECIAL) -> list[str]:
    """The ops that are left after some passes. The results must be the same, signs of zeros included."""
    graph = Graph()
    graph.output(build(graph.input("x", x.shape, x.dtype)), name="y")
    context = Context(stop_at=-1)
    optimised = run_passes(graph, passes if isinstance(passes, list) else [passes], context)
    verify(optimised)
    assert not context.report.unfinished
    actual, expected = run_on("reference", optimised, {"x": x})["y"], run_on("reference", graph, {"x": x})["y"]
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert_close(actual, expected, Tolerance(1))
    if expected.dtype.kind == "f":
        known = ~np.isnan(expected)
        assert np.array_equal(np.signbit(actual)[known], np.signbit(expected)[known])
    return [node.op.name for node in optimised.nodes if node.op.name not in ("input", "constant")]


@pytest.mark.parametrize(
    ("build", "remaining"),
    [
        (lambda x: ops.cast(x, to="f32"), []),
        (lambda x: ops.cast(ops.cast(x, to="f64"), to="f16"), ["cast"]),
        (lambda x: ops.cast(ops.cast(x, to="f64"), to="f32"), []),
        (lambda x: ops.cast(ops.cast(x, to="f16"), to="f32"), ["cast", "cast"]),
        (lambda x: ops.cast(ops.cast(ops.cast(x, to="i8"), to="f32"), to="u8"), ["cast", "cast", "cast"]),
        (lambda x: x * 1.0, []),
        (lambda x: 1.0 * x / 1.0, []),
        (lambda x: x + -0.0, []),
        (lambda x: x + 0.0, ["add"]),
        (lambda x: x - 0.0, []),
        (lambda x: x - -0.0, ["sub"]),
        (lambda x: x * 0.0, ["mul"]),
        (lambda x: ops.neg(ops.neg(x)), []),
        (lambda x: abs(-x), ["abs"]),
        (lambda x: abs(abs(x)), ["abs"]),
        (lambda x: x / 4.0, ["mul"]),
        (lambda x: x / -0.5, ["mul"]),
        (lambda x: x / 3.0, ["div"]),
        (lambda x: x / 2.0**127, ["div"]),
        (lambda x: 1.0 / ops.sqrt(x), ["rsqrt"]),
        (lambda x: ops.reciprocal(ops.sqrt(x)), ["rsqrt"]),
        (lambda x: ops.pow(x, 1.0), []),
        (lambda x: ops.pow(x, 2.0), ["square"]),
        (lambda x: x * x, ["square"]),
        (lambda x: ops.pow(x, -1.0), ["reciprocal"]),
        (lambda x: ops.pow(x, 0.5), ["pow"]),
        (lambda x: ops.select(x.graph.constant(True), x, x + 1.0), []),
        (lambda x: ops.select(x.graph.constant([False]), x * 2.0, x), []),
        (lambda x: ops.select(x > 0, x, x), []),
        (lambda x: ops.select(~(x > 0), x, 1.0), ["gt", "select"]),
        (lambda x: x.reshape(5, 3).reshape(15), ["reshape"]),
        (lambda x: x.reshape(15).reshape(3, 5), []),
        (lambda x: x.T.T, []),
        (lambda x: x[None].transpose(2, 0, 1).transpose(1, 2, 0), ["reshape"]),
        (lambda x: x[:, None].transpose(1, 0, 2), ["reshape"]),
        (lambda x: x[:, :], []),
        (lambda x: x[1:][1:], ["slice"]),
        (lambda x: x[:, 1:4][:, ::-1], ["slice", "slice"]),
        (lambda x: ops.pad(x, low=(0, 0), high=(0, 0)), []),
        (lambda x: ops.concat(x, axis=0), []),
        (lambda x: ops.concat(ops.concat(x, x, axis=1), x, axis=-1), ["concat"]),
        (lambda x: ops.broadcast_to(x, shape=(3, 5)), []),
        (lambda x: ops.broadcast_to(ops.broadcast_to(x, shape=(1, 3, 5)), shape=(2, 3, 5)), ["broadcast_to"]),
        (lambda x: x + ops.broadcast_to(x[:1], shape=(3, 5)), ["slice", "add"]),
        (lambda x: x[:1] + ops.broadcast_to(x[:1], shape=(3, 5)), ["slice", "slice", "broadcast_to", "add"]),
    ],
)  # fmt: skip
def test_identity(build: Build, remaining: list[str]) -> None:
    assert after(simplify.rules, build) == remaining


@pytest.mark.parametrize(
    ("build", "remaining"),
    [
        (lambda x: ops.pow(ops.square(x) + 1e-5, 0.5), ["square", "add", "sqrt"]),
        (lambda x: ops.pow(ops.exp(x), -0.5), ["exp", "rsqrt"]),
        (lambda x: ops.pow(ops.reduce_mean(x * x, axes=(1,)), 0.5), ["square", "reduce_mean", "sqrt"]),
        (lambda x: ops.pow(ops.square(x) - 1.0, 0.5), ["square", "sub", "pow"]),
    ],
)
def test_roots_of_what_is_never_negative(build: Build, remaining: list[str]) -> None:
    mild = np.array([[0.5, -2, 0.0, -0.0], [3, math.nan, 1, -1]], np.float32)
    graph = Graph()
    graph.output(build(graph.input("x", mild.shape)), name="y")
    result = simplify.rules.run(graph, Context(stop_at=-1))
    assert [n.op.name for n in result.nodes if n.op.name not in ("input", "constant")] == remaining
    actual, expected = (run_on("reference", g, {"x": mild})["y"] for g in (result, graph))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "remaining"),
    [
        (lambda x: x + 0, []),
        (lambda x: x * 1, []),
        (lambda x: ops.pow(x, 2), ["square"]),
        (lambda x: ops.pow(x, -1), ["pow"]),
        (lambda x: x / 2, ["div"]),
        (lambda x: ~~x, []),
        (lambda x: abs(-x), ["neg", "abs"]),
        (lambda x: ops.cast(ops.cast(x, to="i64"), to="i8"), ["cast"]),
        (lambda x: ops.cast(ops.cast(x, to="i8"), to="i64"), ["cast", "cast"]),
    ],
)
def test_identity_of_integers(build: Build, remaining: list[str]) -> None:
    assert after(simplify.rules, build, np.array([0, 5, -7, 2**31 - 1, -(2**31)], np.int32)) == remaining


def test_numbers_from_dims() -> None:
    graph = Graph()
    x = graph.input("x", ("b", "s", 4))
    shape = ops.dims_tensor(graph, values=x.shape)
    last = ops.gather(ops.cast(shape, to="f32"), np.array(-2))
    graph.output(last=last, rest=shape[1:], picked=ops.gather(shape, np.array([2, 0])))
    result = simplify.rules.run(graph, Context(stop_at=-1))
    verify(result)
    assert {n.op.name for n in result.nodes} == {"input", "dims_tensor", "reshape"}
    inputs = {"x": np.zeros((2, 7, 4), np.float32)}
    actual = run_on("reference", result, inputs)
    assert (actual["last"].tolist(), actual["rest"].tolist(), actual["picked"].tolist()) == (7.0, [7, 4], [4, 2])


def test_broadcast_of_symbolic_dims_stays_where_it_decides_the_shape() -> None:
    graph = Graph()
    x, y = graph.input("x", ("n", 1)), graph.input("y", ("m", 3))
    wide = ops.broadcast_to(x, shape=("n", 3))
    graph.output(a=wide + y, b=wide * 2.0)
    result = simplify.rules.run(graph, Context(stop_at=-1))
    verify(result)
    assert [v.type for v in result.outputs.values()] == [v.type for v in graph.outputs.values()]


# the other passes


def test_fold_evaluates_constants_within_its_budget() -> None:
    assert after(Fold(), lambda x: x + ops.exp(x.graph.constant(np.ones(5, np.float32)))) == ["add"]
    shaped = ops.iota
    assert after(Fold(), lambda x: x + ops.cast(shaped(x.graph, shape=(5,), dtype="i32"), to="f32")) == ["add"]
    big = (3, 1 << 20)
    graph = Graph()
    graph.output(ops.iota(graph, shape=big, dtype="i64"), name="y")
    assert Fold().run(graph, Context(stop_at=-1)) is graph, "a kernel makes it for nothing"


def test_fold_leaves_params_and_symbolic_shapes() -> None:
    graph = Graph()
    w = graph.param("w", (2, 3), data=np.zeros((2, 3), np.float32))
    graph.output(t=w.T * 2.0, d=ops.dims_tensor(graph, values=(graph.input("x", ("n",)).shape[0],)))
    assert Fold().run(graph, Context(stop_at=-1)) is graph


def test_cse_merges_equals_and_only_those() -> None:
    assert after(Cse(), lambda x: ops.exp(x) + ops.exp(x)) == ["exp", "add"]
    assert after(Cse(), lambda x: (x + x[:1]) * (x[:1] + x)) == ["slice", "add", "mul"]
    assert after(Cse(), lambda x: (x - x[:1]) * (x[:1] - x)) == ["slice", "sub", "sub", "mul"]
    pads = {"low": (1, 0), "high": (0, 0)}
    zeros = lambda x: ops.pad(x, value=0.0, **pads) * ops.pad(x, value=-0.0, **pads)  # noqa: E731
    assert after(Cse(), zeros) == ["pad", "pad", "mul"]
    assert after(Cse(), lambda x: x * 0.0 + x * -0.0) == ["mul", "mul", "add"]


def test_dce_drops_what_nothing_needs() -> None:
    graph = Graph()
    x = graph.input("x", (2,))
    graph.param("unused", (2,))
    ops.exp(x)
    graph.output(x + 1, name="y")
    result = Dce().run(graph, Context(stop_at=-1))
    assert [n.op.name for n in result.nodes] == ["input", "param", "constant", "add"]


@pytest.mark.parametrize(
    ("build", "remaining"),
    [
        (lambda x: ops.reduce_sum(x, axes=(-1,)), ["reduce_sum", "reshape"]),
        (lambda x: ops.reduce_sum(x, axes=(1, 0), keepdims=True), ["reduce_sum"]),
        (lambda x: ops.argmax(x, axis=-1), ["argmax", "reshape"]),
        (lambda x: ops.gather(x, np.array(-1), axis=-1), ["slice", "reshape"]),
        (lambda x: ops.gather(x, np.array([1]), axis=0), ["slice"]),
        (lambda x: ops.gather(x, np.array(7), axis=0), ["gather"]),
        (lambda x: x @ np.ones((5, 2), np.float32), ["dot_general"]),
    ],
)
def test_canonical_spelling(build: Build, remaining: list[str]) -> None:
    assert after(canonical.rules, build) == remaining


def test_merge_dots_joins_weights_of_any_orientation() -> None:
    graph = Graph()
    x = graph.input("x", ("n", 4))
    products = [x @ graph.param(f"w{i}", (4, 2 + i)) for i in range(3)]
    transposed = [
        ops.dot_general(x, graph.param(f"t{i}", (3, 4)), lhs_contract=(1,), rhs_contract=(1,))
        + graph.param(f"b{i}", (3,))
        for i in range(2)
    ]
    alone = x @ graph.param("alone", (4, 5)) + graph.param("c", (5,))
    shared = x @ np.ones((4, 2), np.float32)
    graph.output(*products, *transposed, alone, shared)
    context = Context(stop_at=-1)
    result = run_passes(graph, [canonical.rules, MergeDots()], context)
    verify(result)
    assert context.report.rewrites["merge-dots/same-operand"] == 2
    assert sum(n.op.name == "dot_general" for n in result.nodes) == 4
    dice = np.random.default_rng(0)
    params = {v.name: dice.normal(size=v.shape).astype(np.float32) for v in graph.params}
    inputs = {"x": dice.normal(size=(3, 4)).astype(np.float32)}
    expected = run_on("reference", graph, inputs, params)
    for name, array in run_on("reference", result, inputs, params).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-6)


def test_precision_policy() -> None:
    graph = Graph()
    x = graph.input("x", (2, 2))
    graph.output(ops.exp(x) @ x, name="y")
    policy = lambda node: rlx.bf16 if node.op.name == "matmul" else None  # noqa: E731
    result = Precision(policy).run(graph, Context(stop_at=-1))
    verify(result)
    dot = next(n for n in result.nodes if n.op.name == "matmul")
    assert [v.dtype for v in dot.inputs] == [rlx.bf16, rlx.bf16]
    assert result.outputs["y"].dtype is rlx.f32


# the driver and its patterns


def test_rules_that_undo_each_other_come_to_an_end() -> None:
    rules = Rules("seesaw")
    x, y = Var("x"), Var("y")
    rules.add("swap", Is(ops.elementwise.Sub, x, y), lambda x, y: -(y - x))
    graph = Graph()
    graph.output(graph.input("a", (2,)) - graph.input("b", (2,)), name="y")
    context = Context(stop_at=-1)
    verify(rules.run(graph, context))
    assert context.report.unfinished == ["seesaw"]


def test_a_rewrite_that_changes_the_type_is_an_error() -> None:
    rules = Rules("wrong")
    rules.add("half", Is(ops.transcendental.Exp, Var("x")), lambda x: x.cast("f16"))
    graph = Graph()
    graph.output(ops.exp(graph.input("x", (2,))), name="y")
    with pytest.raises(rlx.GraphError, match=r"\[wrong/half\] expected f32\[2\], got f16\[2\], at node 'exp_0'"):
        rules.run(graph, Context(stop_at=-1))
    with pytest.raises(rlx.GraphError, match="two rewrites called 'half'"):
        rules.add("half", Var("x"), lambda x: x)


def test_patterns_capture_and_compare() -> None:
    graph = Graph()
    x, y = graph.input("x", (2,)), graph.input("y", (2,))
    a, b = Var("a"), Var("b")
    add = ops.elementwise.Add
    assert [f["a"] for f in Is(add, a, b).find(x + y, {})] == [x, y]
    assert next(iter(Is(add, Const(2, name="c"), a).find(x + 2.0, {})))["a"] == x
    assert not list(Is(add, a, a).find(x + y, {}))
    assert list(Is(add, a, a).find(x + x, {}))
    assert not list(Is(add, a, Const(0.0)).find(x + -0.0, {}))
    twice = ops.exp(x)
    root = twice + twice
    assert not list(Is(add, Is(ops.transcendental.Exp, a, once=True), b).find(root, {}))
    assert next(iter(Is(ops.shape.Transpose, a, permutation=Var("p")).find(x[None].T, {})))["p"] == (1, 0)


def test_rules_are_asked_of_nodes_whose_ops_they_name() -> None:
    asked: list[str] = []

    def search(value: Value) -> None:
        asked.append(value.name)

    rules = Rules("asking")
    rules.add("spread", Where(Elementwise, search, operand=ops.shape.BroadcastTo), lambda root: root)
    graph = Graph()
    x = graph.input("x", (2, 3))
    total = ops.add(x, ops.broadcast_to(x[0], shape=(2, 3)))
    graph.output(ops.reduce_sum(ops.exp(total), axes=(0,)), name="y")
    rules.run(graph, Context(stop_at=-1))
    assert asked == [total.name]
    rules.add("axes", Where(Op, search, attribute="axes"), lambda root: root)
    rules.run(graph, Context(stop_at=-1))
    assert [name.rpartition("_")[0] for name in asked] == ["add", "add", "reduce_sum"]


def test_numbers_are_narrowed_before_they_move_where_all_that_read_them_want_them_narrow() -> None:
    graph = Graph("parts")
    joined = ops.exp(graph.input("x", ("n", 12), "f32"))
    parts = [joined[:, 4 * i : 4 * i + 4].reshape(graph.inputs[0].shape[0], 2, 2).transpose(1, 0, 2) for i in range(3)]
    graph.output(*(ops.cast(part, to="f16") for part in parts))
    ready, _ = optimise(graph)
    casts = [node for node in ready.nodes if node.op.name == "cast"]
    assert len(casts) == 1 and casts[0].inputs[0].node.op.name == "exp"


def test_numbers_stay_wide_where_anything_reads_them_wide() -> None:
    for keep in ("output", "sum"):
        graph = Graph("kept")
        wide = ops.exp(graph.input("x", (8, 12), "f32"))
        graph.output(ops.cast(wide[:, :4], to="f16"), ops.reduce_sum(wide, axes=(0,)) if keep == "sum" else wide)
        ready, _ = optimise(graph)
        (cast,) = [node for node in ready.nodes if node.op.name == "cast"]
        assert cast.inputs[0].node.op.name == "slice"


def test_chains_of_moves_may_be_long() -> None:
    graph = Graph("long")
    x = ops.exp(graph.input("x", (2, 3, 4), "f32"))
    moved = x
    for _ in range(1500):
        moved = moved.transpose(1, 2, 0)[:, :, ::1]
        moved = ops.slice(moved, starts=(0, 0, 0), stops=moved.shape, steps=(1, 1, 1)).transpose(0, 2, 1)
    graph.output(ops.cast(moved, to="f16"), ops.cast(x, to="f16"))
    optimise(graph)
