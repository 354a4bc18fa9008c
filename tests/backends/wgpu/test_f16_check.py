"""f16 as the device has it: what shaders say, where halves lie, and that results are to the bit as without."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.backends.wgpu import f16_check
from rlx.backends.wgpu.device import F16
from rlx.backends.wgpu.executable import WgpuBound, WgpuExecutable
from rlx.backends.wgpu.layout import ARENA, HALVES
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array

from .conftest import Check, compiled

RANDOM = np.random.default_rng(4)


def numbers(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float16)


def small() -> Graph:
    """Stores, reductions, gathers, products with weights, and other dtypes beside."""
    graph = Graph("small")
    x, at = graph.input("x", ("n", 7), "f16"), graph.input("at", (3,), "i64")
    softmax = ops.softmax(ops.gelu(x * 1.7 + 0.1), axis=-1)
    product = softmax @ graph.param("w", (7, 5), "f16")
    graph.output(softmax, product, product.cast("f32") * 2.0, ops.gather(x, at, axis=0), ops.gt(x, 0.0))
    graph.output(ops.reduce_sum(x, axes=(0,)), ops.sort(x, axis=0), ops.cumsum(x, axis=1), (at * 2).cast("f16"))
    return graph


SMALL_INPUTS = {"x": numbers(33, 7), "at": np.array([0, 32, 5])}
SMALL_PARAMS = {"w": numbers(7, 5)}


@pytest.fixture
def native(kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kind of driver that has f16, and is told to use it."""
    monkeypatch.setenv("RLX_WGPU_HALVES", "1")
    device = compiled(kind, small()).device
    if F16 not in device.features:
        pytest.skip(f"{kind}: the driver has no {F16}")
    if not f16_check.exact(device):
        pytest.skip(f"{kind}: the driver rounds f16 in its own way, and is not asked to")
    return kind


def run(
    executable: WgpuExecutable, graph: Graph, inputs: dict[str, Array], **binding: int
) -> tuple[WgpuBound, list[Array]]:
    bound = executable.bind(binding)
    assert isinstance(bound, WgpuBound)
    return bound, bound([inputs[v.name] for v in graph.inputs])


def texts(executable: WgpuExecutable) -> list[str]:
    return [step.shader.text for step in (*executable.plan.prepare, *executable.plan.main)]


def test_results_are_those_without_to_the_bit(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small()
    executable = compiled(native, graph, SMALL_PARAMS)
    bound, with_halves = run(executable, graph, SMALL_INPUTS, n=33)
    assert any(text.startswith("enable f16;") for text in texts(executable))
    assert set(bound.arena.pieces) == {ARENA, HALVES}
    monkeypatch.setenv("RLX_WGPU_HALVES", "0")
    plain = compiled(native, graph, SMALL_PARAMS)
    before, without = run(plain, graph, SMALL_INPUTS, n=33)
    assert not any("f16;" in text or "array<f16>" in text for text in texts(plain))
    assert before.nbytes > bound.nbytes
    for left, right in zip(with_halves, without, strict=True):
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes()


def test_against_the_reference(native: str, check: Check) -> None:
    check(small(), [({"n": 33}, SMALL_INPUTS)], SMALL_PARAMS)


def test_every_half_is_read_and_written(native: str) -> None:
    graph = Graph("every")
    x = graph.input("x", (1 << 16,), "f16")
    graph.output(x.cast("f32"), x + 0.0, x * 1.0009765625, x.cast("f32").cast("f16"))
    codes = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    _, (wide, same, scaled, back) = run(compiled(native, graph), graph, {"x": codes})
    np.testing.assert_array_equal(wide, codes.astype(np.float32))
    np.testing.assert_array_equal(back, codes)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(same, codes + np.float16(0))
        np.testing.assert_array_equal(scaled, codes * np.float16(1.0009765625))


def test_graphs_without_halves_do_not_ask_for_them(native: str) -> None:
    graph = Graph("floats")
    graph.output(graph.input("x", (3,)) * 2.0, graph.input("y", (3,), "bf16") * 2.0)
    assert not any("f16;" in text for text in texts(compiled(native, graph)))


def test_halves_within_regions(native: str, check: Check) -> None:
    """A graph of f32 at its edges; rows and carried values of the loop in it are halves."""

    def step(total: Value, row: Value) -> tuple[Value, Value]:
        after = total + row.cast("f16")
        return after, (after * 2.0).cast("f32")

    body = Graph("body")
    body.output(*step(body.input("t", (3,), "f16"), body.input("r", (3,))))
    graph = Graph("loop")
    x = graph.input("x", ("n", 3))
    start = graph.constant(np.ones(3, np.float16))
    total, rows = ops.scan(start, x, carried=1, sequences=1, length="n", regions=(body,))
    graph.output(total.cast("f32"), rows)
    calls = [({"n": n}, {"x": RANDOM.standard_normal((n, 3)).astype(np.float32)}) for n in (4, 1, 0)]
    check(graph, calls)


def test_pieces(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one binding does not hold the arena, words and halves lie in pieces of their own."""
    graph = Graph("pieces")
    x, y = graph.input("x", ("n", 24), "f16"), graph.input("y", ("n", 24))
    hidden = ops.softmax(ops.gelu(x @ graph.param("w", (24, 24), "f16")), axis=-1)
    graph.output(hidden, hidden.cast("f32") * y, x + y.cast("f16"), y * 2.0)
    params = {"w": numbers(24, 24)}
    arrays = {n: {"x": numbers(n, 24), "y": numbers(n, 24).astype(np.float32)} for n in (3, 80)}
    expected = {n: run(compiled(native, graph, params), graph, arrays[n], n=n)[1] for n in arrays}
    executable = compiled(native, graph, params)
    monkeypatch.setattr(executable.device, "max_binding", 8192)
    counts = []
    for n in (3, 80, 3):
        bound, results = run(executable, graph, arrays[n], n=n)
        counts.append(len(bound.arena.pieces))
        assert bound.arena.largest <= 8192
        assert all(a.tobytes() == b.tobytes() for a, b in zip(results, expected[n], strict=True))
    assert counts[0] == counts[2] == 2 and counts[1] > 4


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("rounded[at] = f32(f16(x))", "rounded[at] = x"),
        ("halves[at] = f16(x)", "halves[at] = f16(bitcast<f32>(bitcast<u32>(x) & 0xffffe000u))"),  # towards zero
        (
            "= f32(halves[at])",
            "= select(f32(halves[at]), 0.0, abs(f32(halves[at])) < 6.1e-5)",
        ),  # subnormal ones are lost
        ("halves[at] = f16(x)", "halves[at] = f16(clamp(x, -65504.0, 65504.0))"),
    ],
)
def test_conversions_that_are_not_exact_are_found(
    right: str, wrong: str, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = compiled(native, small()).device
    assert f16_check.exact(device)
    assert right in f16_check.SHADER
    monkeypatch.setattr(f16_check, "SHADER", f16_check.SHADER.replace(right, wrong))
    assert not f16_check.exact(device)


def test_devices_without_exact_conversions_do_without(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = compiled(native, small()).device
    monkeypatch.setitem(device.__dict__, "_exact_f16", False)
    assert not device.target().halves


def test_who_uses_halves(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = compiled(native, small()).device
    assert device.target().is_native(dtypes.f16) and not device.target().is_native(dtypes.bf16)
    assert not device.target(halves=False).halves
    monkeypatch.setenv("RLX_WGPU_HALVES", "auto")
    for software in (True, False):
        monkeypatch.setattr(device, "software", software)
        assert device.target().halves != software
