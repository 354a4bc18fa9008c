"""Each kind of kernel against the reference: maps, rows, arguments, contractions, moves, at sizes that only a run
knows."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.backends.wgpu.executable import WgpuExecutable
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import EXACT, Tolerance
from rlx.kernel.ir.contraction import Contraction

from .conftest import Check, compiled

RANDOM = np.random.default_rng(11)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def graph_of(shape: tuple[Any, ...], dtype: str = "f32") -> tuple[Graph, Any]:
    graph = Graph("case")
    return graph, graph.input("x", shape, dtype)


def test_one_compile_serves_every_size(check: Check) -> None:
    graph, x = graph_of(("batch", "length", 24))
    weight = graph.param("w", (24, 40))
    y = ops.softmax(ops.gelu(x @ weight), axis=-1)
    graph.output(y, ops.reduce_mean(y, axes=(1,)), ops.concat(x, x * 2.0, axis=1))
    sizes = ((1, 1), (3, 7), (2, 70), (5, 4), (0, 3))
    calls = [({"batch": b, "length": s}, {"x": floats(b, s, 24)}) for b, s in sizes]
    check(graph, calls, {"w": floats(24, 40)})


def test_rows(check: Check) -> None:
    graph, x = graph_of((6, 130))
    graph.output(ops.layer_norm(x, graph.constant(floats(130)), graph.constant(floats(130))))
    graph.output(ops.log_softmax(x, axis=0), ops.reduce_sum(x, axes=(0, 1)), ops.reduce_max(x, axes=(1,)))
    graph.output(ops.reduce_sum(x.cast("i64"), axes=(0,)), ops.reduce_prod(x, axes=(0,), keepdims=True))
    check(graph, [({}, {"x": floats(6, 130)})])


def test_softmax_of_nan_and_infinities(check: Check) -> None:
    graph, x = graph_of((6, 5))
    graph.output(ops.softmax(x, axis=-1), ops.reduce_max(x, axes=(1,)), ops.reduce_min(x, axes=(1,)))
    graph.output(ops.argmax(x, axis=1), ops.argmin(x, axis=1, last=True), ops.minimum(x, 0.0), ops.relu(x))
    rows = floats(6, 5)
    rows[0, 2], rows[1, 3], rows[2, 1], rows[4, :] = np.nan, np.inf, -np.inf, -np.inf
    rows[5, 1], rows[5, 3] = np.nan, np.nan
    check(graph, [({}, {"x": rows})])


def test_long_sums_keep_their_digits(check: Check) -> None:
    graph, x = graph_of((3, "n"))
    graph.output(ops.reduce_sum(x, axes=(1,)), ops.reduce_mean(x * x, axes=(1,)))
    numbers = np.random.default_rng(0).uniform(0, 1, (3, 100_000)).astype(np.float32)
    check(graph, [({"n": 100_000}, {"x": numbers})], tolerance=Tolerance(64))


@pytest.mark.parametrize("dtype", ["f32", "i64", "bool"])
def test_positions_in_long_rows(dtype: str, check: Check) -> None:
    """Lanes share a row: which of equals wins must not depend on whose it is, and NaN must win from any lane."""
    graph, x = graph_of((5, "n"), dtype)
    for last in (False, True):
        graph.output(ops.argmax(x, axis=1, last=last), ops.argmin(x, axis=1, last=last))
    calls = []
    for n in (1, 64, 200, 1000):
        rows = np.random.default_rng(n).integers(-3, 4, (5, n)).astype(x.dtype.numpy)
        if dtype == "f32":
            rows[1, n // 3], rows[1, n // 2], rows[2, :] = np.nan, np.nan, np.nan
            rows[3, n // 2], rows[4, n - 1] = np.inf, -np.inf
        calls.append(({"n": n}, {"x": rows}))
    check(graph, calls, tolerance=EXACT)


def test_rows_of_several_axes(check: Check) -> None:
    graph, x = graph_of(("n", 4, "h", 9))
    graph.output(ops.reduce_sum(x, axes=(0, 2)), ops.reduce_max(x, axes=(1, 3)), ops.softmax(x, axis=(1)))
    whole = x.cast("i64")
    graph.output(ops.reduce_sum(whole, axes=(0, 2, 3), keepdims=True), ops.reduce_min(whole, axes=(0, 3)))
    graph.output(ops.reduce_max(ops.gt(x, 0.0), axes=(0, 2)))
    calls = [({"n": n, "h": h}, {"x": floats(n, 4, h, 9)}) for n, h in ((2, 5), (1, 1), (7, 20), (2, 0))]
    check(graph, calls)


@pytest.mark.parametrize("m", [1, 4, 7])
@pytest.mark.parametrize("n", [1, 5, 64, 70])
def test_contractions_with_weights(m: int, n: int, check: Check) -> None:
    graph, x = graph_of(("m", 96))
    graph.output(ops.relu(x @ graph.param("w", (96, n)) + graph.param("b", (n,))) + 1.0)
    graph.output(x @ graph.param("t", (n, 96)).T)
    weights = {"w": floats(96, n), "b": floats(n), "t": floats(n, 96)}
    check(graph, [({"m": m}, {"x": floats(m, 96)})], weights)


def test_contractions_of_two_inputs(check: Check) -> None:
    graph, x = graph_of(("b", 3, "s", 10))
    y = graph.input("y", ("b", 3, 10, "t"))
    graph.output(x @ y, ops.dot_general(x, y, lhs_contract=(3, 1), rhs_contract=(2, 1), lhs_batch=(0,), rhs_batch=(0,)))
    calls = []
    for b, s, t in ((2, 5, 6), (1, 1, 1), (2, 0, 3)):
        calls.append(({"b": b, "s": s, "t": t}, {"x": floats(b, 3, s, 10), "y": floats(b, 3, 10, t)}))
    check(graph, calls)


@pytest.mark.parametrize("channels", [3, 70])
def test_convolutions(channels: int, check: Check, kind: str) -> None:
    """With weights that are packed and with ones that are not, at sizes that a run brings, with what follows."""
    graph, x = graph_of(("n", channels, "h", 17))
    w = graph.param("w", (9, channels, 3, 3))
    plain = {"strides": (1, 2), "dilations": (1, 1), "low": (0, 0), "high": (0, 0)}
    y = ops.relu(ops.conv(x, w, **plain) + graph.param("b", (9, 1, 1)))
    padded = ops.conv(y, graph.param("p", (5, 9, 3, 3)), **{**plain, "low": (1, 1), "high": (1, 2)})
    graph.output(padded, ops.conv(x, graph.input("v", (4, channels, 2, 3)), **{**plain, "dilations": (2, 1)}))
    graph.output(ops.conv(x, graph.param("d", (channels, 1, 3, 3)), groups=channels, **plain))
    params = {name: floats(*shape) for name, shape in (
        ("w", (9, channels, 3, 3)), ("b", (9, 1, 1)), ("p", (5, 9, 3, 3)), ("d", (channels, 1, 3, 3)),
    )}  # fmt: skip
    calls = []
    for n, h in ((1, 5), (2, 12), (0, 6)):
        inputs = {"x": floats(n, channels, h, 17), "v": floats(4, channels, 2, 3)}
        calls.append(({"n": n, "h": h}, inputs))
    check(graph, calls, params, tolerance=Tolerance(512, scale=4))
    works = [step.kernel.work for step in compiled(kind, graph, params).plan.main]
    taps = [w for w in works if isinstance(w, Contraction) and w.taps]
    assert any(w.packed for w in taps) and not all(w.packed for w in taps)


def test_windows(check: Check) -> None:
    graph, x = graph_of(("n", 4, "h", 11))
    shape = {"window": (3, 2), "strides": (2, 1), "dilations": (1, 1), "low": (1, 0), "high": (1, 1)}
    graph.output(ops.reduce_window(x, combine="max", **shape), ops.average_pool(x, **shape))
    check(graph, [({"n": n, "h": h}, {"x": floats(n, 4, h, 11)}) for n, h in ((2, 9), (1, 3))])


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i32", "i64", "u8", "i8"])
def test_contractions_of_other_dtypes(dtype: str, check: Check) -> None:
    graph, x = graph_of((5, 33), dtype)
    graph.output(x @ graph.param("w", (33, 9), dtype))
    numpy_type = x.dtype.numpy
    low = 0 if dtype == "u8" else -9
    left, right = (np.random.default_rng(i).integers(low, 9, s) for i, s in enumerate(((5, 33), (33, 9))))
    check(graph, [({}, {"x": left.astype(numpy_type)})], {"w": right.astype(numpy_type)})


def test_moves(check: Check) -> None:
    graph, x = graph_of(("n", 6, 8))
    graph.output(x.transpose(2, 0, 1), x.reshape(-1, 12, 4), ops.concat(x[:, ::2, ::-1], x[:, 1::2], axis=1))
    graph.output(ops.pad(x, low=(1, 0, 2), high=(0, 3, -1), value=7.0))
    graph.output(ops.broadcast_to(x[:, :1], shape=(x.shape[0], 6, 8)) + x, (x.transpose(1, 0, 2) + 0.0).reshape(-1, 8))
    check(graph, [({"n": n}, {"x": floats(n, 6, 8)}) for n in (3, 1, 0)], tolerance=EXACT)


@pytest.mark.parametrize("dtype", ["i64", "u64", "i32", "u8", "i8"])
def test_gathers_with_wild_indices(dtype: str, kind: str) -> None:
    graph, x = graph_of(("rows", 5))
    indices = graph.input("i", (9,), dtype)
    graph.output(ops.gather(x, indices, axis=0))
    info = np.iinfo(indices.dtype.numpy)
    wild = [0, 1, 3, int(info.max), int(info.min), 2, 100, int(info.max) // 2 + 1, int(info.max) - 1]
    if info.min < 0:
        wild[1:3] = [-1, -100]
    rows = floats(4, 5)
    (actual,) = compiled(kind, graph).bind({"rows": 4})([rows, np.array(wild, indices.dtype.numpy)])
    inside = [min(max(i + 4 if i < 0 else i, 0), 3) for i in wild]
    assert np.array_equal(actual, rows[inside])


def test_indices_beyond_32_bits_are_not_cut(check: Check) -> None:
    """2^32 + 1 must be clamped like any number that is too large, not read as 1."""
    graph, x = graph_of((5,))
    indices = graph.input("i", (3,), "i64")
    graph.output(ops.gather(x, indices, axis=0), ops.eq(indices, 1), indices + graph.constant(np.int64(1)))
    array = np.array([(1 << 32) + 1, -(1 << 32) + 1, 1], np.int64)
    check(graph, [({}, {"x": floats(5), "i": array})], tolerance=EXACT)


def test_numbers_from_dims(check: Check) -> None:
    graph, x = graph_of(("n", 3))
    count = ops.iota(graph, shape=("n", 3), dtype="i64", axis=0)
    graph.output(count * 3 - 4, count.cast("f32") + x, ops.dims_tensor(graph, values=("n", "2*n+1", "n//2")))
    check(graph, [({"n": n}, {"x": floats(n, 3)}) for n in (5, 1)], tolerance=EXACT)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_packed_elements(count: int, check: Check) -> None:
    """Inputs, params and constants come as the host has them: bytes and halves several to a word."""
    graph = Graph("packed")
    arrays: dict[str, Array] = {
        "u8": np.arange(250, 250 + count).astype(np.uint8), "i8": np.arange(-count, 0).astype(np.int8),
        "bool": np.arange(count) % 2 == 0, "f16": floats(count).astype(np.float16),
        "bf16": floats(count).astype(ml_dtypes.bfloat16), "u16": np.arange(65530, 65530 + count).astype(np.uint16),
        "i16": np.arange(-count, 0).astype(np.int16),
    }  # fmt: skip
    arrays["f16"][0] = 6e-8  # subnormal
    for name, array in arrays.items():
        value = graph.input(name, (count,), array.dtype)
        param = graph.param(f"{name}_param", (count,), array.dtype)
        constant = graph.constant(array[::-1].copy())
        if name == "bool":
            graph.output(value ^ param, value & constant)
        else:
            graph.output(value + param, value.cast("f32") * 2.0, ops.maximum(value, constant))
    params = {f"{name}_param": np.roll(array, 1) for name, array in arrays.items()}
    check(graph, [({}, arrays)], params, tolerance=EXACT)


def test_params_with_named_dims(kind: str) -> None:
    """Their size is known only when they are set: they lie in memory of their own."""
    graph = Graph("named")
    x, w = graph.input("x", ("b", 4)), graph.param("w", (4, "n"))
    bias = graph.param("bias", ("n",))
    graph.output(x @ w + bias, x @ ops.slice(w, starts=(0, 0), stops=(4, 2), steps=(1, 1)) @ graph.param("v", (2, 3)))
    executable = compiled(kind, graph)
    for n in (3, 50):
        params = {"w": floats(4, n), "bias": floats(n), "v": floats(2, 3)}
        executable.set_params(params)
        rows = floats(2, 4)
        first, second = executable.bind({"b": 2, "n": n})([rows])
        np.testing.assert_allclose(first, rows @ params["w"] + params["bias"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(second, rows @ params["w"][:, :2] @ params["v"], rtol=1e-4, atol=1e-5)


def test_weights_can_be_swapped(kind: str) -> None:
    graph, x = graph_of((2, 8))
    graph.output(x @ graph.param("w", (8, 4)) + graph.param("b", (4,)))
    executable = compiled(kind, graph, {"w": np.zeros((8, 4), np.float32), "b": floats(4)})
    bound = executable.bind({})
    rows = floats(2, 8)
    before = bound([rows])[0]
    weight = floats(8, 4)
    executable.set_params({"w": weight})
    after = bound([rows])[0]
    np.testing.assert_allclose(after - before, rows @ weight, rtol=1e-5, atol=1e-5)


def test_many_threads(kind: str) -> None:
    graph, x = graph_of(("n", 16))
    graph.output(ops.softmax(x @ graph.param("w", (16, 16)), axis=-1))
    executable: WgpuExecutable = compiled(kind, graph, {"w": np.eye(16, dtype=np.float32)})
    wrong: list[str] = []

    def work(seed: int) -> None:
        for n in (1, 5, 3):
            x = np.random.default_rng(seed).standard_normal((n, 16)).astype(np.float32)
            (actual,) = executable.bind({"n": n})([x])
            power = np.exp(x)
            if not np.allclose(actual, power / power.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6):
                wrong.append(f"thread {seed}, n {n}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
