"""Arithmetic of floats is not that of real numbers: what a compiler below may not make of a program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx.ir.graph import Graph, Value
from support import run_on

NUMBERS = np.array([1, -1, 0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-30, 7, 5e7], np.float32)
OTHERS = np.array([1e8, 1, 3, 5, 1, 2, 3, -3e38, 1e30, 1e-9, 0.25], np.float32)
Build = Callable[[Value, Value], Value]

PROGRAMS: dict[str, Build] = {
    "over-zero": lambda x, y: x / 0.0,
    "zero-over": lambda x, y: 0.0 / x,
    "times-zero": lambda x, y: x * 0.0,
    "plus-zero": lambda x, y: x + 0.0,
    "plus-negative-zero": lambda x, y: x + -0.0,
    "minus-zero": lambda x, y: x - 0.0,
    "zero-minus": lambda x, y: 0.0 - x,
    "minus-itself": lambda x, y: x - x,
    "over-itself": lambda x, y: x / x,
    "reciprocal-twice": lambda x, y: 1.0 / (1.0 / x),
    "there-and-back": lambda x, y: (x + y) - y,
    "back-and-there": lambda x, y: x - (x - y),
    "there-and-back-by-a-number": lambda x, y: (x + 1e8) - 1e8,
    "times-and-over": lambda x, y: (x * y) / y,
    "two-factors": lambda x, y: (x * 1e30) * 1e30,
    "two-factors-that-cancel": lambda x, y: (x * 1e30) * 1e-30,
    "two-divisors": lambda x, y: (x / y) / 3.0,
    "factor-and-divisor": lambda x, y: (x / 3.0) * 3.0,
    "infinite-term": lambda x, y: x + np.inf,
    "root-squared": lambda x, y: rlx.sqrt(x) * rlx.sqrt(x),
    "not-less": lambda x, y: rlx.select(rlx.bitwise_not(rlx.lt(x, y)), x, y),
}


def program(name: str) -> Graph:
    graph = Graph(name)
    graph.output(PROGRAMS[name](graph.input("x", (11,)), graph.input("y", (11,))), name="z")
    return graph


@pytest.mark.devices("cpu", "cpu-*", "vulkan", "opengl", "xla", "mlx")
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_floats_are_not_real_numbers(device: str, name: str) -> None:
    arrays = {"x": NUMBERS, "y": OTHERS}
    expected, actual = (run_on(d, program(name), arrays)["z"] for d in ("reference", device))
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(actual), ~numbers), (expected, actual)
    assert np.array_equal(np.signbit(actual[numbers]), np.signbit(expected[numbers])), (expected, actual)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=0)
