"""Whole programs on the device `apple-gpu`, by messages as macOS gets them, whose kernels run on the processor."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

import rlx
from backends.cuda.graphs import BIAS, W, cache, dense, doubling, expected, recurrent, x_of
from rlx import ops
from rlx.backends.apple_gpu import AppleGpuBackend
from rlx.backends.base import Options
from rlx.backends.cuda import device
from rlx.backends.cuda.executable import CudaExecutable
from rlx.errors import DeviceLost, DeviceUnavailable, OutOfMemory, UnsupportedOp
from rlx.ir.graph import Graph

from .conftest import EmulatedMetal, Noted

PAGE_FAULT, NO_MEMORY = 3, 8


def program(graph: Graph | None = None, options: Options | None = None) -> CudaExecutable:
    executable = AppleGpuBackend().compile(graph or dense(), options or Options(cache=False))
    assert isinstance(executable, CudaExecutable)
    executable.set_params({"w": W, "bias": BIAS} if graph is None else graph.data)
    return executable


def test_a_graph_runs_by_name(metal: Noted) -> None:
    for name in ("apple-gpu", "apple"):
        compiled = rlx.Session(name).compile(dense())
        compiled.set_params({"w": W, "bias": BIAS})
        for rows in (3, 5, 3):
            for result, wanted in zip(compiled.run([x_of(rows)]), expected(x_of(rows))):
                np.testing.assert_array_equal(result, wanted)
        assert str(compiled.device) == name
    with pytest.raises(DeviceUnavailable, match="ordinal below 1, got 1"):
        rlx.Session("apple-gpu:1")


def test_a_run_is_one_buffer_of_commands(metal: Noted) -> None:
    """Inputs are the processor's to copy where the device is idle, and each run is written anew."""
    bound = program().bind({"n": 3})
    bound([x_of(3)])
    for seed in (1, 2, 3):
        metal.messages()
        results = bound([x_of(3, seed)])
        names = [message.partition(" ")[0] for message in metal.messages()]
        assert names.count("commandBuffer") == names.count("commit") == 1
        kernels = names.count("dispatchThreadgroups:threadsPerThreadgroup:")
        assert kernels >= 1 and names.count("setComputePipelineState:") == kernels
        assert names.count("computeCommandEncoder") == 1 and names.count("blitCommandEncoder") == 1
        assert "newBufferWithLength:options:" not in names
        for result, wanted in zip(results, expected(x_of(3, seed))):
            np.testing.assert_array_equal(result, wanted)


