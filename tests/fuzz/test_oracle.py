"""What the fuzzer takes for right: where the reference is more exact than any device, nothing is said of an element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from tools.fuzz import check, oracle, rows
from tools.fuzz.data import Recipe
from tools.fuzz.program import How, Program


def program(graph: Graph, how: How | None = None, n: int | None = None, **arrays: Array) -> Program:
    recipes = {name: Recipe("given", 0, array=array) for name, array in arrays.items()}
    return Program(graph, recipes, [{} if n is None else {"n": n}], how or How())


def test_zeros_between_elements_may_meet_infinities() -> None:
    """A definition multiplies them, the reference leaves them out, and what follows may make either of NaN."""
    graph = Graph()
    x, w = graph.input("x", (40, 4, 8)), graph.input("w", (4, 2, 2))
    spread = ops.conv_transpose(x, w, strides=(2,), dilations=(2,), low=(1,), high=(1,))
    graph.output(ops.relu(ops.relu(spread)), name="y")
    weights = np.ones((4, 2, 2), "f4")
    weights[0, 0, 0] = np.inf
    expected = oracle.expect(program(graph, x=np.ones((40, 4, 8), "f4"), w=weights), {}, runs=3)["y"]
    between = expected.array[:, :, ::2]
    assert (between == 0).all()
    assert np.isinf(expected.bound[:, :, ::2]).all()


def test_products_may_overflow_before_they_meet_a_zero() -> None:
    graph = Graph()
    graph.output(ops.reduce_prod(graph.input("x", (60,)), axes=(0,)), name="y")
    numbers = np.full(60, 12, "f4")
    numbers[-1] = 0
    expected = oracle.expect(program(graph, x=numbers), {}, runs=3)["y"]
    assert expected.array == 0 and np.isinf(expected.bound)
    few = np.array([3, 4, 0], "f4")
    graph = Graph()
    graph.output(ops.reduce_prod(graph.input("x", (3,)), axes=(0,)), name="y")
    assert oracle.expect(program(graph, x=few), {}, runs=3)["y"].bound == 0


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_nothing_is_said_of_far_angles(name: str) -> None:
    """Those of f64 are the library's."""
    numbers = np.array([1.0, -9e4, 2e5, 1e10, np.inf])
    for dtype, known in (("f4", [True, True, False, False, True]), ("f8", [True] * 5)):
        graph = Graph()
        x = graph.input("x", (5,), {"f4": "f32", "f8": "f64"}[dtype])
        graph.output(getattr(ops, name)(x), name="y")
        expected = oracle.expect(program(graph, x=numbers.astype(dtype)), {}, runs=3)["y"]
        assert (np.isfinite(expected.bound) == known).tolist() == [True] * 5


def batch() -> Graph:
    """Four outputs: rows that have nothing to do with each other, on either axis, and two whose rows meet."""
    graph = Graph()
    x = graph.input("x", ("n", 3))
    graph.output(ops.softmax(x, axis=1), name="apart")
    graph.output(ops.transpose(x @ graph.input("w", (3, 5)), permutation=(1, 0)), name="turned")
    graph.output(ops.cumsum(x, axis=0), name="running")
    graph.output(x - ops.reduce_mean(x, axes=(0,), keepdims=True), name="centred")
    return graph


def test_rows_that_are_apart_are_told_from_rows_that_meet() -> None:
    graph, random = batch(), np.random.default_rng(0)
    arrays = {"x": random.normal(size=(6, 3)).astype("f4"), "w": random.normal(size=(3, 5)).astype("f4")}
    assert rows.of_program(graph, arrays, {}, {"n": 6}, "n") == {"apart": 0, "turned": 1}
    values = oracle.run(graph, arrays, {}, {"n": 6})
    names = {
        node.op.name for node in graph.nodes
        if node.inputs and rows.node_keeps(node, [values[v] for v in node.inputs], {"n": 6}, "n")
    }  # fmt: skip
    assert names == {"softmax", "matmul", "transpose", "sub"}


