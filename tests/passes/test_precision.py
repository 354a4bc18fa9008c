"""Modes of precision: what computes in which dtype, how near results come, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.errors import OptionError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.passes.driver import Context
from rlx.passes.precision import MODES, Precision, policy_of
from rlx.runtime.compiled import CompiledGraph, load_compiled
from rlx.runtime.session import Session
from support import why_absent

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((3, 64)).astype(np.float32)
ERRORS = {"f16": 2.0**-10, "bf16": 2.0**-7}
"""Of one rounding, and as much again for the result's."""
DEVICES = [
    pytest.param(name, marks=pytest.mark.skipif(bool(why_absent(name)), reason=why_absent(name)))
    for name in ("cpu", "vulkan", "xla", "mlx")
]


def weight(graph: Graph, name: str, shape: tuple[int, ...]) -> rlx.Value:
    data = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    return graph.param(name, shape, "f32", data=data)


def net() -> Graph:
    graph = Graph("net")
    x = graph.input("x", ("n", 64), "f32")
    hidden = rlx.gelu(x @ weight(graph, "w", (64, 96)) + weight(graph, "bias", (96,)))
    graph.output(rlx.softmax(hidden @ weight(graph, "second", (96, 40)) * 0.125), name="y")
    return graph


def run(graph: Graph, device: str, precision: str, *inputs: Array) -> Array:
    session = Session(device, precision=precision)  # type: ignore[arg-type]
    return session.compile(graph).run(list(inputs))[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["f16", "bf16"])
def test_results_are_as_near_as_the_dtype_lets_them(device: str, mode: str) -> None:
    exact = run(net(), "reference", "f32", X)
    narrow = run(net(), device, mode, X)
    error = np.abs(narrow - exact).max()
    assert narrow.dtype == np.float32
    assert np.finfo(np.float32).eps < error < 8 * ERRORS[mode]  # it did compute in that dtype
    np.testing.assert_allclose(run(net(), device, "f32", X), exact, rtol=1e-4, atol=1e-6)


def test_only_what_multiplies_is_narrow() -> None:
    graph = net()
    narrow = Precision(policy_of("bf16")).run(graph, Context())
    dtypes = {
        (node.op.name, value.dtype.name)
        for node in narrow.nodes
        for value in node.inputs
        if node.op.name in ("matmul", "gelu", "softmax", "add")
    }
    assert dtypes == {("matmul", "bf16"), ("gelu", "f32"), ("softmax", "f32"), ("add", "f32")}
    assert Precision(policy_of("f32")).run(graph, Context()) is graph
    assert Precision(policy_of("f32_fast")).run(graph, Context()) is graph


@pytest.mark.parametrize("device", DEVICES)
def test_fast_f32_is_f32_where_no_units_have_parts_of_it(device: str) -> None:
    np.testing.assert_array_equal(run(net(), device, "f32_fast", X), run(net(), device, "f32", X))


def test_numbers_of_other_dtypes_stay_as_they_are() -> None:
    graph = Graph("others")
    x, i = graph.input("x", (4, 8), "f64"), graph.input("i", (4, 8), "i32")
    graph.output(x @ x.transpose(1, 0), i @ i.transpose(1, 0))
    assert Precision(policy_of("f16")).run(graph, Context()) is graph


def test_masks_below_the_least_half_forbid_and_do_not_spoil() -> None:
    """A row that may see nothing gets some mean of the values, as in f32, and no NaN."""
    graph = Graph("masked")
    q = graph.input("q", (1, 2, 3, 16), "f32")
    mask = graph.input("mask", (1, 1, 3, 3), "f32")
    graph.output(ops.attention(q, q, q, mask), name="y")
    scores = np.zeros((1, 1, 3, 3), np.float32)
    scores[0, 0, 1, 2:] = scores[0, 0, 2] = np.finfo(np.float32).min
    q_ = RANDOM.standard_normal((1, 2, 3, 16)).astype(np.float32)
    exact = run(graph, "reference", "f32", q_, scores)
    narrow = run(graph, "cpu", "f16", q_, scores)
    np.testing.assert_allclose(narrow[:, :, :2], exact[:, :, :2], atol=4e-3)
    assert np.all(np.abs(narrow[:, :, 2]) <= np.abs(q_).max())


def test_weights_take_half_the_memory_on_the_processor() -> None:
    def weights(precision: str) -> int:
        compiled = Session("cpu", precision=precision).compile(net())  # type: ignore[arg-type]
        compiled.run([X])
        return compiled.executable.weight_bytes

    assert weights("bf16") < 0.6 * weights("f32")


def test_a_saved_program_keeps_its_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Session("cpu", precision="bf16").compile(net())
    expected = compiled.run([X])[0]
    compiled.save(tmp_path / "net.rlxc")
    again: CompiledGraph = load_compiled(tmp_path / "net.rlxc")
    np.testing.assert_array_equal(again.run([X])[0], expected)
    from rlx.backends.cpu import CpuBackend

    monkeypatch.setattr(CpuBackend, "code_mismatch", lambda *given: "of another machine")
    made = load_compiled(tmp_path / "net.rlxc", recompile=True)
    np.testing.assert_array_equal(made.run([X])[0], expected)


def test_modes_share_no_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RLX_CACHE", "1")
    results = [run(net(), "cpu", mode, X) for mode in ("f32", "bf16", "f16", "bf16", "f32")]
    np.testing.assert_array_equal(results[0], results[4])
    np.testing.assert_array_equal(results[1], results[3])
    assert np.any(results[0] != results[1]) and np.any(results[1] != results[2])


def test_what_was_measured_in_one_mode_tells_nothing_of_another() -> None:
    from rlx.backends.base import Options
    from rlx.device.choice import Chooser
    from rlx.device.policy import DevicePolicy

    keys = {Chooser(net(), DevicePolicy(), Options(precision=mode)).key({"n": 3}).text for mode in MODES}
    assert len(keys) == len(MODES)


def test_a_mode_that_there_is_not_is_told_at_once() -> None:
    with pytest.raises(
        OptionError, match=r"\[session\] expected a precision of f32, f32_fast, f16, bf16, int8, f8, got 'fp16'.*'f16'"
    ):
        Session("cpu", precision="fp16")  # type: ignore[arg-type]
