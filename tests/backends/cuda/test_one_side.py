"""Choices between sides that are alike: what becomes one, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlx import ops
from rlx.backends.cuda.build import program_of
from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Kernel
from support import run_on

from .emulated_driver import EmulatedDriver


def loads_of(graph: Graph) -> int:
    """Of all bodies of a program: of elements, and of the table that tells sides apart where both stay."""
    nests = [kernel.work for kernel in program_of(graph).main]
    assert all(isinstance(nest, LoopNest) for nest in nests)
    bodies = [s.body for nest in nests if isinstance(nest, LoopNest) for s in nest.statements]
    return sum(node.kind == "load" for node in ex.walk(bodies))


def assert_reads_inside(graph: Graph) -> None:
    """Every load of every position of nests with extents that are numbers, where its guard holds."""
    program = program_of(graph)
    for kernel in program.main:
        nest = kernel.work
        assert isinstance(nest, LoopNest)
        axes = np.indices([int(str(extent)) for extent in nest.extents()])

        def leaf(node: Expr, kernel: Kernel = kernel, axes: Array = axes) -> Array:
            if node.kind == "axis":
                return axes[node.attr]
            assert node.kind == "load"
            access, others = node.attr, node.args[1:] if node.attr.guarded else node.args
            place = access.const + sum(step * axes[number] for number, step in access.axes) + np.zeros_like(axes[0])
            place = place + sum(ex.evaluate(e, leaf) * scale for e, scale in zip(others, access.scales))
            read = ex.evaluate(node.args[0], leaf) if access.guarded else True
            size = program.buffers[kernel.slots[access.slot]].size
            outside = (place < 0) | (place >= size)
            assert not np.any(outside & read), f"{node} reads {place.min()} to {place.max()} of {size}"
            table = program.constants.get(kernel.slots[access.slot])
            return np.zeros_like(place) if table is None else np.ravel(table)[np.clip(place, 0, size - 1)]

        for statement in nest.statements:
            ex.evaluate(statement.body, leaf)


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


@pytest.mark.parametrize("width", [2, 3, 7])
@pytest.mark.parametrize("apart", [False, True])
def test_sides_that_stay_are_read_where_they_are(width: int, apart: bool) -> None:
    """A choice in a choice: the tables of both become one load, and their sides, which do not, are computed both."""
    graph = Graph("nested")
    x, y = (graph.input(name, (1, width), "u64") for name in "xy")
    inner = ops.concat(x, y if apart else x, axis=-1)
    graph.output(ops.concat(inner, inner, axis=-1))
    assert_reads_inside(graph)


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
