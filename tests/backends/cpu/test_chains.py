"""Bodies with long chains of instructions: several vectors side by side, whose instructions alternate."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa
from rlx.codegen.simd import chains
from rlx.codegen.simd.loops import ScheduledLoops
from rlx.codegen.simd.module import generate, schedule_of
from rlx.ir import dtype as dtypes
from rlx.ir.expr import Expr
from rlx.ir.graph import Graph, Value
from rlx.ir.interpreter import evaluate
from support import run_on

from .test_bytes import KINDS

AVX512 = isa.forced("avx512", for_codegen_only=True)


def mish(x: Value) -> Value:
    return x * ops.tanh(ops.log1p(ops.exp(x)))


def chained(x: Value, times: int) -> Value:
    for _ in range(times):
        x = ops.exp(x) * 0.5
    return x


def scheduled(body: Callable[[Value], Value], *shape: int | str, dtype: str = "f32") -> ScheduledLoops:
    g = Graph()
    g.output(body(g.input("x", shape, dtype)))
    program, _ = build.program_of(g, AVX512, Options())
    made = schedule_of(program.main[-1], AVX512)
    assert isinstance(made, ScheduledLoops)
    return made


def test_long_chains_go_side_by_side() -> None:
    assert scheduled(mish, 4096).side_by_side == 4
    assert scheduled(ops.gelu, "n").side_by_side == 4
    for length, beside in (("m", 4), (256, 4), (96, 2)):  # where it is known, so many that no rest is left
        assert scheduled(lambda x: ops.reduce_sum(mish(x), axes=(1,)), "n", length).in_flight(0) == beside


def test_code_does_not_grow_without_end() -> None:
    assert [scheduled(lambda x, n=n: chained(x, n), "n").side_by_side for n in (2, 8, 16)] == [4, 2, 1]


def test_calls_of_functions_are_no_chain() -> None:
    """In f64, exponentials are calls of the C library."""
    assert scheduled(lambda x: chained(x, 8), "n", dtype="f64").side_by_side == 2


def test_a_chain_is_what_waits() -> None:
    x, y = (Expr("register", dtypes.f32, (), number) for number in range(2))
    assert chains.cycles((x + 1.0) * (y + 1.0)) == 2 * chains.FLOAT_CYCLES
    assert chains.cycles((x + 1.0) + 1.0) == 2 * chains.FLOAT_CYCLES


def lines(graph: Graph, what: str) -> list[int]:
    """Numbers of the lines with these words, in the first block of the generated code that has any."""
    program, bounds = build.program_of(graph, AVX512, Options())
    (text,) = generate(program, AVX512, bounds, kept=set(), reuse=True)
    block = next(block for block in re.split(r"^\S+:$", text, flags=re.MULTILINE) if what in block)
    return [number for number, line in enumerate(block.splitlines()) if what in line]


@pytest.mark.parametrize("shape", [(4096,), (3, 256)], ids=str)
def test_instructions_alternate(shape: tuple[int, ...]) -> None:
    """In a map, and in a row whose sum is carried."""
    g = Graph()
    x = g.input("x", shape)
    g.output(chained(x, 2) if len(shape) == 1 else ops.reduce_sum(chained(x, 2), axes=(1,)))
    at = lines(g, "sitofp")
    assert len(at) == 8
    assert at[:4] == list(range(at[0], at[0] + 4))


def test_instructions_behind_a_product_alternate() -> None:
    g = Graph()
    g.output(chained(g.input("x", (8, 16)) @ g.param("w", (16, 48)), 1))
    at = lines(g, "sitofp")
    assert at == list(range(at[0], at[0] + 3))


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("length", [1, 63, 64, 200])
def test_results(length: int, device: str) -> None:
    """Lengths with and without a rest; rows whose elements are kept between passes; columns; narrow floats."""
    g = Graph()
    x, half = g.input("x", (5, length)), g.input("half", (5, length), "f16")
    y = mish(x)
    g.output(y, name="map")
    g.output(ops.softmax(y, axis=1), name="rows")
    g.output(ops.softmax(y, axis=0), name="columns")
    g.output(mish(half), name="narrow")
    g.output(mish(ops.rms_norm(x, x[0])), name="norm")
    random = np.random.default_rng(length)
    inputs: dict[str, Any] = {"x": random.standard_normal((5, length)).astype(np.float32)}
    inputs["half"] = inputs["x"].astype(np.float16)
    actual = run_on(device, g, inputs)
    for name, expected in zip(g.outputs, evaluate(g, inputs, {}, {})):
        tolerance = 2e-3 if name == "narrow" else 2e-6
        np.testing.assert_allclose(actual[name], expected, rtol=tolerance, atol=tolerance)
