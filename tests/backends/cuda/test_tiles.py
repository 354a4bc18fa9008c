"""Products of many rows, whose operands come to workgroup memory: ragged ends, batches, rows that a run tells, windows,
and epilogues, of every kind of layout."""

from __future__ import annotations

import math
import re

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.build import program_of
from rlx.backends.cuda.executable import CudaExecutable
from rlx.codegen.simt import tile_contraction, tile_layouts
from rlx.codegen.simt.language.cuda import prelude
from rlx.codegen.simt.module import cpp_module
from rlx.codegen.simt.tile_layouts import LAYOUTS, TileLayout
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.program import leaves
from support import cubin, layouts_at_turn

from .emulated_driver import EmulatedDriver
from .graphs import compiled
from .machine_code import STORE, operations

SMALL = TileLayout(32, 32, (2, 2, 1), 32, 3)
DEEP = TileLayout(32, 32, (2, 2, 1), 64, 3)
IN_PARTS = TileLayout(64, 64, (2, 2, 1), 32, 3)
SLICED = TileLayout(32, 32, (2, 2, 2), 64, 3)
TOGETHER = TileLayout(16, 64, (4, 1, 1), 64, 3, together=True)
TOGETHER_SLICED = TileLayout(32, 64, (4, 1, 2), 64, 3, together=True)
TOGETHER_IN_PARTS = TileLayout(32, 64, (8, 1, 1), 32, 3, together=True)
TOGETHER_NARROW = TileLayout(16, 32, (4, 1, 1), 64, 12, together=True)
TOGETHER_IN_BANDS = TileLayout(16, 192, (8, 1, 1), 32, 3, together=True)
TOGETHER_WIDE = TileLayout(16, 192, (12, 1, 1), 32, 3, together=True)
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def force(monkeypatch: pytest.MonkeyPatch, layout: TileLayout) -> None:
    """Has all products that can be tiles be tiles of this layout."""
    monkeypatch.setattr(tile_contraction, "tile_of", lambda work, rows, warpgroups: layout)


def tiles(executable: CudaExecutable) -> int:
    """How many kernels bring operands to workgroup memory."""
    return sum(brings(text) for text in executable.plan.module.kernels.values())


def brings(text: str) -> bool:
    """Whether a kernel's lanes copy operands, or one asks the copy engine."""
    return "copy_ahead" in text or "bring_tile(" in text


def whole(shape: tuple[int, ...], seed: int, dtype: str = "f16") -> Array:
    """Small whole numbers: sums are exact in any order, and in half the bits."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(NUMPY[dtype])


def wide(array: Array) -> Array:
    return array.astype(np.float64)


@pytest.mark.parametrize(
    "layout",
    [
        SMALL,
        DEEP,
        IN_PARTS,
        SLICED,
        TOGETHER,
        TOGETHER_SLICED,
        TOGETHER_IN_PARTS,
        TOGETHER_IN_BANDS,
        TOGETHER_WIDE,
        TOGETHER_NARROW,
    ],
    ids=[
        "small",
        "deep",
        "in parts",
        "sliced",
        "together",
        "together sliced",
        "together in parts",
        "together in bands",
        "together wide",
        "narrow",
    ],
)
@pytest.mark.parametrize(
    ("m", "k", "n", "dtype"),
    [(64, 64, 64, "f16"), (130, 200, 72, "bf16"), (70, 40, 136, "f16"), (65, 104, 33, "bf16")],
)
def test_products_with_weights(
    layout: TileLayout, m: int, k: int, n: int, dtype: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ends of every side that are no multiple of a tile; the rows are known to a run alone."""
    force(monkeypatch, layout)
    graph = Graph("product")
    graph.output(graph.input("x", ("m", k), dtype) @ graph.param("w", (k, n), dtype))
    x, w = whole((m, k), 1, dtype), whole((k, n), 2, dtype)
    executable = compiled(graph, {"w": w})
    assert tiles(executable) == len(executable.plan.module.kernels) - 1  # all but what packs the weights
    (result,) = executable.bind({"m": m})([x])
    np.testing.assert_array_equal(wide(result), wide(x) @ wide(w))


