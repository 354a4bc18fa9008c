"""Quotients by known numbers are those of the division."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa
from rlx.codegen.simd.module import generate
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from support import run_on

DIVISORS = (1.0, 2.0, 3.0, 6.0, -6.0, 7.0, 1.1, 1.9999999, 255.0, 1000.0, -0.1, 2.0**59, 1e30, np.inf, np.nan, 0.0)
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 3.4028235e38, -3.4028235e38, 1.0, -1.0)
LEAST = (1e-45, -1e-45, 1.1754944e-38, -1.1754944e-38)


def quotients() -> Graph:
    graph = Graph("quotients")
    x = graph.input("x", ("n",), "f32")
    for number, divisor in enumerate(DIVISORS):
        graph.output(x / divisor, name=f"y{number}")
    return graph


def numbers(least: int, most: int) -> Array:
    """Fractions from all over, and the least and greatest of them, with exponents in a range."""
    random = np.random.default_rng(0)
    fractions = np.concatenate([random.integers(0, 1 << 23, 200_000), np.arange(200), (1 << 23) - np.arange(1, 200)])
    exponents = random.integers(least + 127, most + 127, fractions.size)
    signs = random.integers(0, 2, fractions.size)
    bits = signs << 31 | exponents << 23 | fractions
    return np.concatenate([bits.astype(np.uint32).view(np.float32), np.array(SPECIAL, np.float32)])


def test_results_are_those_of_the_division() -> None:
    x = numbers(-60, 127)
    with np.errstate(all="ignore"):
        results = run_on("cpu", quotients(), {"x": x})
        for number, divisor in enumerate(DIVISORS):
            actual, expected = results[f"y{number}"], x / np.float32(divisor)
            same = (actual.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(actual) & np.isnan(expected))
            assert same.all(), (divisor, x[~same][:4], actual[~same][:4], expected[~same][:4])


def test_near_the_least_numbers_they_are_off_by_a_step_at_most() -> None:
    x = np.concatenate([numbers(-126, -60)[: -len(SPECIAL)], np.array(LEAST, np.float32)])
    results = run_on("cpu", quotients(), {"x": x})
    for number, divisor in enumerate(DIVISORS[:10]):
        expected = x / np.float32(divisor)
        steps = results[f"y{number}"].view(np.int32).astype(np.int64) - expected.view(np.int32)
        assert np.abs(steps).max() <= 1


@pytest.mark.parametrize(("level", "divides"), [("avx512", False), ("avx2", False), ("sse", True)])
def test_the_instruction_is_left_out_where_products_add_in_one(level: str, divides: bool) -> None:
    graph = Graph("sixth")
    x = graph.input("x", (64, 64), "f32")
    graph.output(x / 6.0, rlx.relu(x @ graph.input("w", (64, 64), "f32")) / 6.0)
    target = isa.forced(level, for_codegen_only=True)
    program, bounds = build.program_of(graph, target, Options())
    assert any("fdiv" in text for text in generate(program, target, bounds, set(), reuse=True)) == divides
