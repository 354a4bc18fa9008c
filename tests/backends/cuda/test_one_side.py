"""Choices between sides that are alike: what becomes one, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlx import ops
from rlx.backends.cuda.build import program_of
from rlx.ir import expr as ex
from rlx.ir.graph import Graph, Value
from rlx.kernel.ir.loops import LoopNest
from support import run_on

from .emulated_driver import EmulatedDriver


def loads_of(graph: Graph) -> int:
    """Of all bodies of a program: of elements, and of the table that tells sides apart where both stay."""
    nests = [kernel.work for kernel in program_of(graph).main]
    assert all(isinstance(nest, LoopNest) for nest in nests)
    bodies = [s.body for nest in nests if isinstance(nest, LoopNest) for s in nest.statements]
    return sum(node.kind == "load" for node in ex.walk(bodies))


def halves(x: Value) -> tuple[Value, Value]:
    width = x.shape[-1]
    assert isinstance(width, int)
    return x[..., : width // 2], x[..., width // 2 :]


def rotated(graph: Graph) -> Value:
    x, cos, sin = (graph.input(name, ("n", width)) for name, width in (("x", 16), ("cos", 8), ("sin", 8)))
    low, high = halves(x)
    return ops.concat(low * cos - high * sin, high * cos + low * sin, axis=-1)


def rotated_as_exported(graph: Graph) -> Value:
    """As torch writes it: with the halves swapped, one of them negative."""
    x, cos, sin = (graph.input(name, ("n", 16)) for name in ("x", "cos", "sin"))
    low, high = halves(x)
    return x * cos + ops.concat(-high, low, axis=-1) * sin


def swapped(graph: Graph) -> Value:
    low, high = halves(graph.input("x", ("n", 16)))
    return ops.concat(ops.exp(high), ops.exp(low), axis=-1)


def unlike(graph: Graph) -> Value:
    low, high = halves(graph.input("x", ("n", 16)))
    return ops.concat(ops.exp(high), ops.sin(low), axis=-1)


def of_two(graph: Graph) -> Value:
    x, y = (graph.input(name, ("n", 8)) for name in "xy")
    return ops.concat(x * 2.0, y * 2.0, axis=-1)


@pytest.mark.parametrize(
    ("make", "loads"), [(rotated, 4), (rotated_as_exported, 4), (swapped, 1), (unlike, 3), (of_two, 3)]
)
def test_sides_that_are_alike_read_once(make: Callable[[Graph], Value], loads: int, driver: EmulatedDriver) -> None:
    graph = Graph("sides")
    graph.output(make(graph), name="y")
    assert loads_of(graph) == loads
    random = np.random.default_rng(0)
    given = {v.name: random.standard_normal((5, *v.shape[1:]), np.float32) for v in graph.inputs}  # type: ignore[misc]
    made, expected = (run_on(device, graph, given)["y"] for device in ("cuda", "reference"))
    np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-6)
    apart = run_on("cuda", graph, given, disable=frozenset({"one-side"}))["y"]
    np.testing.assert_allclose(made, apart, rtol=1e-6, atol=1e-6)


def test_infinities_and_signs_of_zeros_stay(driver: EmulatedDriver) -> None:
    """a - b is a + -b, to the bit."""
    graph = Graph("sides")
    graph.output(rotated(graph), name="y")
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, 3e38], np.float32)
    given = {"x": np.stack([np.tile(special, 2), np.repeat(special, 2)]), "cos": np.stack([special, special[::-1]]),
             "sin": np.stack([special[::-1], special])}  # fmt: skip
    made, apart = (run_on("cuda", graph, given, disable=off)["y"] for off in (frozenset(), frozenset({"one-side"})))
    np.testing.assert_array_equal(np.isnan(made), np.isnan(apart))
    np.testing.assert_array_equal(made.view(np.uint32)[~np.isnan(made)], apart.view(np.uint32)[~np.isnan(apart)])
