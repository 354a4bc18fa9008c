"""Graphs much deeper and wider than nets are: nothing recurses along them, and code grows with them and no faster."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa
from rlx.codegen.simd.module import generate
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Tolerance
from support import assert_close, run_on

Link = Callable[[Value, int], Value]

LINKS: dict[str, Link] = {
    "signs": lambda v, i: rlx.neg(v) if i % 2 else rlx.relu(v),
    "functions": lambda v, i: (rlx.exp, rlx.sigmoid, rlx.tanh)[i % 3](v),
    "residual": lambda v, i: v * 0.5 + rlx.tanh(v) * 0.5,
    "reversed": lambda v, i: v * 0.5 - v[::-1] * 0.25,
    "shifted": lambda v, i: v * 0.5 + rlx.pad(v[1:], low=(0, 0), high=(1, 0)) * 0.25,
    "views": lambda v, i: rlx.transpose(v, permutation=(1, 0))[:, ::-1],
    "reshapes": lambda v, i: rlx.reshape(v, shape=(v.shape[1] * 2, v.shape[0] // 2))[::-1],
    "softmax": lambda v, i: rlx.softmax(v * 0.5, axis=-1),
    "products": lambda v, i: rlx.tanh(v @ v),
}


def chain(name: str, links: int) -> Graph:
    graph = Graph(name)
    value = graph.input("x", (8, 8))
    for i in range(links):
        value = LINKS[name](value, i)
    graph.output(value, name="y")
    return graph


def numbers() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(8, 8)).astype(np.float32) * np.float32(0.3)


@pytest.mark.devices("cpu")
@pytest.mark.parametrize("name", list(LINKS))
def test_chains_longer_than_the_stack(device: str, name: str) -> None:
    graph = chain(name, {"signs": 3000, "views": 1500, "functions": 1000, "residual": 400}.get(name, 250))
    expected = run_on("reference", graph, {"x": numbers()})["y"]
    assert_close(run_on(device, graph, {"x": numbers()})["y"], expected, Tolerance(512, scale=1))


@pytest.mark.parametrize("name", list(LINKS))
def test_code_grows_with_the_chain(name: str) -> None:
    """Twice the links make about twice the code: no element is worked out again along every path that leads to it."""

    def characters(links: int) -> int:
        target = isa.forced("sse")
        program, bounds = build.program_of(chain(name, links), target, Options())
        return sum(map(len, generate(program, target, bounds, set(), reuse=True)))

    assert characters(240) <= 2.5 * characters(120)


@pytest.mark.devices("cpu", "vulkan", "xla", "mlx")
@pytest.mark.parametrize("extent", [1, 3])
@pytest.mark.parametrize("output", [True, False], ids=["leaves", "stays"])
def test_concatenations_of_many(device: str, extent: int, output: bool) -> None:
    """Operands that are alike share one function, which writes at the place of each."""
    graph = Graph("many")
    count = 40
    parts = [graph.input(f"x{i}", (2, extent, 3)) for i in range(count)]
    concatenated = rlx.concat(*parts[:-1], rlx.exp(parts[-1]), axis=1)
    graph.output(concatenated if output else rlx.reduce_sum(concatenated, axes=(0,)) * 2.0, name="y")
    arrays = {f"x{i}": np.full((2, extent, 3), i % 7, np.float32) for i in range(count)}
    expected = run_on("reference", graph, arrays)["y"]
    assert_close(run_on(device, graph, arrays)["y"], expected, Tolerance(8))


def test_operands_of_many_that_are_alike_share_code() -> None:
    graph = Graph("many")
    graph.output(rlx.concat(*[graph.input(f"x{i}", (5,)) for i in range(500)], axis=0), name="y")
    target = isa.forced("sse")
    program, bounds = build.program_of(graph, target, Options())
    (text,) = generate(program, target, bounds, set(), reuse=True)
    assert text.count("@kernel.concat(") == 1 + 500
