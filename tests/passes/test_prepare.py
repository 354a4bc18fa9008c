"""What weights alone decide is taken out, and gives the same results."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import rlx
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.ir.verify import verify
from rlx.ops import build
from rlx.ops.control import If
from rlx.passes.prepare import PREFIX, split


def weighted() -> tuple[rlx.Graph, dict[str, Array]]:
    """One weight turned, one scaled and as it is, one that nothing takes, one that grows too much."""
    graph = rlx.Graph("weighted")
    x = graph.input("x", ("n", 4))
    w, v, grows = graph.param("w", (3, 4)), graph.param("v", (4,)), graph.param("grows", (1, 1))
    graph.param("idle", (2,))
    large = build.broadcast_to(grows, shape=(200, 200)) * build.reduce_sum(x, axes=(0, 1))
    graph.output((x * v + v * 2.0) @ w.transpose(1, 0) + build.reduce_sum(large, axes=(0, 1)), name="y")
    graph.output(w.transpose(1, 0) + 1.0, name="weights")
    random = np.random.default_rng(0)
    return graph, {p.name: random.standard_normal([int(d) for d in p.shape]).astype("f4") for p in graph.params}


def test_both_parts_together_are_the_graph() -> None:
    graph, params = weighted()
    (first,), second = split(graph)
    verify(first)
    verify(second)
    assert not first.inputs and not first.symbols
    assert {p.name for p in first.params} == {"w", "v"}
    assert {p.name for p in second.params if not p.name.startswith(PREFIX)} == {"v", "grows"}
    assert {p.name for p in second.params if p.name.startswith(PREFIX)} == set(first.outputs)
    inputs = {"x": np.arange(8, dtype="f4").reshape(2, 4)}
    prepared = dict(zip(first.outputs, evaluate(first, {}, params, {})))
    for actual, expected in zip(
        evaluate(second, inputs, params | prepared, {"n": 2}), evaluate(graph, inputs, params, {"n": 2})
    ):
        np.testing.assert_array_equal(actual, expected)


def test_nothing_to_prepare() -> None:
    graph = rlx.Graph()
    graph.output(graph.input("x", (4, 4)) @ graph.param("w", (4, 4)))
    assert split(graph) == ((), graph)


def test_what_lies_between_may_be_large() -> None:
    """It is the kept values that count: bytes become floats on the way to a sum."""
    graph = rlx.Graph()
    w = graph.param("w", (300, 300), "u8")
    wide = w.cast("f32") * 0.5
    graph.output(graph.input("x", (300,)) * build.reduce_sum(wide, axes=(1,)), name="y")
    (first,), second = split(graph)
    assert [v.shape for v in first.outputs.values()] == [(300,)]
    assert [p.name for p in second.params] == list(first.outputs)


def test_what_a_size_decides_too_stays() -> None:
    graph = rlx.Graph()
    x, table = graph.input("x", ("n", 4)), graph.param("table", (16, 4))
    graph.output(x + build.slice(table, starts=(0, 0), stops=("n", 4), steps=(1, 1)))
    assert split(graph)[0] == ()


def chosen() -> tuple[rlx.Graph, dict[str, Array]]:
    """A conditional, and one inside it, with weights of their own and one of the graph around them."""
    graph = rlx.Graph("chosen")
    x, turn, again = graph.input("x", ("n", 4)), graph.input("turn", (), "bool"), graph.input("again", (), "bool")
    shared = graph.param("held", (4, 4))
    sides = []
    for name in ("first", "second"):
        side = rlx.Graph(name)
        y, inner = side.input("y", ("n", 4)), side.input("inner", (), "bool")
        y = y @ side.param(name, (4, 4)).transpose(1, 0) @ side.param("held", (4, 4)).transpose(1, 0)
        deep = []
        for number in range(2):
            body = rlx.Graph(f"{name} {number}")
            z = body.input("z", ("n", 4))
            body.output(z * (body.param(f"deep {number}", (4,)) + 1.0))
            deep.append(body)
        (results,) = side.add(If(), inner, y, regions=tuple(deep))
        side.output(results)
        sides.append(side)
    for name in ("first", "second"):
        graph.param(name, (4, 4))
    for number in range(2):
        graph.param(f"deep {number}", (4,))
    (results,) = graph.add(If(), turn, x @ shared, again, regions=tuple(sides))
    graph.output(results, name="y")
    random = np.random.default_rng(0)
    return graph, {p.name: random.standard_normal([int(d) for d in p.shape]).astype("f4") for p in graph.params}


def test_bodies_are_prepared_too() -> None:
    graph, params = chosen()
    verify(graph)
    parts, rest = split(graph)
    verify(rest)
    assert sum(len(part.outputs) for part in parts) == 8
    assert {p.name for p in rest.params if not p.name.startswith(PREFIX)} == {"held"}
    prepared: dict[str, Array] = {}
    for part in parts:
        verify(part)
        prepared |= zip(part.outputs, evaluate(part, {}, params, {}))
    for turn, again in itertools.product((True, False), repeat=2):
        inputs = {"x": np.arange(8, dtype="f4").reshape(2, 4), "turn": np.array(turn), "again": np.array(again)}
        (actual,), (expected,) = (evaluate(g, inputs, params | prepared, {"n": 2}) for g in (rest, graph))
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("device", ["xla", "mlx"])
def test_prepared_bodies_run(device: str) -> None:
    pytest.importorskip({"xla": "jax", "mlx": "mlx.core"}[device])
    graph, params = chosen()
    program = rlx.Session(device).compile(graph)
    program.set_params(params)
    inputs = {"x": np.arange(8, dtype="f4").reshape(2, 4), "turn": np.array(True), "again": np.array(False)}
    (expected,) = evaluate(graph, inputs, params, {"n": 2})
    np.testing.assert_allclose(program.run(inputs)[0], expected, rtol=1e-4)


@pytest.mark.parametrize("device", ["xla", "mlx"])
def test_weights_may_change(device: str) -> None:
    """What was prepared of the old ones is not used again."""
    pytest.importorskip({"xla": "jax", "mlx": "mlx.core"}[device])
    graph = rlx.Graph()
    graph.output(graph.input("x", (2, 3)) @ graph.param("w", (2, 3), data=np.ones((2, 3), "f4")).transpose(1, 0))
    compiled = rlx.Session(device).compile(graph)
    x = np.ones((2, 3), "f4")
    assert compiled.run([x])[0].tolist() == [[3, 3], [3, 3]]
    compiled.set_params({"w": np.full((2, 3), 2, "f4")})
    assert compiled.run([x])[0].tolist() == [[6, 6], [6, 6]]
