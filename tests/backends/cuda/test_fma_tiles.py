"""Products of many rows of f32 whose lanes multiply: ends of every side, forms of the right side, rows that a run
tells, epilogues, and which layouts are chosen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.build import program_of
from rlx.backends.cuda.executable import CudaExecutable
from rlx.codegen.simt import fma_tile
from rlx.codegen.simt.fma_layouts import ALONE, SPLIT, fma_layout_of
from rlx.codegen.simt.language.cuda import prelude
from rlx.codegen.simt.module import NVIDIA, cpp_module
from rlx.codegen.simt.tile_layouts import TileLayout
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.program import leaves
from support import cubin, layouts_at_turn

from .emulated_driver import EmulatedDriver
from .graphs import compiled

SMALL = TileLayout(32, 32, (2, 2, 1), 16, 4, chunk=16)
SLICED = TileLayout(32, 16, (2, 1, 2), 32, 3, chunk=16)
TALL = TileLayout(64, 32, (2, 2, 1), 16, 3, chunk=16)
SPLIT_SLICED = TileLayout(32, 32, (1, 2, 2), 32, 3, chunk=16, splits=2)
FORMS = {"small": SMALL, "sliced": SLICED, "tall": TALL, "split": SPLIT_SLICED}


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TileLayout:
    """The layout that all tiles have."""
    chosen: TileLayout = request.param
    force(monkeypatch, chosen)
    return chosen


def force(monkeypatch: pytest.MonkeyPatch, layout: TileLayout) -> None:
    monkeypatch.setattr(fma_tile, "fma_layout_of", lambda work, rows, clusters: layout)


def tiles(executable: CudaExecutable) -> int:
    """How many kernels are tiles."""
    return sum("rows[i]." in text for text in executable.plan.module.kernels.values())


def whole(*shape: int, seed: int = 0) -> Array:
    """Small whole numbers, whose sums are exact in any order."""
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize(("m", "k", "n"), [(130, 40, 72), (65, 100, 33)])
def test_products_with_weights(m: int, k: int, n: int, form: TileLayout, driver: EmulatedDriver) -> None:
    """The rows are known to a run alone."""
    graph = Graph("product")
    graph.output(graph.input("x", ("m", k)) @ graph.param("w", (k, n)))
    x, w = whole(m, k), whole(k, n)
    executable = compiled(graph, {"w": w})
    assert tiles(executable)
    np.testing.assert_array_equal(executable.bind({"m": m})([x])[0], x @ w)


def test_products_of_two_values_of_a_run(form: TileLayout, driver: EmulatedDriver) -> None:
    """Whose right sides have columns side by side, or contiguous along k."""
    graph = Graph("two")
    x = graph.input("x", (2, 70, 40))
    y, z = graph.input("y", (2, 40, 100)), graph.input("z", (2, 37, 40))
    graph.output(x @ y, x @ z.transpose(0, 2, 1))
    executable = compiled(graph)
    assert tiles(executable) == 2
    given = whole(2, 70, 40), whole(2, 40, 100), whole(2, 37, 40)
    by_columns, along_k = executable.bind({})(given)
    np.testing.assert_array_equal(by_columns, given[0] @ given[1])
    np.testing.assert_array_equal(along_k, given[0] @ given[2].transpose(0, 2, 1))


def test_what_no_matrix_unit_takes_in_f32_fast(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As these read both sides along k."""
    force(monkeypatch, SMALL)
    graph = Graph("columns")
    graph.output(graph.input("x", (70, 40)) @ graph.input("y", (40, 36)))
    executable = compiled(graph, options=Options(cache=False, precision="f32_fast"))
    assert tiles(executable) == 1
    given = whole(70, 40), whole(40, 36)
    np.testing.assert_array_equal(executable.bind({})(given)[0], given[0] @ given[1])


