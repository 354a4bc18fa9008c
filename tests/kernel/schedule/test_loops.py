"""Schedules of loops, transposes, transforms and irregular work, set by hand on the CPU: the same results from other
code; what no register holds, or a kernel has not, is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from kernel.schedule.graphs import scheduled
from rlx import flags, ops
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa
from rlx.codegen.simd.module import generate, schedule_of
from rlx.errors import RlxError
from rlx.ir.graph import Graph, Value
from rlx.kernel.ir.program import leaves
from support import run_on

LEVELS = ("sse", "avx2", "avx512")


def code(graph: Graph, level: str) -> str:
    target = isa.forced(level, for_codegen_only=True)
    program, bounds = build.program_of(graph, target, Options())
    return "".join(generate(program, target, bounds, build._kept(program), reuse=True))


def schedules(graph: Graph, level: str) -> list[str]:
    target = isa.forced(level, for_codegen_only=True)
    program, _ = build.program_of(graph, target, Options())
    return [str(schedule_of(kernel, target).schedule) for kernel in leaves(program.main)]


CHANGES = [
    ("maps", "map:register.elements=48", "register elements 48"),
    ("rows", "rows:register.*=48", "register s0 48"),
    ("rows", "rows:register.s0=16", "register s0 16"),
    ("columns", "columns:register.elements=48,register.terms=7", "register elements 48 x terms 7"),
    ("windows", "windows:register.positions=1", "register positions 1"),
    ("windows", "windows:register.positions=5", "register positions 5"),
    ("windows", "windows:register.elements=32", "elements 32"),
    ("transposes", "transpose:cache.rows=48", "cache rows 48"),
    ("transforms", "fourier:register.radix=2", "x radix 2"),
    ("transforms", "fourier:register.radix=4", "x radix 4"),
    ("transforms", "fourier:register.radix=16", "x radix 16"),
    ("transforms", "fourier:register.signal=4,register.radix=4", "register signal 4 x radix 4"),
    ("wide transforms", "fourier:register.signal=2,register.radix=4", "register signal 2 x radix 4"),
    ("scatters", "scatter:register.columns=1", "register columns 1"),
    ("wide scatters", "scatter:register.columns=48", "register columns 48"),
    ("scans", "prefix-scan:register.columns=1", "register columns 1"),
    ("rankings", "top-k:cache.elements=16", "cache elements 16"),
]


@pytest.mark.parametrize(("name", "changed", "words"), CHANGES)
def test_results_are_the_same(name: str, changed: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    item = scheduled(name)
    expected = run_on("reference", item.graph, item.inputs)
    before = {level: code(item.graph, level) for level in LEVELS}
    monkeypatch.setenv(flags.schedule.name, changed)
    assert sum(code(item.graph, level) != text for level, text in before.items()) >= 2
    assert any(words in text for text in schedules(item.graph, "avx512"))
    results = run_on("cpu", item.graph, item.inputs)
    for key, array in expected.items():
        np.testing.assert_allclose(results[key], array, rtol=2e-4, atol=2e-3 if name == "transforms" else 2e-4)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 9, 14])
def test_windows_of_axes_of_any_length(width: int) -> None:
    graph = Graph("windows")
    x, w = graph.input("x", ("n", 5, "w", 19), "f32"), graph.input("w", (3, 3, 1, 19), "f32")
    graph.output(ops.conv(x, w, strides=(1, 1), dilations=(1, 1), low=(1, 1), high=(1, 1), groups=19,
                          channels_last=True), name="y")  # fmt: skip
    random = np.random.default_rng(width)
    inputs = {
        n: random.standard_normal(s).astype(np.float32) for n, s in (("x", (2, 5, width, 19)), ("w", (3, 3, 1, 19)))
    }
    np.testing.assert_allclose(
        run_on("cpu", graph, inputs)["y"], run_on("reference", graph, inputs)["y"], rtol=1e-5, atol=1e-5
    )


def test_windows_add_up_in_the_same_order_however_many_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    item = scheduled("windows")
    together = run_on("cpu", item.graph, item.inputs)
    monkeypatch.setenv(flags.schedule.name, "windows:register.positions=1")
    for key, array in run_on("cpu", item.graph, item.inputs).items():
        np.testing.assert_array_equal(together[key], array)


@pytest.mark.parametrize("level", LEVELS)
def test_short_bodies_and_long_chains_have_four_vectors_in_flight(level: str) -> None:
    """Others have two: what they do to one vector is enough to keep the units busy."""
    lanes = isa.forced(level, for_codegen_only=True).lanes
    bodies: dict[int, list[Callable[[Value], Value]]] = {
        4: [lambda x: x * 2.0 + 1.0, ops.exp], 2: [lambda x: sum((x * k + x * (x - k) for k in range(1, 6)), x)],
    }  # fmt: skip
    for vectors, several in bodies.items():
        for body in several:
            graph = Graph("map")
            graph.output(body(graph.input("x", (1003,))))
            assert schedules(graph, level) == [f"register elements {vectors * lanes}, vectors of {lanes} along a0"]


@pytest.mark.parametrize("level", LEVELS)
def test_each_kernel_says_how_it_is_run(level: str) -> None:
    lanes = isa.forced(level, for_codegen_only=True).lanes
    shown = {name: schedules(scheduled(name).graph, level) for name in ("maps", "columns", "transposes", "rankings")}
    assert f"register elements {4 * lanes}, vectors of {lanes} along a0" in shown["maps"]
    assert any(text.startswith("register elements ") and "x terms 256" in text for text in shown["columns"])
    square = f"register rows {lanes} x columns {lanes}"
    assert f"cache rows {lanes}, {square}, vectors of {lanes} along a0" in shown["transposes"]
    assert set(shown["rankings"]) == {"cache elements 64"}


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("maps", "map:register.elements=4096", "register.elements of at most 256, got 4096, for map"),
        ("maps", "map:register.terms=4", "one of register.elements, got register.terms, for map"),
        ("rows", "rows:register.s9=16", "one of register.s0, register.s2, register.s5, got register.s9, for rows"),
        ("rows", "rows:register.*=512", "register.s0 of at most 256, got 512, for rows"),
        ("columns", "columns:register.elements=272", "register.elements of at most 256, got 272, for columns"),
        (
            "windows",
            "windows:register.positions=17",
            "register.positions of at most 16, got 17, for windows",
        ),
        ("transposes", "transpose:register.rows=8", "register.rows of 16, a vector's length, got 8, for transpose"),
        ("transforms", "fourier:register.radix=3", "register.radix a power of two from 2 to 16, got 3, for fourier"),
        ("transforms", "fourier:register.signal=32", "register.signal a power of two from 4 to 16, got 32"),
        (
            "scatters",
            "scatter:register.columns=16",
            "register.columns of 1, as results do not lie side by side, got 16",
        ),
        ("wide scatters", "scatter:register.columns=40", "register.columns of 1 or 16 times 1 to 16, got 40"),
        ("scans", "prefix-scan:register.columns=32", "register.columns of 1"),
        ("rankings", "top-k:register.elements=16", "one of cache.elements, got register.elements, for top-k"),
    ],
)
def test_what_a_target_cannot_hold_is_refused(
    name: str, changed: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flags.schedule.name, changed)
    with pytest.raises(RlxError, match=r"\[RLX_SCHEDULE\] expected ") as error:
        code(scheduled(name).graph, "avx512")
    assert words in str(error.value)


@pytest.mark.parametrize(("window", "width", "positions"), [
    (3, "w", 4), (3, 14, 7), (3, 7, 7), (3, 28, 4), (5, 10, 5), (5, "w", 4), (7, "w", 7), (7, 28, 7), (7, 20, 5),
])  # fmt: skip
@pytest.mark.parametrize("level", LEVELS)
def test_windows_take_positions_that_leave_no_rest_and_one_vector_of_channels(
    window: int, width: int | str, positions: int, level: str
) -> None:
    graph = Graph("depthwise")
    w = graph.param("w", (96, 1, window, window), "f32")
    pad = window // 2
    graph.output(rlx.conv(graph.input("x", ("b", 96, "h", width), "f32"), w, low=pad, high=pad, groups=96), name="y")
    lanes = isa.forced(level, for_codegen_only=True).lanes
    chosen = [text for text in schedules(graph, level) if "positions" in text]
    assert len(chosen) == 1 and f"register positions {positions} x elements {lanes}," in chosen[0]
