"""Products of dequantised operands become products of bytes, and what stands around them joins their kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.ir.dtype import parse
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Tolerance
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise
from support import assert_close, run_on

pytestmark = pytest.mark.devices("reference", "cpu", "cpu-*")

PASS = "raise-quantised"


def bytes_of(kind: str, *shape: int, seed: int = 0) -> Any:
    numpy = parse(kind).numpy
    info = np.iinfo(numpy)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, endpoint=True).astype(numpy)


def dequantised(g: Graph, x: Value, scale: Any, zero: Any, **attributes: Any) -> Value:
    numbers = (g.constant(np.asarray(scale, np.float32)), g.constant(np.asarray(zero, x.dtype.numpy)))
    return ops.dequantize(x, *numbers, dtype="f32", **attributes)  # type: ignore[no-any-return]


def quantised(g: Graph, x: Value, scale: float, zero: int, kind: str) -> Value:
    numbers = (g.constant(np.float32(scale)), g.constant(zero, kind))
    return ops.quantize(x, *numbers, dtype=kind)  # type: ignore[no-any-return]


def dense(g: Graph, left: str, right: str) -> Value:
    x, w = g.input("x", ("n", 5, 24), left), g.param("w", (24, 17), right, bytes_of(right, 24, 17, seed=1))
    columns = np.linspace(0.01, 0.02, 17)
    y = dequantised(g, x, 0.02, 7) @ dequantised(g, w, columns, np.zeros(17), axis=-1)
    return quantised(g, ops.relu(y + 0.5), 0.05, 3, left)


def turned(g: Graph, left: str, right: str) -> Value:
    """The weight as Gemm has it, the other way round."""
    x, w = g.input("x", ("n", 24), left), g.param("w", (17, 24), right, bytes_of(right, 17, 24, seed=1))
    return dequantised(g, x, 0.02, 7) @ dequantised(g, w, np.linspace(0.01, 0.02, 17), np.ones(17), axis=0).transpose()


def window(g: Graph, left: str, right: str) -> Value:
    x, w = g.input("x", ("n", 8, 9, 7), left), g.param("w", (6, 8, 3, 3), right, bytes_of(right, 6, 8, 3, 3, seed=1))
    sizes = {"strides": (1, 2), "dilations": (1, 1), "low": (1, 1), "high": (1, 0)}
    weight = dequantised(g, w, np.linspace(0.01, 0.02, 6), np.zeros(6), axis=0)
    y = ops.conv(dequantised(g, x, 0.02, 7), weight, **sizes)
    return quantised(g, ops.relu(y + g.constant(np.ones((6, 1, 1), np.float32))), 0.05, 3, left)


SHAPES = {"dense": (2, 5, 24), "turned": (5, 24), "window": (2, 8, 9, 7)}


@pytest.mark.parametrize("left", ["u8", "i8"])
@pytest.mark.parametrize("right", ["u8", "i8"])
@pytest.mark.parametrize("make", [dense, turned, window])
def test_products_of_bytes(make: Callable[..., Value], left: str, right: str, device: str) -> None:
    g = Graph()
    g.output(make(g, left, right), name="y")
    _, report = optimise(g)
    assert sum(count for name, count in report.rewrites.items() if name.startswith(PASS)) >= 1
    feed = {"x": bytes_of(left, *SHAPES[make.__name__])}
    plain = run_on("reference", g, feed, disable=frozenset({PASS}))["y"]
    actual = run_on(device, g, feed)["y"]
    if actual.dtype.kind == "f":
        assert_close(actual, plain, Tolerance(16, scale=1))
    else:
        assert np.abs(actual.astype(int) - plain.astype(int)).max() <= 1  # sums round apart where they meet a tie
        assert (actual != plain).mean() < 0.01


def test_one_kernel_from_bytes_to_bytes() -> None:
    g = Graph()
    g.output(dense(g, "u8", "i8"))
    assert len(to_kernels(optimise(g)[0]).main) == 1


def test_pools_move_bytes() -> None:
    g = Graph()
    x = dequantised(g, g.input("x", (1, 3, 8, 8), "u8"), 0.02, 7)
    sizes = {"strides": (2, 2), "dilations": (1, 1), "low": (0, 0), "high": (0, 0)}
    g.output(quantised(g, ops.reduce_window(x, combine="max", window=(2, 2), **sizes), 0.02, 7, "u8"), name="y")
    _, report = optimise(g)
    assert report.rewrites[f"{PASS}/pool"] == 1
    feed = {"x": bytes_of("u8", 1, 3, 8, 8)}
    plain = run_on("reference", g, feed, disable=frozenset({PASS}))
    np.testing.assert_array_equal(run_on("cpu", g, feed)["y"], plain["y"])


def test_quantising_what_was_dequantised_is_nothing() -> None:
    g = Graph()
    x = g.input("x", (300,), "u8")
    scale, zero = g.constant(np.float32(0.03)), g.constant(np.uint8(9))
    g.output(ops.quantize(ops.dequantize(x, scale, zero, dtype="f32"), scale, zero, dtype="u8"))
    optimised, report = optimise(g)
    assert report.rewrites[f"{PASS}/again"] == 1 and len(optimised.nodes) == 1


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_scale_that_is_not_positive_stays(scale: float) -> None:
    g = Graph()
    x = g.input("x", (300,), "u8")
    numbers = g.constant(np.float32(scale)), g.constant(np.uint8(9))
    g.output(ops.quantize(ops.dequantize(x, *numbers, dtype="f32"), *numbers, dtype="u8"))
    assert f"{PASS}/again" not in optimise(g)[1].rewrites


def test_scales_along_the_sum_stay_in_floats() -> None:
    g = Graph()
    x, w = g.input("x", (5, 24), "u8"), g.param("w", (24, 17), "i8", bytes_of("i8", 24, 17))
    g.output(dequantised(g, x, 0.02, 7) @ dequantised(g, w, np.linspace(0.01, 0.02, 24), np.zeros(24), axis=0))
    assert not any(name.startswith(PASS) for name in optimise(g)[1].rewrites)
