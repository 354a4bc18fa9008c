"""Whole programs on the device `rocm`, whose driver works on the processor, with wavefronts of 64 and of 32 lanes."""

from __future__ import annotations

import os

import numpy as np
import pytest

import rlx
from backends.cuda.graphs import BIAS, W, cache, dense, doubling, expected, x_of
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda import device
from rlx.backends.cuda.arrays import CudaArray
from rlx.backends.cuda.driver import OUT_OF_MEMORY
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.rocm import RocmBackend
from rlx.errors import DeviceLost, DeviceUnavailable, OutOfMemory, UnsupportedOp
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph

from .conftest import EmulatedHip

ILLEGAL_ADDRESS = 700
ROCM_DLPACK = 10


def program(graph: Graph | None = None, options: Options | None = None) -> CudaExecutable:
    executable = RocmBackend().compile(graph or dense(), options or Options(cache=False))
    assert isinstance(executable, CudaExecutable)
    executable.set_params({"w": W, "bias": BIAS} if graph is None else graph.data)
    return executable


def test_a_graph_runs_by_name(driver: EmulatedHip) -> None:
    compiled = rlx.Session("rocm").compile(dense())
    compiled.set_params({"w": W, "bias": BIAS})
    for rows in (3, 5):
        for result, wanted in zip(compiled.run([x_of(rows)]), expected(x_of(rows))):
            np.testing.assert_array_equal(result, wanted)
    assert str(compiled.device) == "rocm"
    with pytest.raises(DeviceUnavailable, match="ordinal below 1, got 1"):
        rlx.Session("rocm:1")