def test_rows_that_lanes_share(metal: Noted) -> None:
    """Sums and greatest values of simdgroups, then of the workgroup."""
    graph = Graph("rows")
    x = graph.input("x", (3, 5000))
    graph.output(ops.softmax(x, axis=-1), ops.argmax(x, axis=1), ops.reduce_max(x, axis=1))
    given = np.random.default_rng(0).standard_normal((3, 5000)).astype(np.float32)
    softmax, place, greatest = program(graph).bind({})([given])
    powers = np.exp(given - given.max(1, keepdims=True), dtype=np.float64)
    np.testing.assert_allclose(softmax, powers / powers.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(place, given.argmax(1))
    np.testing.assert_array_equal(greatest, given.max(1))


def test_states_pipelines_and_profiles(metal: Noted) -> None:
    states = rlx.Session("apple-gpu").compile(cache())
    for trip in range(3):
        given = {"rows": np.full((2, 3), trip + 1, np.float32), "at": np.array(2 * trip)}
        np.testing.assert_array_equal(states.run(given)[0], np.full(3, (trip + 1) * (trip + 2), np.float32))

    compiled = rlx.Session("apple-gpu").compile(dense())
    compiled.set_params({"w": W, "bias": BIAS})
    queued = [compiled.run_pipelined([x_of(rows)]) for rows in (3, 4, 3, 4)]
    for rows, run in zip((3, 4, 3, 4), queued):
        np.testing.assert_array_equal(run.result()[0], expected(x_of(rows))[0])

    timed = program(options=Options(cache=False, profile=True)).bind({"n": 3})
    timed([x_of(3)])
    times = timed.profile([x_of(3)])
    assert times and all(time.calls == 1 and time.total_ns > 0 for time in times)


def test_loops(metal: Noted) -> None:
    bound = program(doubling()).bind({})
    for start, end in ((3.0, 192.0), (200.0, 200.0), (7.0, 112.0)):
        (result,) = bound([np.array([1, start, 0], np.float32)])
        np.testing.assert_array_equal(result, np.array([end / start, end, 0], np.float32))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    total, rows = program(recurrent()).bind({"n": 4})([x])
    np.testing.assert_array_equal(total, x.sum(0))
    np.testing.assert_array_equal(rows, np.cumsum(x, 0) * 2)


def test_arrays_stay_on_the_device(metal: Noted) -> None:
    """No other library gets their memory."""
    executable = program()
    y = executable.bind({"n": 3}).deliver_to(["device", "nowhere"], [x_of(3)])[0]
    np.testing.assert_array_equal(y.numpy(), expected(x_of(3))[0])
    np.testing.assert_array_equal(y.copy().read((1,)), expected(x_of(3))[0][1])
    y.start_reading()
    np.testing.assert_array_equal(y.numpy(), expected(x_of(3))[0])
    np.testing.assert_array_equal(np.from_dlpack(y, device="cpu"), expected(x_of(3))[0])
    with pytest.raises(BufferError, match="memory that other libraries take, got apple-gpu"):
        y.__dlpack__()
    assert not hasattr(y, "__cuda_array_interface__")
    x = executable.put("x", x_of(4))
    np.testing.assert_array_equal(executable.bind({"n": 4})([x])[0], expected(x_of(4))[0])


def test_arrays_without_elements(metal: Noted) -> None:
    results = program().bind({"n": 0})([x_of(0)])
    assert [result.shape for result in results] == [(0, 4), (0, 4)]


def test_a_kernel_of_many_operands(metal: Noted) -> None:
    graph = Graph("sum")
    inputs = [graph.input(f"x{number}", ("n", 3)) for number in range(40)]
    total = inputs[0]
    for number, x in enumerate(inputs[1:]):
        total = total + x * float(number)
    graph.output(total)
    arrays = [np.full((2, 3), number + 1, np.float32) for number in range(40)]
    wanted = arrays[0] + sum(number * x for number, x in enumerate(arrays[1:]))
    np.testing.assert_array_equal(program(graph).bind({"n": 2})(arrays)[0], wanted)
    assert any(message.startswith("useResource") for message in metal.messages())


def test_weights_that_are_set_anew(metal: Noted) -> None:
    executable = program()
    bound = executable.bind({"n": 3})
    bound([x_of(3)])
    executable.set_params({"w": -W})
    np.testing.assert_array_equal(bound([x_of(3)])[0], expected(x_of(3), -W)[0])


def test_what_was_made_is_given_back(metal: Noted) -> None:
    """Nobody has objects of a program that is gone, but those of the device."""
    executable = program()
    opened = executable.device
    bound = executable.bind({"n": 3})
    for seed in range(3):
        bound([x_of(3, seed)])
    assert metal.count("pipeline") and metal.count("buffer")
    del executable, bound
    gc.collect()
    opened.free_bytes()
    for kind in ("pipeline", "function", "library", "buffer", "options", "string", "error", "computeEncoder"):
        assert metal.count(kind) == 0, kind
    assert metal.count("commandBuffer") <= 1 and metal.count("queue") == metal.count("device") == 1


def test_a_failed_run_is_told_and_gone_on_from(metal: Noted) -> None:
    executable = program()
    bound = executable.bind({"n": 3})
    metal.fail("run", PAGE_FAULT, "Caused GPU Address Fault Error")
    with pytest.raises(DeviceLost, match=r"Noted GPU to go on, got .*Caused GPU Address Fault Error \(719\)"):
        bound([x_of(3)])
    np.testing.assert_array_equal(bound([x_of(3)])[0], expected(x_of(3))[0])
    metal.fail("run", NO_MEMORY, "Insufficient Memory")
    with pytest.raises(OutOfMemory, match="Insufficient Memory"):
        bound([x_of(3)])
    np.testing.assert_array_equal(bound([x_of(3)])[0], expected(x_of(3))[0])
    devices = rlx.GraphDevices(dense(), rlx.DevicePolicy().only("apple-gpu", "cpu"))
    devices.set_params({"w": W, "bias": BIAS})
    metal.fail("run", PAGE_FAULT, "Caused GPU Address Fault Error")
    ran, results = devices.run_chain([x_of(3)], ["apple-gpu", "cpu"])
    assert str(ran) == "cpu"
    np.testing.assert_array_equal(results[0], expected(x_of(3))[0])


def test_memory_that_runs_out(metal: Noted) -> None:
    executable = program()
    metal.fail("newBufferWithLength:options:")
    np.testing.assert_array_equal(executable.bind({"n": 4})([x_of(4)])[0], expected(x_of(4))[0])
    metal.capacity(1 << 20)
    with pytest.raises(OutOfMemory, match="bytes for the buffers of a run"):
        executable.bind({"n": 1 << 16})([np.zeros((1 << 16, 6), np.float32)])
    np.testing.assert_array_equal(executable.bind({"n": 4})([x_of(4)])[0], expected(x_of(4))[0])


def test_dtypes_are_refused_by_name(metal: Noted) -> None:
    for dtype, reason in (("f64", "Metal has no f64"), ("c64", "kernels in MSL have no complex numbers")):
        graph = Graph("refused")
        graph.output(graph.input("x", (3,), dtype) * 2)
        assert reason in {each.reason for each in AppleGpuBackend().unsupported(graph)}
        with pytest.raises(UnsupportedOp, match=rf"\[apple-gpu\] .*{reason}"):
            AppleGpuBackend().compile(graph, Options(cache=False))


def test_the_child_of_a_fork_is_told(metal: Noted, monkeypatch: pytest.MonkeyPatch) -> None:
    device.open_device(0, EmulatedMetal)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(DeviceUnavailable, match="Metal survives no fork"):
        device.open_device(0, EmulatedMetal)


def test_it_is_never_chosen_by_itself(metal: Noted) -> None:
    assert not rlx.why_unavailable("apple-gpu") and AppleGpuBackend().unified_memory()
    why = rlx.DevicePolicy().why_refused(rlx.Device("apple-gpu"))
    assert "have run on no GPU yet" in why
    assert not rlx.DevicePolicy().why_refused(rlx.Device("apple-gpu"), named=True)
