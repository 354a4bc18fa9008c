"""Products whose operands one lane asks the copy engine for: sides of all sizes, sums that clusters share, and rings
shorter and longer than sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlx.backends.cuda.build import program_of
from rlx.codegen.simt import asked_contraction, tile_layouts
from rlx.codegen.simt.language.cuda import CUDA, Cuda
from rlx.codegen.simt.tile_layouts import TileLayout
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.program import leaves

from .emulated_driver import EmulatedDriver
from .graphs import compiled
from .test_tiles import force, whole, wide

SHORT = TileLayout(16, 64, (4, 1, 1), 64, 3, together=True)
LONG = TileLayout(16, 32, (4, 1, 1), 64, 12, together=True)
TALL = TileLayout(32, 64, (4, 1, 1), 64, 4, together=True)
SLICED = TileLayout(16, 64, (4, 1, 2), 64, 4, together=True)
ACROSS = TileLayout(16, 64, (4, 2, 1), 64, 4, together=True)
SPLIT = replace(LONG, splits=2)
SPLIT_SHORT = replace(SHORT, splits=4, stages=4)
LAYOUTS = {
    "short": SHORT, "long": LONG, "tall": TALL, "sliced": SLICED, "across": ACROSS, "split": SPLIT,
    "split short": SPLIT_SHORT,
}  # fmt: skip


def is_asked(text: str) -> bool:
    return "bring_tile(" in text and "copy_ahead" not in text


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TileLayout:
    chosen = LAYOUTS[request.param]
    assert chosen.is_possible
    force(monkeypatch, chosen)
    return chosen


@pytest.mark.parametrize(("m", "k", "n"), [(130, 520, 72), (64, 64, 64), (65, 1000, 33)])
def test_weights_in_panels(layout: TileLayout, m: int, k: int, n: int, driver: EmulatedDriver) -> None:
    """With as many rows as a run says, and ends that fill no tile."""
    graph = Graph("product")
    graph.output(graph.input("x", ("m", k), "f16") @ graph.param("w", (k, n), "f16"))
    x, w = whole((m, k), 1), whole((k, n), 2)
    executable = compiled(graph, {"w": w})
    assert any(map(is_asked, executable.plan.module.kernels.values()))
    (result,) = executable.bind({"m": m})([x])
    np.testing.assert_array_equal(wide(result), wide(x) @ wide(w))


def test_two_values_of_a_run(layout: TileLayout, driver: EmulatedDriver) -> None:
    """Matrices of a batch, of which both sides are rows."""
    graph = Graph("scores")
    x, y = graph.input("x", (2, "m", 328), "bf16"), graph.input("y", (2, "n", 328), "bf16")
    graph.output(x @ y.transpose(0, 2, 1))
    executable = compiled(graph)
    assert any(map(is_asked, executable.plan.module.kernels.values()))
    x_given, y_given = whole((2, 70, 328), 1, "bf16"), whole((2, 100, 328), 2, "bf16")
    (result,) = executable.bind({"m": 70, "n": 100})([x_given, y_given])
    expected = wide(x_given) @ wide(y_given).transpose(0, 2, 1)
    np.testing.assert_allclose(wide(result), expected, rtol=2**-8)


def test_no_rows(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, SHORT)
    graph = Graph("nothing")
    graph.output(graph.input("x", ("m", 64), "f16") @ graph.param("w", (64, 64), "f16"))
    (result,) = compiled(graph, {"w": whole((64, 64), 1)}).bind({"m": 0})([whole((0, 64), 2)])
    assert result.shape == (0, 64)


def contraction_of(m: int | str, k: int, n: int, dtype: str = "f16") -> Contraction:
    graph = Graph("product")
    graph.output(graph.input("x", (m, k), dtype) @ graph.param("w", (k, n), dtype))
    works = [kernel.work for kernel in leaves(program_of(graph).main)]
    return next(work for work in works if isinstance(work, Contraction))


def test_what_the_copy_engine_cannot_bring() -> None:
    """Lines of 64 bytes, products of warps alone, rows that move from run to run, and other numbers."""
    work = contraction_of("m", 128, 64)
    assert asked_contraction.takes(work, SHORT, CUDA)
    assert not asked_contraction.takes(work, replace(SHORT, depth=32), CUDA)
    assert not asked_contraction.takes(work, replace(SHORT, together=False), CUDA)
    assert not asked_contraction.takes(work, SHORT, Cuda(frozenset(map(str, dims.symbols(work.m)))))
    assert not asked_contraction.takes(contraction_of(64, 128, 64, dtype="f32"), SHORT, CUDA)


def test_a_ring_that_leaves_no_room_for_counters() -> None:
    work = contraction_of(4096, 1024, 1024)
    layouts = [each for each in tile_layouts.LAYOUTS if each.together and each.depth == 64]
    taken = [each for each in layouts if asked_contraction.takes(work, each, CUDA)]
    assert all(asked_contraction._shared_bytes(each) <= 227 << 10 for each in taken)
    assert len(taken) > len(layouts) // 2
