"""Kernels that differ in places and open dims alone are one function of machine code."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa
from rlx.codegen.simd import loops
from rlx.codegen.simd.module import written
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.graph import Graph
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.kernel.ir.index import Linear, load
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.origins import at_origins
from support import run_on


def functions(graph: Graph) -> int:
    """How many functions the kernels of a graph have."""
    target = isa.detect()
    program, bounds = build.program_of(graph, target, Options())
    return len(written(program, target, bounds, build._kept(program), reuse=True).kernels())


def same(device: str, graph: Graph, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
    results = run_on(device, graph, dict(inputs))
    for name, expected in zip(graph.outputs, evaluate(graph, inputs, {}, sizes)):
        np.testing.assert_allclose(results[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)


def slices_and_joins() -> Graph:
    g = Graph()
    x = g.input("x", (12, 7))
    for first in (0, 4, 8):
        g.output(ops.exp(x[first : first + 4]), name=f"part {first}")
    g.output(ops.concat(*(ops.transpose(g.input(name, (5, 40))) for name in "abc"), axis=1), name="joined")
    return g


def test_copies_from_and_to_other_places_are_one_function() -> None:
    assert functions(slices_and_joins()) == 2


@pytest.mark.devices("cpu", "cpu-*")
def test_places(device: str) -> None:
    random = np.random.default_rng(0)
    shapes = {"x": (12, 7), "a": (5, 40), "b": (5, 40), "c": (5, 40)}
    inputs = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    same(device, slices_and_joins(), inputs, {})


@pytest.mark.devices("cpu", "cpu-*")
def test_open_dims(device: str) -> None:
    """Two rows of dims, and a run with other numbers for the same code."""
    g = Graph()
    for name, dim in (("x", "n"), ("y", "m")):
        x = g.input(name, (dim, 8))
        g.output(ops.softmax(ops.exp(x) * 0.5, axis=1), name=name)
        g.output(ops.pad(x, low=(1, 0), high=(2, 0), value=0.0), name=f"{name} in a border")
    assert functions(g) * 2 <= len(build.program_of(g, isa.detect(), Options())[0].main)
    random = np.random.default_rng(0)
    for n, m in ((3, 9), (17, 0), (1, 33)):
        inputs = {"x": random.standard_normal((n, 8), np.float32), "y": random.standard_normal((m, 8), np.float32)}
        same(device, g, inputs, {"n": n, "m": m})


@pytest.mark.devices("cpu", "cpu-*")
@pytest.mark.parametrize("size", [(33, 48), (16, 16), (70, 5), (3, 64)], ids=str)
def test_long_bodies_of_transposes(size: tuple[int, int], device: str) -> None:
    """Rows of squares that are a loop over memory, of one operand and of two."""
    g = Graph()
    x, y, z = (g.input(name, size) for name in "xyz")
    turned = [ops.transpose(each) for each in (x, y)]
    g.output(ops.sigmoid(turned[0]) * 3 + 1, name="one")
    g.output(ops.exp(turned[0] * turned[1]) - turned[0] / (ops.exp(turned[1]) + 2), name="two")
    g.output(ops.transpose(z), name="none")
    inputs = {name: array_of(size, number) for number, name in enumerate("xyz")}
    same(device, g, inputs, {})


def array_of(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def copy_at(read: Linear, write: Linear) -> LoopNest:
    return LoopNest((4,), (), (Store(0, write, load(1, read, dtypes.f32), True),))


def test_origins() -> None:
    axis = ((0, 1),)
    work, origins = at_origins(copy_at(Linear(5, axis), Linear(70, axis)))
    assert origins == {0: 70, 1: 5}
    assert work == copy_at(Linear(0, axis), Linear(0, axis)) == at_origins(work)[0]


def test_origins_that_a_run_alone_knows_stay() -> None:
    n = dims.symbol("n")
    work, origins = at_origins(copy_at(Linear(n, ((0, 1),)), Linear(-2, ((0, 1),))))
    assert origins == {0: -2}
    assert work == copy_at(Linear(n, ((0, 1),)), Linear(0, ((0, 1),)))


def test_what_fills_a_border_has_one_vector_in_flight() -> None:
    target = isa.detect()
    nest = LoopNest((8, 256), (), (Store(0, Linear(0, ((0, 512), (1, 1))), ex.const(0, dtypes.f32), False),))
    assert loops.schedule(nest, target).schedule.static_tile("register", "elements") == target.lanes