def test_a_row_that_looks_at_its_place_is_seen() -> None:
    """A device that gives each row of a batch something of the place it lies at."""
    graph, random = batch(), np.random.default_rng(0)
    arrays = {"x": random.normal(size=(6, 3)).astype("f4"), "w": random.normal(size=(3, 5)).astype("f4")}
    instance = program(graph, How(extras=("rows",)), 6, **arrays)
    assert check.check(instance) is None
    compiled = check._session(instance, "cpu").compile(graph)
    run = compiled.run

    def placed(inputs: dict[str, Array]) -> list[Array]:
        first, *others = run(inputs)
        return [first * (1 + np.arange(first.shape[0], dtype="f4")[:, None] * np.float32(2**-14)), *others]

    compiled.run = placed  # type: ignore[method-assign, assignment]
    failure = check._rows(instance, compiled, "cpu", instance.bindings[0])
    assert failure is not None and failure.output == "apart" and "in another order" in failure.message


def test_zeros_of_either_sign_are_not_told_apart_after_a_minimum() -> None:
    graph = Graph("signs")
    x, y = graph.input("x", (64,), "f32"), graph.input("y", (64,), "f32")
    graph.output(ops.reciprocal(ops.minimum(x, y)), name="r")
    expected = oracle.expect(program(graph, x=np.zeros(64, "f4"), y=-np.zeros(64, "f4")), {})
    assert np.isinf(expected["r"].bound).mean() > 0.7


def test_a_sum_that_may_cancel_to_nothing_may_equal_nothing() -> None:
    """Several roundings in a row must all meet the simple number for a comparison to see it."""
    graph = Graph("cancelled")
    x, w = graph.input("x", (64, 3), "f32"), graph.input("w", (3, 1), "f32")
    graph.output(ops.eq(ops.tanh(ops.tanh(x @ w)), graph.constant(np.float32(0))), name="zero")
    data = np.tile(np.array([0.1, 0.7, -0.8], "f4"), (64, 1))
    expected = oracle.expect(program(graph, x=data, w=np.full((3, 1), 0.3, "f4")), {})["zero"]
    assert not expected.array.any() and np.isinf(expected.bound).all()


def test_roundings_one_behind_the_other_do_not_cancel() -> None:
    """A scatter leaves sums as they are, and may be off by as much as these."""
    graph = Graph("series")
    x, w = graph.input("x", (400, 64, 3)), graph.input("w", (3, 3))
    places = graph.constant(np.array([13, 2], np.int64))
    graph.output(ops.scatter_nd(x @ w, places, graph.input("rows", (3,)), combine="max"), name="y")
    random = np.random.default_rng(0)
    arrays = {"x": random.standard_normal((400, 64, 3), np.float32), "w": random.standard_normal((3, 3), np.float32)}
    expected = oracle.expect(program(graph, **arrays, rows=np.zeros(3, "f4")), {}, runs=24)["y"]
    assert (expected.bound > 0)[np.abs(expected.array) > 1e-3].all()


@pytest.mark.parametrize("op", [ops.sigmoid, ops.silu])
def test_a_sigmoid_below_the_normal_range_may_be_nothing(op: Callable[[Value], Value]) -> None:
    """Whose quotient is then not a number."""
    graph = Graph("vanishes")
    y = op(graph.input("x", (2,)))
    graph.output(y / y, name="y")
    expected = oracle.expect(program(graph, x=np.array([-96, 1], "f4")), {})["y"]
    assert np.isinf(expected.bound[0]) and np.isfinite(expected.bound[1])


def test_differences_of_nearly_equal_numbers_may_be_nothing() -> None:
    """Of which the power by itself is one; of the least number below nothing it is not a number."""
    graph = Graph("difference")
    x = ops.sigmoid(graph.input("x", (64, 2)))
    less = x[:, :1] - x[:, 1:]
    graph.output(ops.pow(less, less), name="y")
    data = np.tile(np.array([[9.0, 9.0005]], "f4"), (64, 1))
    assert 0 < np.diff(1 / (1 + np.exp(-data.astype("f8"))))[0, 0] < 1e-7
    expected = oracle.expect(program(graph, x=data), {}, runs=24)["y"]
    assert np.isinf(expected.bound).all()


def test_a_nan_has_either_sign() -> None:
    graph = Graph()
    x, y = graph.input("x", (64,)), graph.input("y", (64,))
    graph.output(ops.copysign(x, y), name="y")
    signs = np.where(np.arange(64) < 32, np.nan, -1).astype("f4")
    expected = oracle.expect(program(graph, x=np.full(64, 4, "f4"), y=signs), {}, runs=3)["y"]
    assert (expected.bound[:32] >= 8).mean() > 0.5, "in three runs most elements have both signs"
    assert (expected.bound[32:] < 1).all()
