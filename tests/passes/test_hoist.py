"""What every trip of a loop computes alike goes before it, and results stay."""

from __future__ import annotations

import numpy as np

from rlx.ir.graph import Graph, call
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.ir.verify import verify
from rlx.ops import build
from rlx.passes.hoist import Hoist
from rlx.passes.pipeline import optimise, standard


def recurrent(op: str, gates: int) -> tuple[Graph, dict[str, Array]]:
    graph = Graph(op)
    random = np.random.default_rng(0)
    sizes = {"x": (5, 2, 3), "w": (1, gates * 4, 3), "r": (1, gates * 4, 4), "b": (1, 2 * gates * 4), "h": (1, 2, 4)}
    results = call(op, *(graph.input(name, shape) for name, shape in sizes.items()))
    graph.output(*results if isinstance(results, tuple) else (results,))
    return graph, {name: random.standard_normal(shape).astype("f4") for name, shape in sizes.items()}


def slices_inside(graph: Graph) -> int:
    """Parts of weights that are cut out in bodies."""
    (scan,) = (node for node in graph.nodes if node.op.name == "scan")
    region = scan.regions[0]
    stays = set(region.inputs[scan.op.carried + scan.op.sequences :])  # type: ignore[attr-defined]
    return sum(node.op.name == "slice" and node.inputs[0] in stays for node in region.nodes)


def test_weights_are_cut_before_the_loop() -> None:
    graph, inputs = recurrent("gru", 3)
    plain, hoisted = optimise(graph)[0], optimise(graph, [*standard(), Hoist()])[0]
    verify(hoisted)
    assert slices_inside(plain) and not slices_inside(hoisted)
    for actual, expected in zip(evaluate(hoisted, inputs, {}, {}), evaluate(plain, inputs, {}, {})):
        np.testing.assert_array_equal(actual, expected)
    unchanged = optimise(graph, [*standard(), Hoist()], disable=("hoist",))[0]
    assert slices_inside(unchanged)


def body_that_gives_what_stays() -> Graph:
    body = Graph("body")
    state, row, stays = body.input("state", (2,)), body.input("row", (2,)), body.input("stays", (2,))
    body.output(state + row, name="state")
    body.output(build.exp(stays * 2.0), name="given")
    return body


def test_a_result_that_never_changes() -> None:
    graph = Graph()
    operands = graph.input("a", (2,)), graph.input("rows", (3, 2)), graph.input("stays", (2,))
    results = call("scan", *operands, carried=1, sequences=1, length=3, regions=[body_that_gives_what_stays()])
    assert isinstance(results, tuple)
    graph.output(*results)
    inputs = {"a": np.zeros(2, "f4"), "rows": np.ones((3, 2), "f4"), "stays": np.array([0, 1], "f4")}
    hoisted = optimise(graph, [*standard(), Hoist()])[0]
    verify(hoisted)
    assert any(node.op.name == "exp" for node in hoisted.nodes)
    for actual, expected in zip(evaluate(hoisted, inputs, {}, {}), evaluate(graph, inputs, {}, {})):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_nothing_to_take_out() -> None:
    graph, _ = recurrent("rnn", 1)
    assert optimise(graph, [*standard(), Hoist()])[0].same_as(optimise(graph)[0])
