"""Products of bytes on matrix units, on the emulated driver: equal to the reference, bit for bit."""

from __future__ import annotations

import re

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda.build import program_of
from rlx.codegen.simt import team_contraction, tile_contraction
from rlx.codegen.simt.module import cpp_module
from rlx.codegen.simt.tile_layouts import BYTES, TileLayout, clocks, tile_of
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.kernel.ir.contraction import Contraction

from .emulated_driver import EmulatedDriver

COMBINATIONS = [("u8", "i8"), ("i8", "i8"), ("u8", "u8"), ("i8", "u8")]


def drawn(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    """All bytes, the greatest and the least ones more often."""
    numpy_dtype = dtypes.of(dtype).numpy
    low, high = np.iinfo(numpy_dtype).min, np.iinfo(numpy_dtype).max
    random = np.random.default_rng(seed)
    return np.clip(random.integers(2 * low - 40, 2 * high, shape), low, high).astype(numpy_dtype)


def byte_products(graph: Graph) -> list[Contraction]:
    works = [kernel.work for kernel in program_of(graph).main if isinstance(kernel.work, Contraction)]
    return [work for work in works if team_contraction.takes(work) and work.dtype is dtypes.i32]


def check(graph: Graph, given: dict[str, Array]) -> None:
    expected = rlx.Session("reference").compile(graph).run(given)
    for made, exact in zip(rlx.Session("cuda").compile(graph).run(given), expected, strict=True):
        np.testing.assert_array_equal(made, exact)


@pytest.mark.parametrize(("left", "right"), COMBINATIONS)
def test_sums_and_zero_points_are_exact(left: str, right: str, driver: EmulatedDriver) -> None:
    """Columns do not fill a panel, and the depth no chunk."""
    graph = Graph("bytes")
    x, x_zero = graph.input("x", ("n", 144), left), graph.input("x_zero", ("n", 1), left)
    w = graph.param("w", (144, 43), right, data=drawn(1, (144, 43), right))
    w_zero = graph.param("w_zero", (43,), right, data=drawn(2, (43,), right))
    graph.output(ops.integer_matmul(x, w, x_zero, w_zero), name="y")
    assert len(byte_products(graph)) == 1
    for rows in (1, 9, 40, 0):
        check(graph, {"x": drawn(rows, (rows, 144), left), "x_zero": drawn(rows + 1, (rows, 1), left)})


@pytest.mark.parametrize("rows", [16, 200])
def test_bytes_on_both_sides_are_requantised(rows: int, driver: EmulatedDriver) -> None:
    """A right side that a run brings, read along its rows, and u8 behind the product."""
    graph = Graph("requantised")
    x, y = graph.input("x", (rows, 64), "u8"), graph.input("y", (24, 64), "i8")
    zeros = graph.constant(np.uint8(113)), graph.constant(np.int8(0))
    total = ops.integer_matmul(x, y.transpose(1, 0), *zeros).cast("f32") * 2.0**-9
    graph.output(ops.quantize(ops.relu(total), 0.25, np.uint8(3), dtype="u8"), name="z")
    assert len(byte_products(graph)) == 1
    check(graph, {"x": drawn(3, (rows, 64), "u8"), "y": drawn(4, (24, 64), "i8")})


def test_convolutions_of_bytes(driver: EmulatedDriver) -> None:
    graph = Graph("convolved")
    x = graph.input("x", ("n", 32, 7, 6), "u8")
    w = graph.param("w", (24, 32, 3, 3), "i8", data=drawn(5, (24, 32, 3, 3), "i8"))
    zeros = graph.constant(np.uint8(9)), graph.constant(np.int8(0))
    y = ops.integer_conv(x, w, *zeros, strides=(2, 1), dilations=(1, 1), low=(1, 1), high=(1, 1), groups=1)
    graph.output(y, name="y")
    assert len(byte_products(graph)) == 1
    check(graph, {"x": drawn(6, (2, 32, 7, 6), "u8")})


def test_depths_of_no_whole_pieces_are_summed_by_nests(driver: EmulatedDriver) -> None:
    graph = Graph("uneven")
    x, w = graph.input("x", (3, 40), "u8"), graph.param("w", (40, 16), "i8", data=drawn(7, (40, 16), "i8"))
    graph.output(ops.integer_matmul(x, w, graph.constant(np.uint8(1)), graph.constant(np.int8(2))), name="y")
    assert not byte_products(graph)
    check(graph, {"x": drawn(8, (3, 40), "u8")})


@pytest.mark.parametrize(("depth", "columns"), [(208, 136), (512, 192)])
def test_tiles_of_many_rows(depth: int, columns: int, driver: EmulatedDriver) -> None:
    """By way of workgroup memory; rows, columns and depth do not fill tiles."""
    graph = Graph("tiles")
    x = graph.input("x", (300, depth), "u8")
    w = graph.param("w", (depth, columns), "i8", data=drawn(9, (depth, columns), "i8"))
    graph.output(ops.integer_matmul(x, w, graph.constant(np.uint8(7)), graph.constant(np.int8(0))), name="y")
    (kernel,) = program_of(graph).main
    assert isinstance(kernel.work, Contraction) and tile_of(kernel.work, 300) is not None
    check(graph, {"x": drawn(10, (300, depth), "u8")})


LAYOUTS = {
    "alone": TileLayout(32, 32, (2, 2, 2), 128, 3, chunk=64),
    "together": TileLayout(16, 64, (4, 1, 1), 128, 4, True, 64),
    "together sliced": TileLayout(32, 64, (4, 1, 2), 128, 4, True, 64),
    "together in bands": TileLayout(16, 192, (8, 1, 1), 64, 4, True, 64),
    "split": TileLayout(32, 32, (2, 2, 1), 64, 3, chunk=64, splits=2),
    "together and split": TileLayout(16, 64, (4, 1, 1), 64, 4, True, 64, 4),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("left", "right"), COMBINATIONS)
def test_tiles_of_every_kind(
    name: str, left: str, right: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose sums are exact, also where warps or workgroups have parts of them, and whose results are f32 and bytes."""
    monkeypatch.setattr(tile_contraction, "tile_of", lambda work, rows, warpgroups: LAYOUTS[name])
    graph = Graph("tiles")
    x = graph.input("x", (70, 272), left)
    w = graph.param("w", (272, 72), right, data=drawn(11, (272, 72), right))
    total = ops.integer_matmul(x, w, graph.constant(drawn(12, (), left)), graph.constant(np.zeros((), w.dtype.numpy)))
    carried = graph.input("carried", (70, 72), left)
    wide = total.cast("f32") * 2.0**-12 + carried.cast("f32")
    graph.output(ops.round(wide).cast(right), name="y")
    given = {"x": drawn(13, (70, 272), left), "carried": drawn(14, (70, 72), left)}
    texts = cpp_module([program_of(graph)]).kernels.values()
    (text,) = (text for text in texts if "commit_copies" in text)
    assert "put_piece((HalfPiece*)(slot0" in text and "*(const HalfPiece*)" in text
    assert re.search(r"\(int\)piece\d+\.x", text), "what zero points add is loaded as other vectors are"
    check(graph, given)


def test_layouts_that_warps_multiply_together_in_cost_less_for_many_rows() -> None:
    graph = Graph("many rows")
    x, w = graph.input("x", (4096, 1024), "u8"), graph.param("w", (1024, 4096), "i8")
    graph.output(ops.integer_matmul(x, w, graph.constant(np.uint8(7)), graph.constant(np.int8(0))), name="y")
    work = next(kernel.work for kernel in program_of(graph).main if isinstance(kernel.work, Contraction))
    chosen = tile_of(work, 4096, warpgroups=True)
    assert chosen is not None and chosen.together and chosen in BYTES
    alone = tile_of(work, 4096)
    assert alone is not None and not alone.together and clocks(work, chosen) < clocks(work, alone)
