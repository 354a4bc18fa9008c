"""What reductions of one value share, and what rows leave to those that read them."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.ir.graph import Graph
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise
from support import run_on


def nests(graph: Graph) -> list[LoopNest]:
    return [k.work for k in to_kernels(optimise(graph)[0]).main if isinstance(k.work, LoopNest)]


@pytest.mark.parametrize("axes", [(1,), (0, 1), (0,)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_the_least_and_the_greatest_are_found_in_one_pass(axes: tuple[int, ...], keepdims: bool) -> None:
    graph = Graph("ends")
    x = graph.input("x", ("n", 70))
    graph.output(ops.reduce_min(x, axes=axes, keepdims=keepdims), name="least")
    graph.output(ops.reduce_max(x, axes=axes, keepdims=keepdims), name="greatest")
    assert len(nests(graph)) == 1
    given = {"x": np.random.default_rng(0).standard_normal((9, 70)).astype(np.float32)}
    made = run_on("cpu", graph, given)
    for name, function in (("least", np.min), ("greatest", np.max)):
        np.testing.assert_array_equal(made[name], function(given["x"], axis=axes, keepdims=keepdims))


def test_a_range_and_what_is_rounded_by_it_are_one_nest() -> None:
    graph = Graph("bytes")
    x = graph.input("x", ("n", 70))
    least, most = (f(x, axes=(1,), keepdims=True) for f in (ops.reduce_min, ops.reduce_max))
    scale = (most - least) / 255.0
    graph.output(ops.round((x - least) / scale).cast("u8"), scale)
    (nest,) = nests(graph)
    assert len(list(nest.stores())) == 2


def test_numbers_of_rows_are_spread_by_their_readers() -> None:
    """A matrix of a number for each row times one for each column lies in no memory."""
    graph = Graph("spread")
    x, w = graph.input("x", ("n", 32)), graph.param("w", (32, 32), data=np.eye(32, dtype=np.float32))
    most = ops.reduce_max(x, axes=(1,), keepdims=True)
    graph.output((x - most) @ w + most * graph.param("by", (32,), data=np.ones(32, np.float32)), name="y")
    program = to_kernels(optimise(graph)[0])
    written = [program.buffers[n].size for k in program.main for n in k.slots[: k.writes]]
    assert (
        sum(isinstance(size, int) or "32" in str(size) for size in written) == 2
    )  # what is multiplied, and the result
    given = {"x": np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)}
    expected = given["x"] - given["x"].max(1, keepdims=True) + given["x"].max(1, keepdims=True)
    np.testing.assert_allclose(run_on("cpu", graph, given)["y"], expected, rtol=1e-5, atol=1e-5)