@pytest.mark.parametrize("layout", [SMALL, DEEP], ids=["small", "deep"])
def test_products_of_two_values_of_a_run(
    layout: TileLayout, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of batches, whose right sides lie contiguous along k, too, with as many rows and columns as a run says."""
    force(monkeypatch, layout)
    graph = Graph("scores")
    x, y = graph.input("x", (2, "m", 72), "f16"), graph.input("y", (2, "n", 72), "f16")
    graph.output(x @ y.transpose(0, 2, 1))
    executable = compiled(graph)
    assert tiles(executable) == 1
    for m, n in ((70, 100), (64, 64)):
        x_given, y_given = whole((2, m, 72), 1), whole((2, n, 72), 2)
        (result,) = executable.bind({"m": m, "n": n})([x_given, y_given])
        np.testing.assert_array_equal(wide(result), wide(x_given) @ wide(y_given).transpose(0, 2, 1))


@pytest.mark.parametrize("layout", [SMALL, IN_PARTS], ids=["small", "in parts"])
def test_results_added_to_rows_that_data_choose(
    layout: TileLayout, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first product of a decoder is added to embeddings."""
    force(monkeypatch, layout)
    graph = Graph("chosen")
    rows = ops.gather(graph.param("table", (9, 64), "f16"), graph.input("ids", ("m",), "i64"), axis=0)
    graph.output(rows + graph.input("x", ("m", 96), "f16") @ graph.param("w", (96, 64), "f16"))
    x, w, table, ids = whole((150, 96), 1), whole((96, 64), 2), whole((9, 64), 3), np.arange(150) % 9
    executable = compiled(graph, {"w": w, "table": table})
    assert tiles(executable)
    (result,) = executable.bind({"m": 150})([ids, x])
    np.testing.assert_array_equal(wide(result), wide(table)[ids] + wide(x) @ wide(w))


def test_weights_that_a_batch_has_one_of_for_each(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, DEEP)
    graph = Graph("several")
    graph.output(graph.input("x", (3, 66, 96), "f16") @ graph.param("w", (3, 96, 40), "f16"))
    x, w = whole((3, 66, 96), 1), whole((3, 96, 40), 2)
    executable = compiled(graph, {"w": w})
    assert tiles(executable) == 1
    (result,) = executable.bind({})([x])
    np.testing.assert_array_equal(wide(result), wide(x) @ wide(w))


@pytest.mark.parametrize("layout", [SMALL, DEEP], ids=["small", "deep"])
def test_windows(layout: TileLayout, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over a window and channels, of which a last step has not all that it could."""
    force(monkeypatch, layout)
    graph = Graph("convolution")
    picture = graph.input("picture", (1, 4, 75, 40), "f16")
    moved = picture.transpose(0, 3, 1, 2)
    window = graph.param("window", (24, 40, 3, 2), "f16")
    graph.output(ops.conv(moved, window, strides=(1, 1), dilations=(1, 2), low=(0, 0), high=(0, 0)))
    x, w = whole((1, 4, 75, 40), 1), whole((24, 40, 3, 2), 2)
    executable = compiled(graph, {"window": w})
    assert tiles(executable) == 1
    (result,) = executable.bind({})([x])
    expected = sum(
        np.einsum("byxk,ok->boyx", wide(x)[:, dy : dy + 2, 2 * dx : 2 * dx + 73], wide(w)[:, :, dy, dx])
        for dy in range(3)
        for dx in range(2)
    )
    np.testing.assert_array_equal(wide(result), expected)


@pytest.mark.parametrize(("dtype", "out"), [("f16", "f16"), ("bf16", "bf16"), ("f16", "f32"), ("bf16", "u8")])
@pytest.mark.parametrize("n", [72, 70])
def test_epilogues(dtype: str, out: str, n: int, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight neighbours at once where memory takes them so, and one where rows begin anywhere."""
    force(monkeypatch, DEEP)
    graph = Graph("epilogue")
    x, residual = graph.input("x", (70, 64), dtype), graph.input("residual", (70, n), dtype)
    y = x @ graph.param("w", (64, n), dtype) + graph.param("bias", (n,), dtype)
    graph.output((ops.relu(y) + residual + graph.input("scale", (70, 1), dtype)).cast(out))
    x_given, w, bias = whole((70, 64), 1, dtype), whole((64, n), 2, dtype), whole((n,), 3, dtype)
    r, scale = whole((70, n), 4, dtype), whole((70, 1), 5, dtype)
    executable = compiled(graph, {"w": w, "bias": bias})
    assert tiles(executable) == 1
    (result,) = executable.bind({})([x_given, r, scale])
    expected = np.maximum(wide(x_given) @ wide(w) + wide(bias), 0) + wide(r) + wide(scale)
    if out == "u8":
        expected = np.clip(expected, 0, 255)
    np.testing.assert_array_equal(wide(result), expected)
    (text,) = (text for text in executable.plan.module.kernels.values() if brings(text))
    assert ("put_piece((Piece*)(slot" in text) == (n % 8 == 0 and out != "u8")


def test_a_gelu_and_a_residual_in_place_of_fractions(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, IN_PARTS)
    graph = Graph("feed forward")
    x = graph.input("x", (131, 64), "f16")
    y = ops.gelu(x @ graph.param("up", (64, 128), "f16") + graph.param("bias", (128,), "f16"))
    graph.output(x + y @ graph.param("down", (128, 64), "f16"))
    random = np.random.default_rng(0)
    params = {"up": (64, 128), "bias": (128,), "down": (128, 64)}
    given = {name: (random.standard_normal(shape) / 8).astype(np.float16) for name, shape in params.items()}
    executable = compiled(graph, given)
    assert tiles(executable) == 2
    x_given = random.standard_normal((131, 64)).astype(np.float16)
    (result,) = executable.bind({})([x_given])
    hidden = wide(x_given) @ wide(given["up"]) + wide(given["bias"])
    hidden = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
    np.testing.assert_allclose(wide(result), wide(x_given) + hidden @ wide(given["down"]), atol=4e-3)


def test_rows_that_other_data_choose(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, SMALL)
    graph = Graph("chosen")
    table, at = graph.input("table", (9, 64), "f16"), graph.input("at", ("m",), "i64")
    graph.output(ops.gather(table, at, axis=0) @ graph.param("w", (64, 48), "f16"))
    table_given, w = whole((9, 64), 1), whole((64, 48), 2)
    chosen = np.random.default_rng(3).integers(0, 9, 67)
    (result,) = compiled(graph, {"w": w}).bind({"m": 67})([table_given, chosen])
    np.testing.assert_array_equal(wide(result), wide(table_given)[chosen] @ wide(w))


@pytest.mark.parametrize("layout", [SMALL, TOGETHER], ids=["small", "together"])
def test_as_many_rows_as_a_table_of_the_device_says(
    layout: TileLayout, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are appended to a state, and all so far are multiplied: one graph for all numbers of them."""
    force(monkeypatch, layout)
    graph = Graph("appending")
    row, counted = graph.input("row", (1, 64), "f16"), graph.input("cached", ("past",), "u8")
    past = counted.shape[0]
    state = graph.state("cache", (80, 64), "f16")
    written = ops.update_slice(state, row, ops.dims_tensor(graph, values=(past,)).reshape(()))
    graph.set_next(state, written)
    seen = ops.slice(written, starts=(0, 0), stops=(dims.add(past, 1), 64), steps=(1, 1))
    graph.output(ops.reduce_sum(seen @ graph.param("w", (64, 40), "f16"), axes=(0,)), name="sum")
    w, rows = whole((64, 40), 1), whole((72, 64), 2) // 2
    program = rlx.Session("cuda").compile(graph)
    program.set_param("w", w)
    program.bind_handle("cache", np.concatenate([rows[:62], np.zeros((18, 64), np.float16)]))
    for past in range(62, 72):
        with driver.counted() as calls:
            (result,) = program.run([rows[past : past + 1], np.zeros(past, np.uint8)])
        np.testing.assert_array_equal(wide(result), wide(rows[: past + 1] @ w).sum(0))
    assert calls.count("launch") == 0 and calls.count("replay") == 1


def test_sides_that_begin_anywhere_come_straight_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are of multiples of 16 bytes."""
    force(monkeypatch, SMALL)
    graph = Graph("shifted")
    shifted = ops.slice(graph.input("flat", (1 + 64 * 64,), "f16"), starts=(1,), stops=(1 + 64 * 64,))
    graph.output(shifted.reshape(64, 64) @ graph.param("w", (64, 64), "f16"))
    assert "copy_ahead(" not in "".join(cpp_module([program_of(graph)]).kernels.values())


def test_more_results_have_larger_tiles_and_few_rows_none() -> None:
    """A hundred rows have some where there are many weights."""

    def area(m: int, n: int) -> int:
        graph = Graph("product")
        graph.output(graph.input("x", (m, 1024), "f16") @ graph.param("w", (1024, n), "f16"))
        (kernel,) = leaves(program_of(graph).main)
        assert isinstance(kernel.work, Contraction)
        layout = tile_layouts.tile_of(kernel.work, 1)  # of known rows, whatever is guessed
        return math.prod(layout.tile) if layout else 0

    assert 0 == area(64, 4096) < area(256, 1024) < area(4096, 4096)
    assert 0 == area(128, 512) < area(128, 4096)


def test_workgroups_in_a_row_share_the_larger_side() -> None:
    """Which comes from memory once; the smaller one stays in the cache."""
    for m, n in ((4096, 1024), (512, 4096)):
        graph = Graph("product")
        graph.output(graph.input("x", (m, 256), "f16") @ graph.param("w", (256, n), "f16"))
        (text,) = (text for text in cpp_module([program_of(graph)]).kernels.values() if brings(text))
        (fast,) = re.findall(r"const auto (\w+) = .*position %", text)
        (column,) = re.findall(r"const auto left\d+ = (\w+) \*", text)
        assert (column == fast) == (m > n)


@pytest.mark.skipif(bool(nvrtc.why_absent()), reason=nvrtc.why_absent())
@pytest.mark.parametrize("number", range(len(nvrtc.ARCHITECTURES)))
def test_all_layouts_compile(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each for one of the architectures, a part of them at each commit."""
    texts = []
    layouts = layouts_at_turn(LAYOUTS, number, len(nvrtc.ARCHITECTURES))
    for layout in layouts:
        force(monkeypatch, layout)
        graph = Graph("product")
        graph.output(graph.input("x", (300, 96), "f16") @ graph.param("w", (96, 100), "f16"))
        texts += [text for text in cpp_module([program_of(graph)]).kernels.values() if brings(text)]
    assert len(texts) == len(layouts) > 0
    assert cubin("\n".join([prelude(), *texts]), nvrtc.ARCHITECTURES[number])


@pytest.mark.skipif(bool(nvrtc.why_absent()), reason=nvrtc.why_absent())
def test_results_are_stored_16_bytes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers made four stores of each where words come of instructions that they do not know."""
    force(monkeypatch, DEEP)
    graph = Graph("product")
    graph.output(
        graph.input("x", (320, 96), "f16") @ graph.param("w", (96, 128), "f16") + graph.param("b", (128,), "f16")
    )
    (text,) = (text for text in cpp_module([program_of(graph)]).kernels.values() if brings(text))
    code = operations(nvrtc.compile_cubin(f"{prelude()}\n{text}", "sm_90a"))
    assert 0 < code.count(STORE) == text.count("put_piece(")
