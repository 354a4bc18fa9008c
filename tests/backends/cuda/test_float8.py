"""Products of floats of 8 bits on matrix units, on the emulated driver, which cuts sums off as those do."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import rlx
from ops.cases import Case, cases_of
from rlx import ops
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.build import program_of
from rlx.codegen.simt import team_contraction, tile_contraction
from rlx.codegen.simt.language.cuda import prelude
from rlx.codegen.simt.module import NVIDIA, cpp_module
from rlx.codegen.simt.team_layouts import is_of_float8
from rlx.codegen.simt.tile_layouts import FLOAT8, MOST_CUT, SPLIT_FLOAT8, TileLayout, clocks, resident, tile_of
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.kernel.ir.contraction import Contraction
from rlx.ops.float8 import Float8Matmul
from rlx.runtime.quantised import quantised
from support import assert_close, cubin, layouts_at_turn, run_on

from .emulated_driver import EmulatedDriver

ERROR = 2.0**-8
"""Of a sum, as a part of the sum of its terms' magnitudes."""


def drawn(seed: int, *shape: int) -> Array:
    """Normal numbers, some subnormal, the greatest ones among them."""
    numbers = np.random.default_rng(seed).standard_normal(shape)
    numbers.reshape(-1)[::7] *= 2.0**-8
    numbers.reshape(-1)[::97] = 448
    return numbers.astype(ml_dtypes.float8_e4m3fn)


def product(rows: int | str, depth: int, columns: int) -> Graph:
    graph = Graph("product")
    x, w = graph.input("x", (rows, depth), "f8e4m3"), graph.param("w", (depth, columns), "f8e4m3")
    graph.data["w"] = drawn(1, depth, columns)
    graph.output(ops.float8_matmul(x, w), name="y")
    return graph


def products(graph: Graph) -> list[Contraction]:
    works = [kernel.work for kernel in program_of(graph).main if isinstance(kernel.work, Contraction)]
    return [work for work in works if team_contraction.takes(work) and is_of_float8(work)]


def check(graph: Graph, x: Array, error: float = ERROR) -> None:
    """Each sum is as near as matrix units let it be."""
    (made,) = rlx.Session("cuda").compile(graph).run([x])
    wide, weight = x.astype(np.float64), graph.data["w"].astype(np.float64)
    assert made.dtype == np.float32
    off = np.abs(made - wide @ weight)
    assert (off <= error * (np.abs(wide) @ np.abs(weight))).all()
    assert not off.size or off.max() > 0  # they were cut off


@pytest.mark.parametrize("rows", [0, 1, 9, 40])
def test_few_rows_from_memory(rows: int, driver: EmulatedDriver) -> None:
    """Columns do not fill a panel, and the depth no chunk."""
    graph = product("n", 144, 43)
    assert len(products(graph)) == 1
    check(graph, drawn(2, rows, 144))


@pytest.mark.parametrize(("depth", "columns"), [(208, 136), (512, 192)])
def test_many_rows_by_workgroup_memory(depth: int, columns: int, driver: EmulatedDriver) -> None:
    graph = product(300, depth, columns)
    (work,) = products(graph)
    assert tile_of(work, 300) is not None
    check(graph, drawn(3, 300, depth))


