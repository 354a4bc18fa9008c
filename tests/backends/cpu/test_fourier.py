"""The kernel for whole transforms: every short length and long ones, all instruction sets, rows that stay apart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from backends.cpu.test_compiled import ISAS
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import BACKEND, build, isa
from rlx.backends.cpu.claims import claim
from rlx.cost.counts import placed
from rlx.ir.graph import Graph, Value, call
from rlx.ir.literal import Array
from rlx.kernel.ir.text import text_of
from rlx.kernel.passes import twiddles as fourier
from support import binding_of

LONG = (1024, 4096, 65536, 3 * 5 * 7 * 11, 2 * 13 * 17 * 31, 1009, 2 * 509, 44100)
BYTES = {"f32": 4, "f64": 8}


def noise(*shape: int, dtype: str = "f32", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(f"f{BYTES[dtype]}")


def run(graph: Graph, inputs: dict[str, Array], level: str | None = None, threads: int = 1) -> dict[str, Array]:
    executable = BACKEND().compile(graph, Options(isa=level, cache=False, threads=threads))
    results = executable.bind(binding_of(graph, inputs))([inputs[v.name] for v in graph.inputs])
    return dict(zip(graph.outputs, results, strict=True))


def give(graph: Graph, name: str, outputs: Value | tuple[Value, ...]) -> None:
    for part, value in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
        graph.output(value, name=f"{name}.{part}")


def joined(actual: dict[str, Array], name: str) -> Array:
    if f"{name}.1" not in actual:
        return actual[f"{name}.0"]
    return actual[f"{name}.0"].astype(np.float64) + 1j * actual[f"{name}.1"].astype(np.float64)


def check_lengths(lengths: list[int], dtype: str, level: str) -> None:
    """All kinds of transforms of some lengths in one graph, against NumPy in float64."""
    graph, inputs, expected = Graph("lengths"), {}, {}
    for n in lengths:
        for name, shape in (("x", (3, n)), ("y", (3, n)), ("u", (3, n // 2 + 1)), ("v", (3, n // 2 + 1))):
            inputs[f"{name}{n}"] = noise(*shape, dtype=dtype, seed=len(inputs))
        x, y, u, v = (graph.input(f"{name}{n}", inputs[f"{name}{n}"].shape, dtype) for name in "xyuv")
        whole = inputs[f"x{n}"] + 1j * inputs[f"y{n}"].astype(np.float64)
        bins = inputs[f"u{n}"] + 1j * inputs[f"v{n}"].astype(np.float64)
        for kind, values, right in (
            ("fft", ops.fft(x, y), np.fft.fft(whole)),
            ("ifft", ops.fft(x, y, inverse=True), np.fft.ifft(whole)),
            ("rfft", ops.rfft(x), np.fft.rfft(whole.real)),
            ("irfft", ops.irfft(u, v, length=n), np.fft.irfft(bins, n)),
        ):
            give(graph, f"{kind}{n}", values)
            expected[f"{kind}{n}"] = right
    actual = run(graph, inputs, level)
    for name, right in expected.items():
        length = max(right.shape[-1], 2)
        error = np.abs(joined(actual, name) - right).max() / np.sqrt(np.mean(np.abs(right) ** 2))
        assert error < 4 * np.finfo(f"f{BYTES[dtype]}").eps * (math.log2(length) + 1), name


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("part", range(5))
def test_every_short_length(part: int, dtype: str, level: str) -> None:
    lengths = list(range(1, 201)[part::5])
    if dtype == "f64" or level != ISAS[0]:
        lengths = [n for n in lengths if fourier.gains(n)][::2]
    else:  # products with a matrix are alike
        lengths = [n for n in lengths if fourier.gains(n) or n % 4 == 0 or n < 8]
    check_lengths(lengths, dtype, level)


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_long_lengths(dtype: str, level: str) -> None:
    check_lengths(list(LONG), dtype, level)


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("n", [16, 60, 200, 512])
def test_what_is_not_finite_stays_in_its_row(n: int, level: str) -> None:
    graph = Graph("rows")
    x, y = graph.input("x", (7, n)), graph.input("y", (7, n))
    give(graph, "fft", ops.fft(x, y))
    give(graph, "rfft", ops.rfft(x))
    give(graph, "irfft", ops.irfft(x, y))
    values = noise(7, n), noise(7, n, seed=1)
    clean = run(graph, {"x": values[0], "y": values[1]}, level)
    for row, number in ((1, np.nan), (3, np.inf), (6, -np.inf)):
        values[0][row, n // 3] = number
    actual = run(graph, {"x": values[0], "y": values[1]}, level)
    sound = [0, 2, 4, 5]
    for name in clean:
        np.testing.assert_array_equal(actual[name][sound], clean[name][sound])
        assert not np.isfinite(actual[name][[1, 3, 6]]).all(-1).any() or name.startswith("irfft")
    for name in ("fft.0", "fft.1", "rfft.0", "rfft.1"):
        assert np.isnan(actual[name][1]).all()


@pytest.mark.parametrize("rows", [0, 1, 5, 300])
@pytest.mark.parametrize("n", [48, 256])
def test_rows_that_the_run_brings(n: int, rows: int) -> None:
    graph = Graph("rows")
    x, y = graph.input("x", ("b", 2, n)), graph.input("y", ("b", 2, n))
    give(graph, "fft", ops.fft(x, y))
    give(graph, "back", ops.irfft(*ops.rfft(x)))
    inputs = {"x": noise(rows, 2, n), "y": noise(rows, 2, n, seed=1)}
    one, two = (run(graph, inputs, threads=threads) for threads in (1, 2))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
    assert np.allclose(joined(one, "fft"), np.fft.fft(inputs["x"] + 1j * inputs["y"]), atol=1e-4)
    assert np.allclose(one["back.0"], inputs["x"], atol=1e-5)


def long_transforms(n: int, rows: int, dtype: str) -> tuple[Graph, dict[str, Array], dict[str, Any]]:
    """All kinds of transforms of a length, and what NumPy says."""
    graph = Graph("long")
    shapes = {"x": n, "y": n, "u": n // 2 + 1, "v": n // 2 + 1}
    inputs = {name: noise(rows, size, dtype=dtype, seed=i) for i, (name, size) in enumerate(shapes.items())}
    x, y, u, v = (graph.input(name, inputs[name].shape, dtype) for name in shapes)
    give(graph, "fft", ops.fft(x, y))
    give(graph, "ifft", ops.fft(x, y, inverse=True))
    give(graph, "rfft", ops.rfft(x))
    give(graph, "heavy", ops.rfft(ops.exp(ops.tanh(x)) * y))
    give(graph, "irfft", ops.irfft(u, v, length=n))
    whole = inputs["x"] + 1j * inputs["y"].astype(np.float64)
    expected = {
        "fft": np.fft.fft(whole), "ifft": np.fft.ifft(whole), "rfft": np.fft.rfft(whole.real),
        "heavy": np.fft.rfft(np.exp(np.tanh(whole.real)) * whole.imag),
        "irfft": np.fft.irfft(inputs["u"] + 1j * inputs["v"].astype(np.float64), n),
    }  # fmt: skip
    return graph, inputs, expected


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "n, dtype", [(1 << 16, "f32"), (1 << 15, "f64"), (48000, "f32"), (44100, "f64"), (31 << 12, "f32")]
)
def test_threads_share_a_long_row(n: int, dtype: str, rows: int) -> None:
    """On any number of threads the bits are the same, though one takes other kernels."""
    graph, inputs, expected = long_transforms(n, rows, dtype)
    one, two, three = (run(graph, inputs, threads=threads) for threads in (1, 2, 3))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
        np.testing.assert_array_equal(one[name], three[name])
    for name, right in expected.items():
        error = np.abs(joined(two, name) - right).max() / np.sqrt(np.mean(np.abs(right) ** 2))
        assert error < 4 * np.finfo(f"f{BYTES[dtype]}").eps * (math.log2(n) + 1), name


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_long_rows_with_any_vectors(dtype: str, level: str) -> None:
    for n in (1 << 15, 3 * 5 * 7 * 11 * 28):
        graph, inputs, _ = long_transforms(n, 1, dtype)
        one, two = (run(graph, inputs, level, threads) for threads in (1, 2))
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_long_row(number: float) -> None:
    n = 1 << 15
    graph, inputs, _ = long_transforms(n, 3, "f32")
    clean = run(graph, inputs, threads=2)
    for name, place in (("x", n // 3), ("u", n // 5)):
        inputs[name][1, place] = number
    one, two = (run(graph, inputs, threads=threads) for threads in (1, 2))
    for name in clean:
        np.testing.assert_array_equal(two[name][[0, 2]], clean[name][[0, 2]])
        np.testing.assert_array_equal(np.isnan(two[name]), np.isnan(one[name]))
        assert np.isnan(two[name][1]).all() or not np.isnan(number) or name == "irfft.0"
        assert not np.isfinite(two[name][1]).all() or name.startswith("heavy")


@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows_in_loops_and_of_weights(threads: int) -> None:
    n = 1 << 15
    graph = Graph("loop")
    x, weight = graph.input("x", (3, n)), graph.param("w", (2, n))
    start = graph.constant(np.zeros(n, np.float32))
    body = Graph("body")
    total, row = body.input("total", (n,)), body.input("row", (n,))
    re, im = ops.fft(row, row * 0.5)
    body.output(re + im + total, name="next")
    results = call("scan", start, x, regions=(body,), carried=1, sequences=1, length=3)
    graph.output(results[0] if isinstance(results, tuple) else results, name="y")
    give(graph, "weight", ops.rfft(weight))
    values, weights = noise(3, n), noise(2, n, seed=1)
    executable = BACKEND().compile(graph, Options(cache=False, threads=threads))
    executable.set_params({"w": weights})
    actual = executable.bind({})([values])
    right = np.fft.fft(values + 0.5j * values)
    np.testing.assert_allclose(actual[0], (right.real + right.imag).sum(0), atol=5e-3)
    np.testing.assert_allclose(actual[1] + 1j * actual[2], np.fft.rfft(weights), atol=3e-3)


def test_parts_that_a_long_transform_is_cut_into() -> None:
    """Threads get halves of the steps of few long rows, each with all its results."""

    def kernels(*results: Value) -> list[str]:
        graph = results[0].graph
        give(graph, "y", results)
        executable = BACKEND().compile(graph, Options(cache=False))
        return list(executable.artifact.report["kernels"])

    assert kernels(*ops.fft(Graph("g").input("x", (2, 1 << 15)))) == ["fft_rows", "fft", "fft_nan", "fft"]
    assert kernels(*ops.rfft(Graph("g").input("x", (1 << 16,)))) == ["rfft_rows", "rfft_columns", "rfft", "rfft"]
    assert kernels(ops.rfft(Graph("g").input("x", (1 << 16,)))[0]) == ["rfft"]
    assert kernels(*ops.fft(Graph("g").input("x", (100, 1 << 15)))) == ["fft"]
    assert kernels(*ops.fft(Graph("g").input("x", ("b", 1 << 15)))) == ["fft"]
    assert kernels(*ops.fft(Graph("g").input("x", (1 << 13,)))) == ["fft"]


def test_ways_by_threads_are_told() -> None:
    graph = Graph("long")
    give(graph, "y", ops.rfft(graph.input("x", (1 << 16,))))
    program, _ = build.program_of(graph, isa.detect(), Options())
    text = text_of(program)
    assert "on several threads:" in text and "columns of a to bins transform of 65536" in text
    run_on = {n: {p.kernel.name for p in placed(program.main, {}, n) if p.chance} for n in (1, 2)}
    assert run_on == {1: {"rfft"}, 2: {"rfft_rows", "rfft_columns", "rfft"}}


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("n", [32, 100, 256])
def test_what_lies_before_is_done_on_the_way(n: int, level: str) -> None:
    """Windows, pads, casts and frames are part of the kernel; a part that nobody asks for is not written."""
    graph = Graph("before")
    x, w = graph.input("x", (4, 3 * n)), graph.input("w", (n,), "f16")
    framed = ops.frames(x, length=n, step=n // 4) * w.cast("f32")
    give(graph, "framed", ops.rfft(ops.exp(framed * 0.1) - 1)[1])
    give(graph, "padded", ops.fft(x[:, : n - 5], length=n)[0])
    give(graph, "across", ops.fft(x[:, :n].transpose(1, 0), axis=0)[1])
    inputs = {"x": noise(4, 3 * n), "w": np.hanning(n).astype(np.float16)}
    actual = run(graph, inputs, level)
    windows = np.lib.stride_tricks.sliding_window_view(inputs["x"].astype(np.float64), n, 1)[:, :: n // 4]
    framed_right = np.fft.rfft(np.expm1(windows * inputs["w"] * 0.1)).imag
    np.testing.assert_allclose(actual["framed.0"], framed_right, atol=1e-4)
    np.testing.assert_allclose(actual["padded.0"], np.fft.fft(inputs["x"][:, : n - 5], n).real, atol=1e-4)
    np.testing.assert_allclose(actual["across.0"], np.fft.fft(inputs["x"][:, :n]).imag.T, atol=1e-4)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_steps_cover_a_length(lanes: int) -> None:
    for n in range(2, 3000):
        factors = fourier.radices(n)
        assert n % math.prod(factors) == 0
        if fourier.gains(n):
            steps = fourier.steps(n, lanes)
            assert all(step.before * step.radix * step.after == n for step in steps)
            assert steps[0].form == "one" and steps[-1].after == 1


@pytest.mark.parametrize(
    "make, taken",
    [
        (lambda x: ops.fft(x), True),
        (lambda x: ops.rfft(x), True),
        (lambda x: ops.irfft(x[:, :33]), True),
        (lambda x: ops.fft(x, axis=0), False),
        (lambda x: ops.fft(x, length=128), False),
        (lambda x: ops.fft(x.cast("f16")), False),
        (lambda x: ops.rfft(x[:, :45]), False),
        (lambda x: ops.fft(x[:, :8]), False),
        (lambda x: ops.fft(x[:, :37]), False),
    ],
)
def test_claims(make: Any, taken: bool) -> None:
    graph = Graph("claims")
    results = make(graph.input("x", (64, 64)))
    answer = claim((results[0] if isinstance(results, tuple) else results).node)
    assert (answer == "") is taken and answer is not None


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_halves_have_the_steps_of_the_whole(lanes: int) -> None:
    for n in (1 << 14, 1 << 17, 1 << 20, 3 << 13, 5**4 * 64, 3 * 5 * 7 * 11 * 13 * 2):
        cut = fourier.halves(n, lanes)
        assert cut is not None
        first, second = cut
        assert [s.radix for s in (*first, *second)] == [s.radix for s in fourier.steps(n, lanes)]
        assert all(step.columns == n // second[0].before >= lanes for step in first)
        assert second[0].before >= lanes
    assert fourier.halves(lanes * lanes // 2, lanes) is None


def test_arm_code_is_made() -> None:
    graph = Graph("arm")
    for n in (30, 512, 1 << 15):
        give(graph, f"fft{n}", ops.fft(graph.input(f"x{n}", (4, n))))
        give(graph, f"back{n}", ops.irfft(graph.input(f"u{n}", (4, n // 2 + 1), "f64")))
    assert build.compile_artifact(graph, isa.forced("neon", for_codegen_only=True), Options()).code


def test_transforms_of_weights_and_in_loops() -> None:
    """What params alone decide is transformed once; a loop's body has its table too."""
    graph = Graph("loop")
    x, weight = graph.input("x", (5, 64)), graph.param("w", (64,))
    start = graph.constant(np.zeros(33, np.float32))
    body = Graph("body")
    total, row = body.input("total", (33,)), body.input("row", (64,))
    step = ops.rfft(row)[0] + total
    body.output(step, name="next")
    body.output(step * 2, name="row")
    results = call("scan", start, x, regions=(body,), carried=1, sequences=1, length=5)
    assert isinstance(results, tuple)
    graph.output(results[0] + ops.rfft(weight)[0], name="y")
    values, weights = noise(5, 64), noise(64, seed=1)
    executable = BACKEND().compile(graph, Options(cache=False))
    executable.set_params({"w": weights})
    (actual,) = executable.bind({})([values])
    right = np.fft.rfft(values).real.sum(0) + np.fft.rfft(weights).real
    np.testing.assert_allclose(actual, right, atol=1e-4)
    assert "rfft" in executable.artifact.report["prepare_kernels"]