def test_rows_that_lanes_share(driver: EmulatedHip) -> None:
    """Sums and greatest values of wavefronts, then of the workgroup."""
    graph = Graph("rows")
    x = graph.input("x", (3, 5000))
    graph.output(ops.softmax(x, axis=-1), ops.argmax(x, axis=1), ops.reduce_max(x, axis=1))
    given = np.random.default_rng(0).standard_normal((3, 5000)).astype(np.float32)
    softmax, place, greatest = program(graph).bind({})([given])
    powers = np.exp(given - given.max(1, keepdims=True), dtype=np.float64)
    np.testing.assert_allclose(softmax, powers / powers.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(place, given.argmax(1))
    np.testing.assert_array_equal(greatest, given.max(1))


@pytest.mark.parametrize("calibrated", [False, True])
def test_products_of_floats_of_8_bits_by_way_of_f32(driver: EmulatedHip, calibrated: bool) -> None:
    """Four of them a word: the reference's numbers, but for steps where rounding meets a tie."""
    graph = Graph("net")
    x = graph.input("x", ("n", 64))
    for name, shape in (("w", (64, 96)), ("v", (96, 24))):
        data = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
        x = ops.gelu(x @ graph.param(name, shape, "f32", data=data) * 0.125)
    graph.output(x, name="y")
    given = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    given[3], given[4, 7] = 0, np.nan
    calibration = [[np.nan_to_num(given)]] if calibrated else None
    made, wanted = (
        rlx.Session(device, precision="f8", calibration=calibration).compile(graph).run([given])[0]
        for device in ("rocm", "reference")
    )
    assert np.isnan(made[4]).all() and np.abs(made[:4] - wanted[:4]).max() <= 0.03 * np.abs(wanted[:4]).max()


def test_states_pipelines_and_profiles(driver: EmulatedHip) -> None:
    states = rlx.Session("rocm").compile(cache())
    for trip in range(3):
        given = {"rows": np.full((2, 3), trip + 1, np.float32), "at": np.array(2 * trip)}
        np.testing.assert_array_equal(states.run(given)[0], np.full(3, (trip + 1) * (trip + 2), np.float32))

    compiled = rlx.Session("rocm").compile(dense())
    compiled.set_params({"w": W, "bias": BIAS})
    queued = [compiled.run_pipelined([x_of(rows)]) for rows in (3, 4)]
    for rows, run in zip((3, 4), queued):
        np.testing.assert_array_equal(run.result()[0], expected(x_of(rows))[0])

    timed = program(options=Options(cache=False, profile=True)).bind({"n": 3})
    timed([x_of(3)])
    with driver.counted() as calls:
        times = timed.profile([x_of(3)])
    assert all(time.calls == 1 and time.total_ns > 0 for time in times) and "begin_capture" not in calls


def test_loops_that_data_end(driver: EmulatedHip) -> None:
    bound = program(doubling()).bind({})
    for start, end in ((3.0, 192.0), (200.0, 200.0), (7.0, 112.0)):
        (result,) = bound([np.array([1, start, 0], np.float32)])
        np.testing.assert_array_equal(result, np.array([end / start, end, 0], np.float32))


def test_arrays_say_that_they_are_on_rocm(driver: EmulatedHip) -> None:
    y = program().bind({"n": 3}).deliver_to(["device", "nowhere"], [x_of(3)])[0]
    assert y.__dlpack_device__() == (ROCM_DLPACK, 0) and y.device == "rocm"
    with driver.counted() as calls:
        assert y.__dlpack__(stream=None)
    assert calls.count("wait") == 1  # the stream that has no name is 0 here
    np.testing.assert_array_equal(y.numpy(), expected(x_of(3))[0])


def test_failures_are_told_and_gone_on_from(driver: EmulatedHip) -> None:
    executable = program()
    bound = executable.bind({"n": 3})
    driver.fail("synchronise", ILLEGAL_ADDRESS)
    with pytest.raises(DeviceLost, match="Emulated to go on"):
        bound([x_of(3)])
    np.testing.assert_array_equal(bound([x_of(3)])[0], expected(x_of(3))[0])
    driver.fail("allocate", OUT_OF_MEMORY)
    np.testing.assert_array_equal(executable.bind({"n": 4})([x_of(4)])[0], expected(x_of(4))[0])
    driver.capacity = driver.used
    with pytest.raises(OutOfMemory, match="bytes for the buffers of a run"):
        executable.bind({"n": 1 << 16})([np.zeros((1 << 16, 6), np.float32)])
    devices = rlx.GraphDevices(dense(), rlx.DevicePolicy().only("rocm", "cpu"))
    devices.set_params({"w": W, "bias": BIAS})
    ran, results = devices.run_chain([x_of(3)], ["rocm", "cpu"])
    assert str(ran) == "cpu"
    np.testing.assert_array_equal(results[0], expected(x_of(3))[0])


def test_a_launch_has_fewer_lanes_than_a_word_counts(driver: EmulatedHip) -> None:
    graph = Graph("large")
    graph.output(ops.exp(graph.input("x", ("n",), "f16")))
    with pytest.raises(UnsupportedOp, match=r"expected at most 67108863 blocks, got 67108864 for \{'n': 4294967296\}"):
        launched(program(graph), 1 << 32)
    launched(program(graph), (1 << 32) - 64)


def launched(executable: CudaExecutable, n: int) -> None:
    """The launches of a run that has one input and one output, whose memory is not asked for."""
    from rlx.backends.cuda.launches import launches
    from rlx.backends.cuda.moving import Sizes
    from rlx.backends.simt_unroll import Unroller

    program = executable.plan.program
    starts = dict.fromkeys((*program.inputs, *program.outputs), 0)
    started = Unroller(program, starts, {"n": n}, lambda dtype: dtype.itemsize).go(program.main)
    assert launches(executable.plan, executable.functions, started, Sizes({"n": n}))


def test_complex_numbers_are_refused_by_name(driver: EmulatedHip) -> None:
    graph = Graph("complex")
    graph.output(graph.input("x", (3,), "c64") * 2)
    assert {each.reason for each in RocmBackend().unsupported(graph)} == {"kernels in C++ have no complex numbers"}
    with pytest.raises(UnsupportedOp, match=r"\[rocm\] "):
        RocmBackend().compile(graph, Options(cache=False))


def test_the_child_of_a_fork_is_told(driver: EmulatedHip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(DeviceUnavailable, match="HIP survives no fork"):
        device.open_device(0, EmulatedHip)


def test_code_of_both_makers_is_kept_apart(driver: EmulatedHip) -> None:
    from rlx.backends.cuda import cubins

    assert cubins.key_of(driver, "gfx90a", "text").startswith("rocm-")


def test_dtypes_of_arrays(driver: EmulatedHip) -> None:
    array = CudaArray.of_host(device.open_device(0, EmulatedHip), np.arange(3, dtype=np.float32))
    assert array.of is dtypes.f32 and array.copy().numpy().tolist() == [0, 1, 2]
