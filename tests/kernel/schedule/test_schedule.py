"""Schedules: what they say, how they are set by hand, and that the kernel which they say computes the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx import flags
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa
from rlx.codegen.simd.module import generate, schedule_of
from rlx.errors import RlxError
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.text import text_of
from rlx.kernel.schedule.schedule import Schedule, Tile
from support import run_on

BLOCK = Schedule(
    tiles=(Tile("cache", "m", 128), Tile("register", "m", 8), Tile("register", "n", 48)),
    vector=("n", 16),
    spaces=(("b", "panels"),),
)


def product(rows: int = 37) -> Graph:
    graph = Graph("scheduled")
    weight = np.random.default_rng(0).standard_normal((50, 70), np.float32)
    graph.output(rlx.relu(graph.input("x", (rows, 50)) @ graph.param("w", (50, 70), data=weight)), name="y")
    return graph


def code(graph: Graph) -> str:
    level = isa.detect()
    program, bounds = build.program_of(graph, level, Options())
    return "".join(generate(program, level, bounds, build._kept(program), reuse=True))


def test_a_schedule_reads_as_words() -> None:
    assert str(BLOCK) == "cache m 128, register m 8 x n 48, vectors of 16 along n, b in panels"
    assert str(Schedule()) == "one position at a time"
    assert BLOCK.with_tile("register", "m", 4).static_tile("register", "m") == 4
    with pytest.raises(KeyError):
        BLOCK.tile("register", "k")


@pytest.mark.parametrize(
    "changed", ["register.m=3", "register.n=16", "cache.m=8", "register.m=5,register.n=32,cache.m=20"]
)
def test_a_product_scheduled_by_hand_gives_the_same(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = product()
    before = code(graph)
    x = np.random.default_rng(1).standard_normal((37, 50), np.float32)
    expected = run_on("reference", graph, {"x": x})["y"]
    monkeypatch.setenv(flags.schedule.name, f"contraction:{changed}")
    assert code(graph) != before
    assert np.allclose(run_on("cpu", graph, {"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


def attention() -> Graph:
    graph = Graph("attention")
    graph.output(rlx.attention(*(graph.input(name, (1, 2, 37, 24)) for name in "qkv")), name="y")
    return graph


def convolution() -> Graph:
    graph = Graph("convolution")
    weight = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32) / 24
    x, w = graph.input("x", (1, 64, 21, 23)), graph.param("w", (64, 64, 3, 3), data=weight)
    graph.output(rlx.conv(x, w, strides=(1, 1), dilations=(1, 1), low=(1, 1), high=(1, 1)), name="y")
    return graph


@pytest.mark.parametrize(
    ("build", "changed"),
    [
        (attention, "attention:register.queries=3"),
        (attention, "attention:register.keys=16,register.features=9"),
        (convolution, "winograd:register.tiles=3"),
        (convolution, "winograd:thread.parts=2"),
        (convolution, "winograd:thread.parts=3,thread.rows=1"),
        (convolution, "winograd:thread.rows=2,register.n=16"),
    ],
)
def test_other_kernels_scheduled_by_hand_give_the_same(
    build: Callable[[], Graph], changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = build()
    before = code(graph)
    inputs = {v.name: np.random.default_rng(1).standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    expected = run_on("reference", graph, inputs)["y"]
    monkeypatch.setenv(flags.schedule.name, changed)
    assert code(graph) != before
    assert np.allclose(run_on("cpu", graph, inputs)["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "contraction:register.k=4",
            "expected one of cache.m, register.m, register.n, got register.k, for contraction",
        ),
        ("contraction", "expected `kind:level.axis=size`"),
        ("contractions:register.m=4", "expected one of attention, .*, winograd, got 'contractions'"),
        ("contraction:register.m", "expected `level.axis=size`"),
        ("contraction:register.m=0", "a size of 1 to"),
        ("contraction:register.m=99999999", "a size of 1 to"),
    ],
)
def test_a_wrong_override_is_named(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flags.schedule.name, text)
    with pytest.raises(RlxError, match=rf"\[RLX_SCHEDULE\] .*{words}"):
        code(product())


def test_a_printed_kernel_shows_its_schedule() -> None:
    level = isa.forced("avx2", for_codegen_only=True)
    program, _ = build.program_of(product(), level, Options())
    text = text_of(program, lambda kernel: schedule_of(kernel, level).schedule)
    assert "schedule: cache m 128, register m 4 x n 24, vectors of 8 along n, a in cache, b in panels" in text
    assert all(isinstance(schedule_of(k, level).schedule, Schedule) for k in program.main)
    assert any(isinstance(k.work, Contraction) for k in program.main)