def test_a_bias_a_residual_and_a_relu(form: TileLayout, driver: EmulatedDriver) -> None:
    graph = Graph("epilogue")
    x, residual = graph.input("x", (67, 32)), graph.input("residual", (67, 72))
    y = x @ graph.param("w", (32, 72)) + graph.param("bias", (72,))
    graph.output(ops.relu(y + residual))
    given, w, bias = (whole(67, 32), whole(67, 72)), whole(32, 72), whole(72)
    executable = compiled(graph, {"w": w, "bias": bias})
    (result,) = executable.bind({})(given)
    np.testing.assert_array_equal(result, np.maximum(given[0] @ w + bias + given[1], 0))
    (text,) = (text for text in executable.plan.module.kernels.values() if "rows[i]." in text)
    assert "put_piece((Piece*)(slot" in text


def test_rows_that_data_choose(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, SMALL)
    graph = Graph("chosen")
    table, at = graph.input("table", (9, 32)), graph.input("at", ("m",), "i64")
    graph.output(ops.gather(table, at, axis=0) @ graph.param("w", (32, 48)))
    given, w = whole(9, 32), whole(32, 48)
    places = np.random.default_rng(3).integers(0, 9, 67)
    executable = compiled(graph, {"w": w})
    assert tiles(executable)
    np.testing.assert_array_equal(executable.bind({"m": 67})([given, places])[0], given[places] @ w)


def test_sides_that_are_no_pieces_are_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are of 16 bytes, which begin at multiples of them."""
    force(monkeypatch, SMALL)
    graph = Graph("shifted")
    flat = ops.slice(graph.input("flat", (1 + 64 * 64,)), starts=(1,), stops=(1 + 64 * 64,))
    w = graph.param("w", (64, 64))
    graph.output(flat.reshape(64, 64) @ w, graph.input("x", (64, 62)) @ w[:62], graph.input("y", (64, 4)) @ w[:4])
    assert "copy_ahead(" not in "".join(cpp_module([program_of(graph)]).kernels.values())


def product(m: int, k: int, n: int) -> Contraction:
    graph = Graph("product")
    graph.output(graph.input("x", (m, k)) @ graph.param("w", (k, n)))
    (kernel,) = leaves(program_of(graph).main)
    assert isinstance(kernel.work, Contraction)
    return kernel.work


def test_more_results_have_larger_tiles_and_few_rows_none() -> None:
    """Few tiles are worth it where workgroups can share their sums."""

    def area(m: int, k: int, n: int, clusters: bool) -> int:
        layout = fma_layout_of(product(m, k, n), 1, clusters)
        return math.prod(layout.tile) if layout else 0

    assert 0 == area(32, 4096, 4096, True) < area(128, 1024, 1024, True) <= area(8192, 1024, 1024, True)
    assert 0 == area(64, 1024, 64, False) < area(8192, 1024, 1024, False)
    few, many = fma_layout_of(product(49, 4608, 512), 1, True), fma_layout_of(product(8192, 4608, 512), 1, True)
    assert few is not None and many is not None and few.splits == 8 and many.splits == 1


def test_one_row_and_many_have_kernels_of_their_own() -> None:
    graph = Graph("product")
    graph.output(graph.input("x", ("m", 1024)) @ graph.param("w", (1024, 1024)))
    program = program_of(graph)
    (kernel,) = leaves(program.main)
    module = cpp_module([program], target=NVIDIA.on("sm_90a"))
    few, many = (module.kernels[module.variant(kernel, {"m": rows}).name] for rows in (1, 5000))
    assert "rows[i]." in many and "rows[i]." not in few


@pytest.mark.skipif(bool(nvrtc.why_absent()), reason=nvrtc.why_absent())
@pytest.mark.parametrize("number", range(len(nvrtc.ARCHITECTURES)))
def test_all_layouts_compile(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each for one of the architectures, a part of them at each commit; those that need clusters for the one that has
    them."""
    texts = {}
    others = layouts_at_turn(SPLIT, 0, 3) if nvrtc.ARCHITECTURES[number].startswith("sm_90") else ()
    for layout in (*layouts_at_turn(ALONE, number, len(nvrtc.ARCHITECTURES)), *others):
        force(monkeypatch, layout)
        graph = Graph("product")
        graph.output(graph.input("x", (300, 96)) @ graph.param("w", (96, 100)))
        module = cpp_module([program_of(graph)])
        texts |= {name: text for name, text in module.kernels.items() if "rows[i]." in text}
    assert texts
    assert cubin("\n".join([prelude(), *texts.values()]), nvrtc.ARCHITECTURES[number])
