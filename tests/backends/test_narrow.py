"""Dtypes below 16 bits beyond single instructions: moved, ordered, summed and chosen, as inputs, weights, results."""

from __future__ import annotations

import numpy as np
import pytest

from ops.cases import array
from rlx import ops
from rlx.codegen.scalar import emulation as emulation
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from support import assert_close, run_on

DTYPES = [d for d in dtypes.ALL.values() if emulation.is_emulated(d)]
DEVICES = pytest.mark.devices("cpu", "vulkan", "xla", "mlx")


def same_as_reference(
    device: str, graph: Graph, inputs: dict[str, Array], params: dict[str, Array] | None = None, ulps: float = 0
) -> None:
    expected = run_on("reference", graph, inputs, params)
    for name, actual in run_on(device, graph, inputs, params).items():
        assert_close(actual, expected[name], Tolerance(ulps))


@DEVICES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_moves_elements(device: str, dtype: DType) -> None:
    graph = Graph("moves")
    x, w, at = graph.input("x", (4, "n"), dtype), graph.param("w", (4, 3), dtype), graph.input("at", (2,), "i64")
    concatenated = ops.concat(x, w, axis=1)
    graph.output(
        joined=concatenated,
        turned=concatenated.transpose(1, 0),
        part=concatenated[1:3, ::2],
        taken=ops.gather(x, at, axis=0),
    )
    graph.output(padded=ops.pad(x, low=(1, 0), high=(0, 2), value=1), wide=concatenated.cast("f32"))
    inputs = {"x": array((4, 5), dtype, 1), "at": np.array([3, -4])}
    same_as_reference(device, graph, inputs, {"w": array((4, 3), dtype, 2)})


@DEVICES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_order_and_sums(device: str, dtype: DType) -> None:
    graph = Graph("order")
    x, none = graph.input("x", (3, 7), dtype), graph.input("none", (2, 0), dtype)
    best, places = ops.top_k(x, axis=1, k=4)
    graph.output(best=best, places=places, first=ops.argmin(x, axis=1), most=ops.reduce_max(x, axes=(1,)))
    graph.output(least_of_none=ops.reduce_min(none, axes=(1,)), running=ops.cummax(x, axis=1))
    if dtype is not dtypes.f8e8m0:  # sums of its numbers are no powers of two
        graph.output(total=ops.reduce_sum(x, axes=(0,)))
    inputs = {"x": array((3, 7), dtype, 3), "none": np.zeros((2, 0), dtype.numpy)}
    same_as_reference(device, graph, inputs, ulps=1)


@DEVICES
@pytest.mark.parametrize("dtype", [dtypes.i4, dtypes.u2, dtypes.f8e5m2, dtypes.f4e2m1], ids=str)
@pytest.mark.parametrize("chosen", [True, False])
def test_sides_of_a_conditional(device: str, dtype: DType, chosen: bool) -> None:
    sides = []
    for factor in (1, 3):
        side = Graph("side")
        a, b = side.input("a", (5,), dtype), side.input("b", (5,), dtype)
        side.output(a * b if factor == 1 else a + b)
        sides.append(side)
    graph = Graph("choice")
    test, x, w = graph.input("test", (), "bool"), graph.input("x", (5,), dtype), graph.param("w", (5,), dtype)
    graph.output(*ops.if_(test, x, w, regions=tuple(sides)), name="y")
    inputs = {"test": np.array(chosen), "x": array((5,), dtype, 4)}
    same_as_reference(device, graph, inputs, {"w": array((5,), dtype, 5)})
