"""Images that nearest resizing makes larger by whole numbers: no table of indices, no division for each element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import isa
from rlx.backends.cpu.build import program_of
from rlx.codegen.simd.module import schedule_of
from rlx.codegen.simd.repeat import BLOCK, ScheduledRepeats
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Value
from rlx.ir.interpreter import evaluate
from rlx.kernel.ir.program import Program
from support import run_on

CASES = {
    "whole vectors": ((2, 3, 4, 32), (2, 2)),
    "a short last vector": ((2, 3, 4, 37), (2, 2)),
    "a row shorter than a vector": ((3, 5, 3), (3, 2)),
    "more than a vector of each": ((2, 4, 9), (1, 5)),
    "rows alone": ((2, 4, 19), (4, 1)),
    "too many for registers": ((2, 3, 5), (2, 9)),
    "a row in blocks": ((2 * BLOCK + 7,), (2,)),
}


def enlarged(x: Value, times: tuple[int, ...], **rules: str) -> Value:
    axes = tuple(range(x.rank - len(times), x.rank))
    sizes = tuple(dims.mul(x.shape[axis], by) for axis, by in zip(axes, times))
    return ops.resize(x, axes=axes, sizes=sizes, up=times, down=(1,) * len(times), **rules)  # type: ignore[no-any-return]


def program(graph: Graph, *off: str) -> Program:
    return program_of(graph, isa.detect(), Options(disable=frozenset(off)))[0]


@pytest.mark.devices("cpu", "cpu-*")
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "u8", "f16", "bool", "f64", "i32"])
@pytest.mark.parametrize(("shape", "times"), CASES.values(), ids=CASES)
def test_results_are_the_same(
    shape: tuple[int, ...], times: tuple[int, ...], dtype: str, symbolic: bool, device: str
) -> None:
    g = Graph()
    named = {f"d{i}": extent for i, extent in enumerate(shape)}
    x = g.input("x", (*named,) if symbolic else shape, dtype)
    g.output(enlarged(x, times), name="y")
    g.output(enlarged(x, times, coordinates="asymmetric", nearest="floor"), name="z")
    values = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 200, shape).astype(x.dtype.numpy)
    results = run_on(device, g, {"x": values})
    expected = values
    for axis, by in zip(range(len(shape) - len(times), len(shape)), times):
        expected = expected.repeat(by, axis)
    np.testing.assert_array_equal(results["y"], expected)
    np.testing.assert_array_equal(results["z"], expected)


@pytest.mark.devices("cpu", "cpu-*")
def test_what_is_computed_around_them_is_computed_once_for_each_element(device: str) -> None:
    g = Graph()
    x, bias = g.input("x", (2, 3, 8, 21)), g.input("bias", (3, 1, 1))
    g.output(ops.exp(enlarged(x * 2.0 + bias, (2, 3))), name="y")
    g.output(enlarged(x, (2, 2)) + ops.iota(g, shape=(42,), dtype="f32"), name="places")  # each of its own
    random = np.random.default_rng(0)
    inputs = {
        "x": random.standard_normal((2, 3, 8, 21), np.float32),
        "bias": random.standard_normal((3, 1, 1), np.float32),
    }
    expected = dict(zip(g.outputs, evaluate(g, inputs, {}, {})))
    for name, result in run_on(device, g, inputs).items():
        np.testing.assert_allclose(result, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("rules", [{}, {"coordinates": "asymmetric", "nearest": "floor"}], ids=["half pixel", "floor"])
def test_each_element_is_made_once(symbolic: bool, rules: dict[str, Any]) -> None:
    g = Graph()
    g.output(enlarged(g.input("x", ("n", 3, "h", "w") if symbolic else (2, 3, 8, 20)), (2, 3), **rules))
    (kernel,) = program(g).main
    scheduled = schedule_of(kernel, isa.detect())
    assert isinstance(scheduled, ScheduledRepeats)
    assert (scheduled.times, scheduled.rows) == (3, 2)
    assert len(kernel.slots) == 2  # nothing is read but x


def test_other_scales_read_a_table() -> None:
    def slots(size: Dim, up: int, **rules: str) -> int:
        g = Graph()
        x = g.input("x", (2, 8))
        g.output(ops.resize(x, axes=(1,), sizes=(size,), up=(up,), down=(2,), **rules))
        (kernel,) = program(g).main
        return len(kernel.slots)

    assert slots(16, 4) == 2
    assert slots(12, 3) == 3
    assert slots(16, 4, coordinates="align_corners", nearest="floor") == 3
    assert slots(16, 4, coordinates="asymmetric", nearest="ceil") == 3


@pytest.mark.devices("cpu")
@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "half_pixel_symmetric", "align_corners"])
def test_whole_scales_of_open_dims_round_as_asked(coordinates: str, nearest: str, device: str) -> None:
    g = Graph()
    x = g.input("x", ("h", "w"))
    g.output(enlarged(x, (2, 3), coordinates=coordinates, nearest=nearest), name="y")
    for shape in ((5, 7), (1, 4)):
        inputs = {"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)}
        known = Graph()
        known.output(enlarged(known.input("x", shape), (2, 3), coordinates=coordinates, nearest=nearest), name="y")
        (expected,) = evaluate(known, inputs, {}, {})
        np.testing.assert_array_equal(run_on(device, g, inputs)["y"], expected)


def test_axes_before_the_last_keep_their_division() -> None:
    """Rows of channels need no more axes: a division for each is less work."""
    g = Graph()
    x = g.input("x", (2, 8, 8, 32))
    g.output(ops.resize(x, axes=(1, 2), sizes=(16, 16), up=(2, 2), down=(1, 1)))
    (kernel,) = program(g).main
    assert kernel.work.extents() == (2, 16, 16, 32) and len(kernel.slots) == 2
