"""Reductions over any axes: vectors along rows and across long columns side by side, places of extrema."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import isa
from rlx.backends.cpu.build import program_of
from rlx.codegen.simd.loops import ScheduledLoops
from rlx.codegen.simd.module import schedule_of
from rlx.ir.dtype import parse
from rlx.ir.graph import Graph, Value
from rlx.ir.interpreter import evaluate
from support import run_on

from .test_bytes import FLOAT_KINDS

DTYPES = ("f32", "f64", "bf16", "i8", "bool")


def numbers(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Few different ones, so that many are equal."""
    integers = np.random.default_rng(seed).integers(-3, 4, shape)
    return (abs(integers) if dtype == "u8" else integers > 0 if dtype == "bool" else integers).astype(
        parse(dtype).numpy
    )


def extrema(x: Value, axis: int) -> dict[str, Value]:
    named = {"greatest": ops.argmax, "least": ops.argmin}
    return {f"{name} {last}": op(x, axis=axis, last=last) for name, op in named.items() for last in (False, True)}


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", range(3))
def test_places_of_extrema(axis: int, dtype: str, device: str) -> None:
    """Along rows and columns, long and short; NaN, infinities, and rows of one value."""
    for shape, symbolic in (((3, 40, 5), False), ((2, 35, 150), True), ((70, 2, 37), True), ((40, 3, 128), False)):
        x = numbers(dtype, *shape)
        if dtype in ("f32", "f64", "bf16"):
            special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], x.dtype)
            where = np.random.default_rng(1).random(shape) < 0.05
            x[where] = np.random.default_rng(2).choice(special, where.sum())
            x[0] = special[2]
        g = Graph()
        v = g.input("x", ("a", "b", "c") if symbolic else shape, dtype)
        for name, value in extrema(v, axis).items():
            g.output(value, name=name)
        actual, expected = run_on(device, g, {"x": x}), evaluate(g, {"x": x}, {}, dict(zip("abc", shape)))
        for name, reference in zip(g.outputs, expected):
            np.testing.assert_array_equal(actual[name], reference, err_msg=f"{name} {shape}")


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("shape", [(50, 17), (300, 130), (64, 256), (0, 40)], ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
def test_long_columns(shape: tuple[int, int], symbolic: bool, device: str) -> None:
    """Sums and extrema, several of them in a pass, with passes behind one another and rows kept between."""
    g = Graph()
    x = g.input("x", ("rows", "columns") if symbolic else shape)
    y = g.input("y", (1, "columns") if symbolic else (1, shape[1]))
    total = ops.reduce_sum(ops.exp(x) * y, axes=(0,), keepdims=True)
    g.output(total, name="total")
    g.output(ops.reduce_max(x + y, axes=(0,)) + ops.reduce_sum(x * x, axes=(0,)), name="two")
    if shape[0]:
        g.output(ops.softmax(x, axis=0), name="softmax")
        d = x - ops.reduce_mean(x, axes=(0,), keepdims=True)
        g.output(d * ops.rsqrt(ops.reduce_mean(d * d, axes=(0,), keepdims=True) + 0.1) * y, name="norm")
    inputs = {
        "x": np.random.default_rng(0).standard_normal(shape).astype(np.float32),
        "y": np.random.default_rng(1).standard_normal((1, shape[1])).astype(np.float32),
    }
    actual = run_on(device, g, inputs)
    for name, expected in zip(g.outputs, evaluate(g, inputs, {}, dict(zip(("rows", "columns"), shape)))):
        np.testing.assert_allclose(actual[name], expected, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("device", FLOAT_KINDS)
def test_a_nan_stays_in_its_column(device: str) -> None:
    g = Graph()
    g.output(ops.reduce_sum(g.input("x", (100, 300)), axes=(0,)), name="sum")
    x = np.ones((100, 300), np.float32)
    x[57, 131], x[3, 17] = np.nan, np.inf
    actual = run_on(device, g, {"x": x})["sum"]
    assert np.isnan(actual[131]) and np.isposinf(actual[17])
    assert (np.delete(actual, (17, 131)) == 100).all()


@pytest.mark.parametrize("device", FLOAT_KINDS)
def test_one_long_row_in_parts(device: str) -> None:
    """Of lengths that parts divide and not, two reductions in a pass, several axes, positions as numbers, few rows."""
    g = Graph()
    x, y = g.input("x", (400_003,)), g.input("y", (3, 5, 30_000))
    total, mean = ops.reduce_sum(x, axes=(0,)), ops.reduce_mean(x * x, axes=(0,))
    g.output(total * 2.0 + mean, name="two")
    g.output(ops.reduce_max(y, axes=(1, 2), keepdims=True), name="rows")
    g.output(ops.reduce_sum(ops.transpose(y, permutation=(0, 2, 1)) * 0.5, axes=(0, 1, 2)), name="turned")
    at = ops.iota(g, shape=(400_003,), dtype="i64", axis=0)
    g.output(ops.reduce_max(ops.select(ops.lt(x, -4.0), at, -1), axes=(0,)), name="last small one")
    g.output(ops.reduce_sum(x[7:300_000:2], axes=(0,)), name="part")
    random = np.random.default_rng(0)
    inputs = {"x": random.standard_normal(400_003).astype(np.float32),
              "y": random.standard_normal((3, 5, 30_000)).astype(np.float32)}  # fmt: skip
    actual = run_on(device, g, inputs)
    for name, expected in zip(g.outputs, evaluate(g, inputs, {}, {})):
        np.testing.assert_allclose(actual[name], expected, rtol=1e-5, atol=2e-3)


def test_parts_are_the_same_for_any_number_of_threads() -> None:
    g = Graph()
    g.output(ops.reduce_sum(g.input("x", (1_000_001,)), axes=(0,)), name="y")
    x = np.random.default_rng(0).standard_normal(1_000_001).astype(np.float32)
    assert len({float(rlx.Session("cpu", threads=n).compile(g).run([x])[0]) for n in (1, 2)}) == 1
    program, _ = program_of(g, isa.detect(), Options())
    assert [k.work.outer for k in program.main[:3]] == [(32,), (1,), ()]  # type: ignore[attr-defined]


def test_columns_go_side_by_side() -> None:
    level = isa.forced("avx512", for_codegen_only=True)

    def beside(shape: tuple[int | str, ...], build: Any = ops.reduce_sum) -> int:
        g = Graph()
        g.output(build(g.input("x", shape), axes=(0,)))
        program, _ = program_of(g, level, Options())
        scheduled = schedule_of(program.main[0], level)
        assert isinstance(scheduled, ScheduledLoops) and scheduled.across
        return scheduled.side_by_side

    assert beside((2048, 2048)) == beside(("n", "m")) == 8
    assert beside((2048, 40)) == 2
    assert beside((9, 2048)) == 1
