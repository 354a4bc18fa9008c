"""Weights of products are turned before runs, and results stay."""

from __future__ import annotations

import numpy as np

from rlx.ir.graph import Graph, Node, call
from rlx.ir.interpreter import evaluate
from rlx.ir.verify import verify
from rlx.ops import build
from rlx.ops.linalg import DotGeneral
from rlx.passes.hoist import Hoist
from rlx.passes.pipeline import optimise, standard
from rlx.passes.transpose_weights import TransposeWeights


def products(graph: Graph) -> list[tuple[int, ...]]:
    """What the products of the graph and its bodies sum over on their right."""

    def of(node: Node) -> list[tuple[int, ...]]:
        op = node.op
        return [op.rhs_contract] if isinstance(op, DotGeneral) else [a for r in node.regions for a in products(r)]

    return [axes for node in graph.nodes for axes in of(node)]


def test_weights_are_turned_and_inputs_are_not() -> None:
    graph = Graph()
    x, y = graph.input("x", ("n", 4)), graph.input("y", (3, 4))
    graph.output(build.dot_general(x, graph.param("w", (3, 4)), lhs_contract=(1,), rhs_contract=(1,)), name="weight")
    graph.output(build.dot_general(x, y, lhs_contract=(1,), rhs_contract=(1,)), name="input")
    graph.output(
        build.dot_general(build.exp(x), graph.param("v", (4, 5)), lhs_contract=(1,), rhs_contract=(0,)), name="as it is"
    )
    optimised = optimise(graph, [*standard(), TransposeWeights()])[0]
    verify(optimised)
    assert products(optimise(graph)[0]) == [(1,), (1,), (0,)]
    assert products(optimised) == [(0,), (1,), (0,)]
    assert optimise(graph, [*standard(), TransposeWeights()], disable=("transpose-weights",))[0].same_as(
        optimise(graph)[0]
    )
    random = np.random.default_rng(0)
    inputs = {"x": random.standard_normal((2, 4)).astype("f4"), "y": random.standard_normal((3, 4)).astype("f4")}
    params = {p.name: random.standard_normal([int(d) for d in p.shape]).astype("f4") for p in graph.params}
    for actual, expected in zip(
        evaluate(optimised, inputs, params, {"n": 2}), evaluate(graph, inputs, params, {"n": 2})
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_what_stays_through_a_loop_is_turned_before_it() -> None:
    graph = Graph()
    random = np.random.default_rng(0)
    sizes = {"x": (5, 2, 3), "w": (1, 12, 3), "r": (1, 12, 4), "b": (1, 24), "h": (1, 2, 4)}
    results = call("gru", *(graph.input(name, shape) for name, shape in sizes.items()))
    graph.output(*results if isinstance(results, tuple) else (results,))
    inputs = {name: random.standard_normal(shape).astype("f4") for name, shape in sizes.items()}
    result = optimise(graph, [*standard(), TransposeWeights(), Hoist()])[0]
    verify(result)
    (scan,) = (node for node in result.nodes if node.op.name == "scan")
    assert set(products(scan.regions[0])) == {(0,)}
    assert not any(node.op.name == "transpose" for node in scan.regions[0].nodes)
    for actual, expected in zip(evaluate(result, inputs, {}, {}), evaluate(graph, inputs, {}, {})):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_nothing_to_turn() -> None:
    graph = Graph()
    graph.output(build.exp(graph.input("x", (2,))))
    assert optimise(graph, [*standard(), TransposeWeights()])[0].same_as(optimise(graph)[0])
