"""Products and attention of f32 on matrix units, in the precision `f32_fast`: errors of the size that f32 has, numbers
that are not finite as f32 has them, ends of every side, and that f32 itself stays what it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.build import NVIDIAS, build, program_of
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.rocm.build import AMDS
from rlx.codegen.simt import team_attention, tile_contraction
from rlx.codegen.simt.module import cpp_module
from rlx.codegen.simt.tile_layouts import PARTS, SPLIT_PARTS, TileLayout
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import RowProduct
from rlx.kernel.ir.program import Program, leaves
from rlx.kernel.ir.text import text_of
from support import cubin

from .emulated_driver import EmulatedDriver
from .fused_graphs import gated_product, graph_of, inputs_of, normed_product
from .graphs import compiled

FAST = Options(cache=False, precision="f32_fast")
EPS = float(np.finfo(np.float32).eps)
LARGEST = float(np.finfo(np.float32).max)
SMALL = TileLayout(32, 32, (2, 2, 1), 16, 3, chunk=16)
SLICED = TileLayout(32, 32, (2, 2, 2), 32, 3, chunk=16)
TALL = TileLayout(64, 32, (2, 2, 1), 16, 3, chunk=16)
FORMS = {"straight from memory": None, "small": SMALL, "sliced": SLICED, "tall": TALL}


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TileLayout | None:
    """How products of many rows are laid out."""
    monkeypatch.setattr(tile_contraction, "tile_of", lambda work, rows, warpgroups: request.param)
    chosen: TileLayout | None = request.param
    return chosen


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def fast(graph: Graph, params: Mapping[str, Array] | None = None) -> CudaExecutable:
    """The graph compiled in this precision; some kernel makes use of it."""
    executable = compiled(graph, params, FAST)
    assert "mma_f32(" in texts_of(executable)
    return executable


def texts_of(executable: CudaExecutable) -> str:
    return "".join(executable.plan.module.kernels.values())


def assert_near(made: Array, x: Array, w: Array, extra: Array | float = 0.0) -> None:
    """Within some roundings of f32 of the sum of sizes."""
    wide, sizes = x.astype(np.float64) @ w, np.abs(x.astype(np.float64)) @ np.abs(w)
    assert np.all(np.abs(made - (wide + extra)) <= 4 * EPS * (sizes + np.abs(extra)))


@pytest.mark.parametrize(("m", "k", "n"), [(1, 128, 40), (7, 1024, 50), (16, 64, 48), (37, 72, 130), (130, 20, 9)])
def test_products_with_weights(form: TileLayout | None, m: int, k: int, n: int, driver: EmulatedDriver) -> None:
    graph = Graph("product")
    graph.output(graph.input("x", ("m", k)) @ graph.param("w", (k, n)) + graph.param("bias", (n,)))
    x, w, bias = drawn(m, k), drawn(k, n), drawn(n)
    executable = fast(graph, {"w": w, "bias": bias})
    assert ("load_matrices(" in texts_of(executable)) == (form is not None)
    for rows in (m, 0):
        (result,) = executable.bind({"m": rows})([x[:rows]])
        assert_near(result, x[:rows], w, bias)


def test_errors_do_not_grow_with_the_sum(driver: EmulatedDriver) -> None:
    """Of products that are all positive, which no errors cancel in."""
    graph = Graph("long")
    graph.output(graph.input("x", (3, 8192)) @ graph.param("w", (8192, 8)))
    x, w = np.abs(drawn(3, 8192)), np.abs(drawn(8192, 8))
    (result,) = fast(graph, {"w": w}).bind({})([x])
    wide = x.astype(np.float64) @ w
    assert np.abs(result / wide - 1).max() < 8 * EPS


def test_products_of_two_values_of_a_run(form: TileLayout | None, driver: EmulatedDriver) -> None:
    """Of batches, both of rows; and a side whose columns are no rows is multiplied in f32."""
    graph = Graph("scores")
    x, y = graph.input("x", (2, "m", 72)), graph.input("y", (2, "n", 72))
    graph.output(x @ y.transpose(0, 2, 1), x @ y.reshape(2, 72, "n"))
    executable = fast(graph)
    (marked,) = {kernel.work.float_parts for kernel in contractions(executable.plan.program)[:1]}
    assert marked
    x_given, y_given = drawn(2, 70, 72), drawn(2, 33, 72)
    results = executable.bind({"m": 70, "n": 33})([x_given, y_given])
    for result, right in zip(results, (y_given.transpose(0, 2, 1), y_given.reshape(2, 72, 33))):
        for made, left, of_batch in zip(result, x_given, right):
            assert_near(made, left, of_batch)


def contractions(program: Program) -> list[Any]:
    return [kernel for kernel in leaves(program.main) if isinstance(kernel.work, Contraction)]


def test_rows_that_begin_anywhere(driver: EmulatedDriver) -> None:
    """Which lie at no multiples of 16 bytes; and rows of a slice, with others between."""
    graph = Graph("shifted")
    flat = graph.input("flat", (1 + 9 * 128,))
    shifted = ops.slice(flat, starts=(1,), stops=(1 + 9 * 128,)).reshape(9, 128)
    graph.output(
        shifted @ graph.param("w", (128, 24)), graph.input("x", (18, 128))[::2, 32:96] @ graph.param("u", (64, 8))
    )
    flat_given, x, w, u = drawn(1 + 9 * 128), drawn(18, 128), drawn(128, 24), drawn(64, 8)
    results = fast(graph, {"w": w, "u": u}).bind({})([flat_given, x])
    assert_near(results[0], flat_given[1:].reshape(9, 128), w)
    assert_near(results[1], x[::2, 32:96], u)


def test_windows(form: TileLayout | None, driver: EmulatedDriver) -> None:
    graph = Graph("convolution")
    moved = graph.input("picture", (1, 4, 75, 20)).transpose(0, 3, 1, 2)
    window = graph.param("window", (24, 20, 3, 2))
    graph.output(ops.conv(moved, window, strides=(1, 1), dilations=(1, 2), low=(0, 0), high=(0, 0)))
    x, w = drawn(1, 4, 75, 20), drawn(24, 20, 3, 2)
    x[0, 1, 5, 3] = np.inf
    (result,) = fast(graph, {"window": w}).bind({})([x])
    wide = sum(
        np.einsum("byxk,ok->boyx", x[:, dy : dy + 2, 2 * dx : 2 * dx + 73].astype(np.float64), w[:, :, dy, dx])
        for dy in range(3)
        for dx in range(2)
    )
    np.testing.assert_allclose(result, wide, rtol=0, atol=4e-5)
    assert 0 < np.isinf(result).sum() < 24 * 12


@pytest.mark.parametrize("rows", [5, 70])
def test_numbers_that_are_not_finite(form: TileLayout | None, rows: int, driver: EmulatedDriver) -> None:
    """Infinities times what they are multiplied with, NaN in its own rows and columns, what rounds to infinity, and
    sums beyond the largest float."""
    graph = Graph("extreme")
    graph.output(graph.input("x", (rows, 64)) @ graph.param("w", (64, 40)) + graph.param("bias", (40,)))
    x, w, bias = drawn(rows, 64), drawn(64, 40), drawn(40)
    x[0, 3], x[1, 5], x[2, 7], x[2, 8] = np.inf, np.nan, LARGEST, -LARGEST
    x[3] = 0.0
    x[4, 9], x[4, 10] = np.inf, -np.inf
    w[7] = w[8] = 0.5
    w[7, :8], w[8, 8:16], w[3, ::3], w[3, 1::3] = 0.0, 0.0, 0.0, 1e-30
    w[11, 20], w[12, 21], w[13, 22] = -np.inf, np.nan, LARGEST
    (result,) = fast(graph, {"w": w, "bias": bias}).bind({})([x])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64) @ w + bias
        expected = np.where(np.isnan(wide), np.nan, np.where(np.abs(wide) > LARGEST, np.copysign(np.inf, wide), wide))
        sizes = np.nan_to_num(np.abs(x.astype(np.float64)) @ np.abs(w), posinf=0.0, nan=0.0)
        near = np.abs(result - expected) <= 16 * EPS * np.maximum(sizes, 1)
    same = (result == expected) | (np.isnan(result) & np.isnan(expected))
    assert np.all(near | same)
    assert np.isinf(expected).any() and np.isnan(expected).any() and (np.abs(result[2]) > 1e38).any()


def test_numbers_near_nothing(driver: EmulatedDriver) -> None:
    """Below the normal range matrix units keep multiples of 2**-136; zeros have their sums."""
    graph = Graph("small")
    graph.output(graph.input("x", (3, 64)) @ graph.param("w", (64, 16)))
    w = drawn(64, 16)
    w[0, :4] = 1e-42
    for scale in (1e-30, 1e-38, 1e-42, 0.0):
        x = drawn(3, 64) * np.float32(scale)
        (result,) = fast(graph, {"w": w}).bind({})([x])
        wide = x.astype(np.float64) @ w
        sizes = np.abs(x.astype(np.float64)) @ np.abs(w)
        unit = 2.0**-136 * (np.abs(w).sum(0) + np.abs(x).sum(1, keepdims=True))
        assert np.all(np.abs(result - wide) <= 4 * EPS * sizes + unit)


@pytest.mark.parametrize("make", [normed_product, gated_product])
def test_products_make_their_rows(make: Any, driver: EmulatedDriver) -> None:
    graph = graph_of(make, "n", "f32")
    assert any(isinstance(kernel.work, RowProduct) for kernel in program_of(graph, NVIDIAS.at("f32_fast")).main)
    on_device = rlx.Session("cuda", precision="f32_fast").compile(graph)
    on_processor = rlx.Session("cpu").compile(graph)
    for rows in (1, 2, 7, 8, 9, 16, 20, 0):
        given = inputs_of(graph, rows)
        if rows > 1:
            next(iter(given.values()))[1, 3] = np.inf
        for made, expected in zip(on_device.run(given), on_processor.run(given)):
            np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


def attention(heads: int, shared: int, features: int, values: int, masked: bool, options: dict[str, Any]) -> Graph:
    graph = Graph("attention")
    q = graph.input("q", (2, heads, "n", features))
    k, v = graph.input("k", (2, shared, "m", features)), graph.input("v", (2, shared, "m", values))
    mask = [graph.input("mask", (2, 1, 1, "m"), "bool")] if masked else []
    graph.output(ops.attention(q, k, v, *mask, **options), name="y")
    return graph


@pytest.mark.parametrize("most", [0, 1 << 30], ids=["tiles of their own", "shared tiles"])
@pytest.mark.parametrize(
    ("heads", "shared", "features", "values", "masked", "options"),
    [
        (2, 2, 32, 32, False, {}),
        (4, 2, 64, 64, False, {"causal": True}),
        (2, 1, 40, 24, True, {}),
        (1, 1, 24, 48, False, {"softcap": 5.0, "window": 9}),
    ],
)
def test_attention(
    heads: int, shared: int, features: int, values: int, masked: bool, options: dict[str, Any], most: int,
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(team_attention, "FEW_TILES", most)
    graph = attention(heads, shared, features, values, masked, options)
    on_device, on_processor = fast(graph), rlx.Session("cpu").compile(graph)
    assert "mma_f32_along(scores" in texts_of(on_device)
    for queries, keys in ((70, 70), (17, 17), (33, 50), (1, 130), (3, 1)):
        if options.get("causal") and queries != keys:
            continue
        given = [drawn(2, heads, queries, features), drawn(2, shared, keys, features), drawn(2, shared, keys, values)]
        given += [np.random.default_rng(1).random((2, 1, 1, keys)) < 0.8] if masked else []
        (made,) = on_device.bind({"n": queries, "m": keys})(given)
        np.testing.assert_allclose(made, on_processor.run(given)[0], rtol=0, atol=4e-6)


@pytest.mark.parametrize("queries", [1, 40])
def test_attention_to_numbers_that_are_not_finite(queries: int, driver: EmulatedDriver) -> None:
    """Keys with a score of -inf count for nothing, and infinite values of keys that count are the result."""
    graph = attention(2, 2, 32, 32, False, {})
    q, k, v = np.abs(drawn(2, 2, queries, 32)), drawn(2, 2, 40, 32), drawn(2, 2, 40, 32)
    k[0, 0, 7, 3], v[0, 0, 7] = -np.inf, LARGEST
    v[0, 1, 9, 5], v[1, 0, 4, 6], k[1, 1, 20, 0] = np.inf, LARGEST, np.nan
    with np.errstate(all="ignore"):
        (expected,) = (np.asarray(each) for each in rlx.Session("cpu").compile(graph).run([q, k, v]))
        (made,) = fast(graph).bind({"n": queries, "m": 40})([q, k, v])
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=4e-6)
    assert np.isinf(made[0, 1, :, 5]).all() and np.isnan(made[1, 1]).all()
    assert np.isfinite(made[:, 0]).all() and (made[1, 0, :, 6] > LARGEST / 1e6).all()


def graph_of_both() -> Graph:
    graph = Graph("both")
    x = graph.input("x", ("m", 64))
    hidden = ops.relu(x @ graph.param("w", (64, 64), data=drawn(64, 64)))
    heads = hidden.reshape("m", 2, 1, 32).transpose(2, 1, 0, 3)
    graph.output(ops.attention(heads, heads, heads), name="y")
    return graph


def test_a_program_tells_what_it_multiplies_so() -> None:
    graph = graph_of_both()
    program = build(graph, FAST).program
    text = text_of(program)
    assert "(as parts) over" in text and "products as parts" in text
    assert "as parts" not in text_of(build(graph, Options(cache=False)).program)


def test_other_modes_and_makers_stay_as_they_are() -> None:
    """f32 is f32, and other GPUs compute in f32."""
    graph = graph_of_both()
    kernels = build(graph, Options(cache=False)).module.kernels
    assert not any("mma_f32(" in text for text in kernels.values())
    disabled = dataclasses.replace(FAST, disable=frozenset({"float-parts"}))
    assert build(graph, disabled).module.kernels == kernels
    plain, fast_ones = (build(graph, options, AMDS).module.kernels for options in (Options(cache=False), FAST))
    assert plain == fast_ones


@pytest.mark.skipif(bool(nvrtc.why_absent()), reason=nvrtc.why_absent())
@pytest.mark.parametrize("number", range(len(nvrtc.ARCHITECTURES)))
def test_all_layouts_compile(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each for one of the architectures; some of those that need clusters for the one that has them."""
    texts = {}
    others = SPLIT_PARTS[::8] if nvrtc.ARCHITECTURES[number].startswith("sm_90") else ()
    for layout in (*PARTS[number :: len(nvrtc.ARCHITECTURES)], *others):
        monkeypatch.setattr(tile_contraction, "tile_of", lambda work, rows, warpgroups, layout=layout: layout)
        graph = Graph("product")
        graph.output(graph.input("x", (300, 96)) @ graph.param("w", (96, 100)))
        module = cpp_module([program_of(graph, NVIDIAS.at("f32_fast"))])
        texts |= {name: text for name, text in module.kernels.items() if "mma_f32(" in text}
    assert texts
    assert cubin("\n".join([module.prelude, *texts.values()]), nvrtc.ARCHITECTURES[number])


def test_products_of_shorter_floats_stay_what_they_are(driver: EmulatedDriver) -> None:
    """Which are summed in f32: 8-bit floats with columns that no piece fills, and halves."""
    graph = Graph("shorter")
    x, w = graph.input("x", (3, 48), "f8e4m3"), graph.param("w", (95, 1), "f8e4m3")
    graph.output(ops.float8_matmul(x, w[::2]))
    random = np.random.default_rng(0)
    x_given, w_given = (random.integers(-4, 5, of).astype(dtypes.f8e4m3.numpy) for of in ((3, 48), (95, 1)))
    executable = compiled(graph, {"w": w_given}, FAST)
    assert not any(kernel.work.float_parts for kernel in contractions(executable.plan.program))
    (result,) = executable.bind({})([x_given])
    np.testing.assert_array_equal(result, x_given.astype("f4") @ w_given[::2].astype("f4"))