LAYOUTS = {
    "alone": TileLayout(32, 32, (2, 2, 2), 128, 3, chunk=64),
    "alone in short stages": TileLayout(32, 32, (2, 2, 1), 64, 3, chunk=64),
    "together": TileLayout(16, 64, (4, 1, 1), 128, 4, True, 64),
    "together sliced": TileLayout(32, 64, (4, 1, 2), 128, 4, True, 64),
    "together in bands": TileLayout(16, 192, (8, 1, 1), 128, 4, True, 64),
    "split": TileLayout(32, 32, (2, 2, 1), 64, 3, chunk=64, splits=2),
    "together and split": TileLayout(16, 64, (4, 1, 1), 128, 4, True, 64, 4),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tiles_of_every_kind(name: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, columns and depth do not fill tiles; what is stored is bytes, and such are read."""
    monkeypatch.setattr(tile_contraction, "tile_of", lambda work, rows, warpgroups: LAYOUTS[name])
    check(product(200, 272, 72), drawn(4, 200, 272))
    graph = product(70, 272, 72)
    carried = graph.input("carried", (70, 72), "f8e4m3")
    y = graph.outputs.pop("y")
    graph.output((y * 2.0**-12 + carried.cast("f32")).cast("f8e4m3"), name="z")
    texts = cpp_module([program_of(graph)]).kernels.values()
    (text,) = (text for text in texts if "commit_copies" in text)
    assert "put_piece((HalfPiece*)(slot0" in text and "four_f8e4m3" in text and "*(const HalfPiece*)" in text
    given = {"x": drawn(5, 70, 272), "carried": drawn(6, 70, 72)}
    made, exact = (rlx.Session(d).compile(graph).run(given)[0].astype(np.float32) for d in ("cuda", "reference"))
    np.testing.assert_array_equal(np.isnan(made), np.isnan(exact))  # what is beyond the greatest
    finite = ~np.isnan(exact)
    off, size = np.abs(made - exact)[finite], np.maximum(np.abs(exact[finite]), 2.0**-6)
    assert not finite.all() and (off <= size * 2.0**-3).all()  # a step where one is near a tie
    assert (off == 0).mean() > 0.9


def positive(x: Array) -> Array:
    return np.abs(x.astype(np.float32)).clip(2.0**-6, 2).astype(ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize("name", ["few", *LAYOUTS])
def test_long_sums_of_one_sign_are_as_near_as_short_ones(
    name: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrix units alone would lose more of each term the longer the sum is."""
    if name != "few":
        monkeypatch.setattr(tile_contraction, "tile_of", lambda work, rows, warpgroups: LAYOUTS[name])
    rows = 3 if name == "few" else 40
    graph = product(rows, 8192, 24)
    graph.data["w"] = positive(drawn(1, 8192, 24))
    check(graph, positive(drawn(7, rows, 8192)), error=2.0**-7)


@pytest.mark.parametrize("rows", [3, 300])
def test_numbers_that_are_none_stay_so(rows: int, driver: EmulatedDriver) -> None:
    graph = product(rows, 128, 40)
    graph.data["w"][5, 7] = np.nan
    x = drawn(8, rows, 128)
    x[1, 100] = np.nan
    (made,) = rlx.Session("cuda").compile(graph).run([x])
    wanted = np.zeros(made.shape, bool)
    wanted[1], wanted[:, 7] = True, True
    np.testing.assert_array_equal(np.isnan(made), wanted)


@pytest.mark.parametrize("case", cases_of(Float8Matmul), ids=str)
def test_all_products_are_right(case: Case, driver: EmulatedDriver) -> None:
    """Also those that matrix units do not make: of other dtypes, of two inputs, and of depths that fill no pieces."""
    made = run_on("cuda", case.graph(), case.inputs())
    assert_close(made["y0"], case.reference()[0], case.op.tolerance)


def test_depths_of_no_whole_pieces_are_of_f32(driver: EmulatedDriver) -> None:
    graph = product("n", 40, 24)
    assert not products(graph)
    x, weight = drawn(9, 5, 40), graph.data["w"].astype(np.float64)
    (made,) = rlx.Session("cuda").compile(graph).run([x])
    np.testing.assert_allclose(made, x.astype(np.float64) @ weight, rtol=1e-5, atol=1e-3)


SPECIAL = (0, np.nan, np.inf, 448, 463.9, 464, 464.1, 480, 3e38, 2.0**-10, 2.0**-11, 2.0**-6, 1e-40)
"""What rounds to the greatest number, to none, and to subnormal ones."""


def test_floats_are_rounded_as_everywhere(driver: EmulatedDriver) -> None:
    """By instructions, which make the greatest number of what is beyond, and without."""
    random = np.random.default_rng(9)
    few = [sign * number for number in SPECIAL for sign in (1, -1)]
    exact = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    drawn = random.standard_normal(4096) * 2.0 ** random.uniform(-14, 10, 4096)
    x = np.concatenate([np.tile(few, 64), drawn, exact, (exact[1:] + exact[:-1]) / 2]).astype(np.float32)
    x = np.resize(x, (x.size // 64 + 1) * 64)
    graph = Graph("rounded")
    graph.output(graph.input("x", (x.size,)).cast("f8e4m3"), name="y")
    (text,) = cpp_module([program_of(graph)]).kernels.values()
    assert "four_f8e4m3" in text
    (made,) = rlx.Session("cuda").compile(graph).run([x])
    with np.errstate(all="ignore"):
        wanted = x.astype(ml_dtypes.float8_e4m3fn)
    none = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(made), none)
    np.testing.assert_array_equal(made.view(np.uint8)[~none], wanted.view(np.uint8)[~none])


# layouts


def test_layouts_leave_registers_for_two_sums_of_each() -> None:
    together = [layout for layout in FLOAT8 if layout.together]
    assert together and all(layout.twice and layout.depth == MOST_CUT for layout in together)
    assert all(2 * layout.rows * layout.columns // 32 + 28 < 255 for layout in together)
    graph = product(4096, 1024, 4096)
    (work,) = products(graph)
    chosen, alone = tile_of(work, 4096, warpgroups=True), tile_of(work, 4096)
    assert chosen is not None and chosen.together and chosen in (*FLOAT8, *SPLIT_FLOAT8)
    assert alone is not None and not alone.together and clocks(work, chosen) < clocks(work, alone)
    assert resident(chosen) >= 1


# machine code

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.why_absent()), reason=nvrtc.why_absent())


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90a", "sm_100"])
def test_kernels_compile_where_there_are_instructions_and_where_there_are_none(architecture: str) -> None:
    graphs = (product("n", 256, 512), quantised_net())
    texts: dict[str, str] = {}
    for graph in graphs:
        texts |= cpp_module([program_of(graph)], target=NVIDIA.on(architecture)).kernels
    source = "\n".join([prelude(), *texts.values()])
    assert "add_products" in source and "four_f8e4m3" in source
    assert cubin(source, architecture).startswith(b"\x7fELF")


def quantised_net() -> Graph:
    graph = Graph("net")
    x = graph.input("x", ("n", 128))
    hidden = ops.gelu(x @ graph.param("w", (128, 256), "f32"))
    graph.output(hidden @ graph.param("v", (256, 64), "f32"), name="y")
    return quantised(graph, precision="f8")


@needs_nvrtc
def test_layouts_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that warps multiply together in, with sums that workgroups share and without, a part at each commit."""
    graph, texts = product(512, 1024, 768), dict[str, str]()
    together = [each for each in FLOAT8 if each.together]
    some = [layouts_at_turn(SPLIT_FLOAT8, 0, 7), layouts_at_turn(FLOAT8, 0, 5)]
    for layout in (*layouts_at_turn(together, 0, 1), *itertools.chain(*some)):
        monkeypatch.setattr(tile_contraction, "tile_of", lambda work, rows, warpgroups, layout=layout: layout)
        texts |= cpp_module([program_of(graph)], target=NVIDIA.on("sm_90a")).kernels
    assert len(texts) > 8
    assert cubin("\n".join([prelude(), *texts.values()]), "sm_90a")
