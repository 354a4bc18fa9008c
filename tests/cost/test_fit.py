"""Times of products between measured sizes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import rlx
from rlx.cost.fit import fit, overlapped, points_of, product_amounts, rest_of_overlap, surfaces_of
from rlx.cost.generic import GenericEstimator
from rlx.device import calibration
from rlx.device.device import Device

SIZES = [(1, m, n, k) for m, n, k in itertools.product((1, 16, 256), (64, 512), (64, 1024))]


def times(sizes: list[tuple[int, int, int, int]]) -> np.ndarray:
    """Of a device with 100 operations a ns, 20 bytes of weights a ns, and a start of 2 µs."""
    return np.array([2.0 * b * m * n * k / 100 + 4.0 * b * n * k / 20 + 2000 for b, m, n, k in sizes])


def test_what_amounts_explain_is_found_at_any_size() -> None:
    surface = fit(np.array([product_amounts(*s) for s in SIZES]), np.array(SIZES, float), times(SIZES))
    elsewhere = [(1, 4, 2048, 100), (1, 1000, 100, 300), (1, 64, 64, 64), (8, 32, 256, 256)]
    actual = [surface.ns(product_amounts(*s), s) for s in elsewhere]
    np.testing.assert_allclose(actual, times(elsewhere), rtol=0.05)


def test_what_they_do_not_explain_holds_nearby_and_fades() -> None:
    expected = times(SIZES)
    odd = SIZES.index((1, 16, 512, 1024))
    expected[odd] *= 3.0
    surface = fit(np.array([product_amounts(*s) for s in SIZES]), np.array(SIZES, float), expected)
    assert surface.ns(product_amounts(*SIZES[odd]), SIZES[odd]) == pytest.approx(expected[odd], rel=0.1)
    far = (1, 4096, 64, 64)
    assert surface.ns(product_amounts(*far), far) == pytest.approx(times([far])[0], rel=0.4)


def test_costs_are_never_below_nothing() -> None:
    """Not even where noise says that more work takes less."""
    noise = np.random.default_rng(0).uniform(0.5, 2.0, len(SIZES))
    surface = fit(np.array([product_amounts(*s) for s in SIZES]), np.array(SIZES, float), times(SIZES) * noise)
    assert (surface.costs >= 0).all()
    assert surface.ns(product_amounts(1, 1, 1, 1), (1, 1, 1, 1)) >= 0


def test_rates_by_name() -> None:
    rates = {"gemm_1x2x3_per_ns": 2.0, "conv_400x64x32x9_per_ns": 50.0, "plain_per_ns": 1.0, "stream_16_per_ns": 3.0}
    assert points_of(rates) == {
        "gemm": [((1.0, 2.0, 3.0), 2.0)], "conv": [((400.0, 64.0, 32.0, 9.0), 50.0)], "stream": [((16.0,), 3.0)],
    }  # fmt: skip
    surfaces = surfaces_of(rates)
    assert set(surfaces) == {"gemm", "conv"}
    size = (1, 400, 64, 32 * 9)
    assert surfaces["conv"].ns(product_amounts(*size), size) == pytest.approx(2.0 * 400 * 64 * 32 * 9 / 50.0, rel=0.05)


def test_a_kind_that_was_not_measured_is_priced_as_products() -> None:
    """A device may refuse a probe, and a recorded profile lack it."""
    graph = rlx.Graph()
    x, w = graph.input("x", (1, 8, 10, 10)), graph.param("w", (4, 8, 3, 3))
    graph.output(rlx.conv(x, w, strides=(1, 1), dilations=(1, 1), low=(0, 0), high=(0, 0), groups=1))
    rates = calibration.calibration(Device("null")).rates
    without = {name: rate for name, rate in rates.items() if not name.startswith("conv_")}
    for known in (rates, without):
        assert any(k.ns > 0 for k in GenericEstimator(graph, known)({}).kernels)


def row_of_products(count: int, dtype: str = "f32") -> float:
    """ns of so many products in a row, on the recorded device with a slow way to memory."""
    graph = rlx.Graph("row")
    x = graph.input("x", (16, 1024), dtype)
    for number in range(count):
        x = x @ graph.param(f"w{number}", (1024, 1024), dtype)
    graph.output(x)
    rates = {**calibration.calibration(Device("null")).rates, "dram_bytes_ns": 1.0, "times_of_f64": 3.0}
    kernels = GenericEstimator(graph, rates)({}).kernels
    return sum(k.ns for k in kernels)


def test_weights_that_no_cache_holds_come_from_far() -> None:
    near, far = row_of_products(2) / 2, row_of_products(10) / 10
    assert near < 1e5
    assert far == pytest.approx(4.0 * 1024 * 1024, rel=0.05)


def test_what_both_take_is_told_apart_again() -> None:
    for one, other in ((1.0, 5.0), (5.0, 1.0), (2.0, 2.0)):
        assert rest_of_overlap(one, overlapped(one, other)) == pytest.approx(other)
    assert rest_of_overlap(3.0, 2.0) == 0.0


def test_products_of_other_dtypes_have_their_factor() -> None:
    assert row_of_products(1, "f64") == pytest.approx(3 * row_of_products(1), rel=0.05)
