"""Failures of drivers are errors of rlx wherever they happen, and chains tell them from errors of the caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.failures import structured
from rlx.device import device, registry, support
from rlx.device.policy import DevicePolicy
from rlx.errors import CompileError, DeviceLost, DriverError, InputError, OutOfMemory, RlxError, RunTimeout
from rlx.ir.graph import Graph
from rlx.runtime.graph_devices import GraphDevices
from support import why_absent

X = np.arange(4, dtype=np.float32)


class GPUValidationError(Exception):
    """As a library's own."""


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The backend `breaking`, whose `step` and `error` say where it fails, and how."""
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setitem(registry.BUILT_IN, "breaking", "fakes:Breaking")
    monkeypatch.setitem(device._TOKENS, "breaking", "breaking")
    registry.refresh()
    support.forget()
    backend_type = type(registry.load("breaking"))
    monkeypatch.setattr(backend_type, "step", "")
    monkeypatch.setattr(backend_type, "error", RuntimeError())
    return backend_type


def net() -> Graph:
    graph = Graph("net")
    graph.output(graph.input("x", ("n",), "f32") + graph.param("w", (1,), "f32"), name="y")
    graph.data = {"w": np.ones(1, np.float32)}
    return graph


@pytest.mark.parametrize("step", ["compile", "weights", "bind", "run"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("INTERNAL: something broke"), DriverError),
        (RuntimeError("RESOURCE_EXHAUSTED: no bytes left"), OutOfMemory),
        (MemoryError(), OutOfMemory),
        (OSError("the device was lost"), DeviceLost),
        (GPUValidationError("a shader too many"), DriverError),
    ],
    ids=str,
)  # fmt: skip
def test_a_driver_that_fails_is_left_for_the_next_device(
    step: str, error: Exception, kind: type[RlxError], failing: Any
) -> None:
    failing.step, failing.error = step, error
    devices = GraphDevices(net(), DevicePolicy().only("breaking", "cpu"))
    ran, (y,) = devices.run_chain([X], ["breaking", "cpu"])
    assert ran.kind == "cpu"
    np.testing.assert_array_equal(y, X + 1)
    expected = CompileError if kind is DriverError and step == "compile" else kind
    with pytest.raises(expected) as caught:
        devices.run("breaking", [X])
    assert str(error) in str(caught.value) and caught.value.__cause__ is error
    assert str(caught.value).startswith(f"[{step}] expected ")
    if kind is OutOfMemory and step in ("bind", "run"):
        assert "at node 'x'" in str(caught.value) and " 16 bytes" in str(caught.value)


def test_defects_are_not_taken_for_failures_of_drivers(failing: Any) -> None:
    failing.step, failing.error = "run", KeyError("a name that is not there")
    devices = GraphDevices(net(), DevicePolicy().only("breaking", "cpu"))
    with pytest.raises(KeyError):
        devices.run_chain([X], ["breaking", "cpu"])
    assert structured(AssertionError(), "run", "cpu") is None
    assert isinstance(structured(AssertionError(), "compile", "cpu"), CompileError)


def test_xla_is_left_when_its_driver_fails() -> None:
    reason = why_absent("xla")
    if reason:
        pytest.skip(reason)
    devices = GraphDevices(net(), DevicePolicy().only("xla", "cpu"))
    compiled = devices.compile("xla")
    compiled.run([X])
    bound, _ = compiled.program.ready([X])

    def lost(*_: Any) -> Any:
        raise RuntimeError("INTERNAL: device lost")

    bound._compiled = lost  # type: ignore[attr-defined]
    ran, (y,) = devices.run_chain([X], ["xla", "cpu"])
    assert ran.kind == "cpu"
    np.testing.assert_array_equal(y, X + 1)
    (tried,) = devices.compile("cpu").attempts.items()
    assert tried[0] == "xla" and "device lost" in tried[1]


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ([np.zeros((4, 1), np.float32)], InputError),
        ([X, X], InputError),
        ([X.astype(np.int32)], InputError),
        ({"x": X, "z": X}, InputError),
    ],
)  # fmt: skip
def test_errors_of_the_caller_end_a_chain_and_cost_no_program(inputs: Any, error: type[Exception]) -> None:
    devices = GraphDevices(net(), DevicePolicy().only("cpu", "reference"))
    compiled = devices.compile("cpu")
    with pytest.raises(error):
        devices.run_chain(inputs, ["cpu", "reference"])
    assert devices.compile("cpu") is compiled


def test_sizes_that_contradict_each_other_end_a_chain_too() -> None:
    graph = Graph("two")
    graph.output(graph.input("a", (4,), "f32") * graph.input("b", ("n",), "f32").reshape((4,)))
    devices = GraphDevices(graph, DevicePolicy().only("cpu", "reference"))
    compiled = devices.compile("cpu")
    for wrong in ([np.zeros(5, np.float32), X], [X, np.zeros(5, np.float32)]):
        with pytest.raises(InputError):
            devices.run_chain(wrong, ["cpu", "reference"])
    assert devices.compile("cpu") is compiled


def test_a_run_that_takes_too_long_ends_a_chain(failing: Any) -> None:
    failing.step, failing.error = "run", RunTimeout("[run] expected a run that is done in 1 s, got one that is not")
    devices = GraphDevices(net(), DevicePolicy().only("breaking", "cpu"))
    compiled = devices.compile("breaking")
    with pytest.raises(RunTimeout):
        devices.run_chain([X], ["breaking", "cpu"])
    assert devices.compile("breaking") is compiled


@pytest.mark.parametrize("name", ["cpu", "reference", "xla", "vulkan", "mlx"])
@pytest.mark.parametrize("temporary", [False, True], ids=["result", "temporary"])
def test_memory_that_runs_out_is_told_with_value_and_bytes(
    name: str, temporary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = why_absent(name)
    if reason:
        pytest.skip(reason)
    monkeypatch.setenv("RLX_VALUE_BYTES", str(1 << 60))
    graph = Graph("cube")
    a, b, c = (graph.input(n, s, "f32") for n, s in zip("abc", (("n", 1, 1), (1, "n", 1), (1, 1, "n"))))
    cube = a * b * c
    graph.output(rlx.sort(cube, axis=2)[:, :, 0] if temporary else cube, name="y")
    n = 1 << 14  # 16 TiB
    inputs = [np.ones(s, np.float32) for s in ((n, 1, 1), (1, n, 1), (1, 1, n))]
    with pytest.raises(OutOfMemory) as caught:
        rlx.Session(name).compile(graph).run(inputs)
    assert str(4 << 42) in str(caught.value), caught.value
    assert "at node 'mul_" in str(caught.value)
    if name == "cpu" and not temporary:
        assert "'y' of f32[n, n, n]" in str(caught.value)
    assert isinstance(caught.value, MemoryError)
