"""Numbers that MIL has not, or keeps small: bits of integers, bf16, and weights that are quantised."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from backends.coreml.common import compiled, entry, here
from rlx import ops
from rlx.backends import coreml as backend
from rlx.backends.coreml import package
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from support import run_on

# bits


@here
@pytest.mark.parametrize("dtype", ["i4", "i8", "u8", "i16", "u16", "i32", "i64"])
def test_bits_by_arithmetic(dtype: str) -> None:
    """Integers of the whole range, amounts of shifts beyond it, and masks that are known."""
    graph = Graph()
    x, y, by = (graph.input(name, (64,), dtype) for name in ("x", "y", "by"))
    values = [ops.bitwise_and(x, y), ops.bitwise_or(x, y), ops.bitwise_xor(x, y), ops.shift_right(x, by)]
    values += [ops.bitwise_and(x, mask) for mask in (0, 1, 7, 6)] + [ops.shift_left(x, 2), ops.shift_right(x, 1)]
    graph.output(*values)
    of, width = x.dtype, min(x.dtype.bits, 32)
    graph.output(ops.shift_left(x, by) if of.bits < 64 else x, name="left")  # i64 has 32 bits here
    low, high = (-(1 << width - 1), 1 << width - 1) if of.kind == "int" else (0, 1 << width)
    random = np.random.default_rng(0)
    numbers = [random.integers(low, high, 64) for _ in range(2)]
    numbers[0][:4], numbers[1][:4] = (low, low, high - 1, -1 % high), (low, high - 1, low, low)
    if of.bits == 64:
        numbers = [a // 8 for a in numbers]  # what is shifted up stays within them
    amounts = random.integers(max(low, -3), min(high, width + 3), 64)
    inputs = {v.name: a.astype(of.numpy) for v, a in zip((x, y, by), (*numbers, amounts))}
    actual, expected = (run_on(device, graph, inputs) for device in ("ane", "reference"))
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


# bf16


def narrow_sums() -> Graph:
    """Three sums of bf16, each of which rounds, a product, and numbers of bf16 by a cast."""
    graph = Graph()
    x, w = graph.input("x", (4000,), "bf16"), graph.param("w", (), "bf16")
    graph.output(sums=(x + w) + w + x, product=x * w, rounded=(graph.input("y", (4000,)) * 1.5).cast("bf16"))
    return graph


@here
def test_bf16_is_rounded_by_arithmetic() -> None:
    """Bits of all kinds: ties to even, what is below and above the normal range, infinities and NaN."""
    graph, random = narrow_sums(), np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, 4000, dtype=np.uint64).astype(np.uint32)
    bits[::3] = (bits[::3] & 0xFFFF0000) | 0x8000
    bits[1::7] &= 0x80FFFFFF
    inputs = {"x": (bits >> 16).astype(np.uint16).view(graph.inputs[0].dtype.numpy), "y": bits.view(np.float32)}
    results = {}
    for device in ("ane", "reference"):
        one = rlx.Session(device).compile(graph)
        one.set_param("w", np.asarray(1.0078125, graph.params[0].dtype.numpy))
        results[device] = one.run(inputs)
    for actual, expected in zip(results["ane"], results["reference"]):
        assert actual.dtype == expected.dtype
        numbers = ~np.isnan(expected.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(actual.astype(np.float32)), ~numbers)
        np.testing.assert_array_equal(actual.view(np.uint16)[numbers], expected.view(np.uint16)[numbers])


@here
def test_bf16_has_more_digits_in_f16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_COREML_PRECISION", "f16")
    graph = Graph()
    x = graph.input("x", (4,), "bf16")
    graph.output((x + 1.0) - x, name="y")
    program = compiled(graph)
    (actual,) = program.run([np.array([1, 300, 1000, -1000], x.dtype.numpy)])
    assert actual.dtype == x.dtype.numpy and actual.tolist() == [1, 1, 1, 1]  # in bf16 300 + 1 is 300
    assert package.contents(program.executable.model({}).model.get_spec()).inputs == {"x": entry("fp32[4]")}


# quantised weights


def weighted(kind: str) -> Graph:
    """A product whose weight, or whose parts, are dequantised: [64, 96] of some integers in some layout."""
    graph = Graph(kind)
    x = graph.input("x", (3, 64), "f16" if kind == "f16" else "f32")

    def deq(of: str, shape: Sequence[int], parameter: Sequence[int], **how: Any) -> Any:
        w, scale = graph.param("w", shape, of), graph.param("scale", parameter, "f32")
        return ops.dequantize(w, scale, graph.param("zero", parameter, of), dtype=x.dtype, **how)

    match kind:
        case "one-scale" | "f16":
            y = x @ deq("i8", (64, 96), ())
        case "columns":
            y = x @ deq("u8", (64, 96), (96,), axis=1)
        case "turned":
            y = x @ deq("i4", (96, 64), (96,), axis=0).transpose()
        case "blocks":
            y = x @ deq("u4", (64, 96), (2, 96), axis=0, block=32)
        case "broken-blocks":
            y = x @ deq("u4", (64, 96), (3, 96), axis=0, block=25)
        case "gather":
            y = ops.gather(deq("i8", (64, 96), (64,), axis=0), graph.constant([3, 1]), axis=0) * x[0, 0]
        case "conv":
            w = deq("i8", (24, 4, 3), (24,), axis=0)
            y = ops.conv(x.reshape(3, 4, 16), w, strides=(1,), dilations=(2,), low=(0,), high=(0,))
        case _:
            bits, block = (int(n) for n in kind.split("x")[:2])
            blocks = -(-64 // block)
            w = graph.param("w", (96 * blocks * block * bits // 8,), "u8").reshape(96, blocks * block * bits // 8)
            parameters = [graph.param(n, (96, blocks), "f32") for n in ("scale", "zero")[: 2 - kind.endswith("-")]]
            y = ops.packed_matmul(x, w, *parameters, depth=64, bits=bits, block=block)
    graph.output(y, name="y")
    return graph


def weights_of(graph: Graph, scale: float = 0.01) -> dict[str, Array]:
    random = np.random.default_rng(0)
    weights: dict[str, Array] = {}
    for value in graph.params:
        shape, of = [int(n) for n in value.shape], value.dtype
        least, most = (-(1 << of.bits - 1), 1 << of.bits - 1) if of.kind == "int" else (0, 1 << min(of.bits, 8))
        numbers = random.uniform(scale / 9, scale, shape) if value.name == "scale" else random.integers(0, 16, shape)
        numbers = random.integers(least, most, shape) if of.is_integer else numbers
        weights[value.name] = np.asarray(numbers).astype(of.numpy)
    return weights


KINDS = ("one-scale", "f16", "columns", "turned", "blocks", "broken-blocks", "gather", "conv", "4x32", "4x48", "2x16",
         "8x64", "4x32x-")  # fmt: skip


def as_reference(graph: Graph, params: dict[str, Array], scale: float = 1.0) -> rlx.CompiledGraph:
    """Compiled for the converter, its results compared with the reference's."""
    inputs = {v.name: np.random.default_rng(1).standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    program, expected = compiled(graph, **params), rlx.Session("reference").compile(graph)
    expected.set_params(params)
    for actual, theirs in zip(program.run(inputs), expected.run(inputs)):
        close = 1e-2 * scale if theirs.dtype == np.float16 else 1e-5 * scale
        np.testing.assert_allclose(
            actual.astype("f4"), theirs.astype("f4"), rtol=close, atol=close * np.abs(theirs).max()
        )
    return program


@here
@pytest.mark.parametrize("kind", KINDS)
def test_quantised_weights_stay_integers(kind: str) -> None:
    graph = weighted(kind)
    program = as_reference(graph, weights_of(graph))
    contents = package.contents(program.executable.model({}).model.get_spec()).ops
    assert contents["constexpr_blockwise_shift_scale"] == (kind != "broken-blocks")
    assert not contents["transpose"]


@here
def test_scales_that_f16_does_not_hold_make_dense_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_COREML_PRECISION", "f16")
    for kind in ("blocks", "4x32"):
        graph = weighted(kind)
        for scale, compressed in ((0.01, 1), (2e-5, 0)):
            program = as_reference(graph, weights_of(graph, scale), scale=100)
            contents = package.contents(program.executable.model({}).model.get_spec()).ops
            assert contents["constexpr_blockwise_shift_scale"] == compressed


@here
@pytest.mark.parametrize("precision", ["f16", "f32"])
def test_a_package_is_about_as_large_as_its_weights(
    precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RLX_COREML_PRECISION", precision)
    graph = Graph("mlp")
    w, scale = graph.param("w", (256, 1024), "i8"), graph.param("scale", (1024,))
    hidden = ops.relu(graph.input("x", (2, 256)) @ ops.dequantize(w, scale, dtype="f32", axis=1))
    w, scale = graph.param("w4", (512, 512), "u8"), graph.param("scale4", (512, 8))
    zeros = graph.param("zeros", (512 * 4,), "u8")
    zero = ops.packed.unpacked(zeros.reshape(512, 4), 4).cast("f32")  # as MatMulNBits has them
    graph.output(ops.packed_matmul(hidden, w, scale, zero, depth=1024, bits=4, block=128), name="y")
    params = weights_of(graph)
    params["scale4"] = np.full((512, 8), 0.01, np.float32)
    program = as_reference(graph, params, 1e3 if precision == "f16" else 10)
    program.save(tmp_path / "mlp.mlpackage", {})
    size = sum(file.stat().st_size for file in (tmp_path / "mlp.mlpackage").rglob("*") if file.is_file())
    weights = sum(array.nbytes for array in params.values())
    assert weights > 500_000 and size < 1.1 * weights


@here
def test_weights_that_a_run_decides_are_computed() -> None:
    graph = Graph()
    w, scale = graph.input("w", (4, 3), "i8"), graph.input("scale", ())
    graph.output(ops.dequantize(w, scale, dtype="f32"), name="y")
    assert backend.CoremlBackend().claim(graph.nodes[-1]) == "what a run decides"
    actual = compiled(graph).run([np.arange(12, dtype=np.int8).reshape(4, 3), np.float32(0.5)])[0]
    np.testing.assert_array_equal(actual, np.arange(12).reshape(4, 3) / 2)
