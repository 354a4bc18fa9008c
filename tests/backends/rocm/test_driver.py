"""Calls of HIP by ctypes, as a real library gets them: names, arguments, their order, and what comes of failures."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from backends.cuda.graphs import BIAS, W, dense, x_of
from rlx.backends.base import Options
from rlx.backends.cuda.driver import CallError
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.rocm import RocmBackend, hiprtc, libraries
from rlx.backends.rocm.driver import SIGNATURES, HipDriver
from rlx.errors import CompileError, DeviceLost, DeviceUnavailable, DriverError, OutOfMemory

from .conftest import Noted

OUT_OF_MEMORY, NO_DEVICE, NO_BINARY, LAUNCH_FAILURE, UPDATE_FAILURE = 2, 100, 209, 719, 910


def test_every_call_gets_its_arguments(hip: Noted) -> None:
    driver = HipDriver()
    assert hip.calls() == ["hipInit(0)"]
    assert driver.version() == "6.3" and driver.device_count() == 2 and driver.device_name(1) == "Noted 1"
    assert [driver.architecture(i) for i in range(2)] == ["gfx90a:sramecc+:xnack-", "gfx1100"]
    context = driver.open(1)
    driver.enter(context)
    driver.reset(1)
    assert driver.memory() == (1 << 20, 1 << 20)
    assert hip.calls()[-5:] == ["hipSetDevice(1)"] * 3 + ["hipDeviceReset()", "hipMemGetInfo()"]

    stream, plain, timed = driver.stream(), driver.event(), driver.event(timed=True)
    assert stream > 1 << 32 and driver.stream_number(stream) == stream
    driver.record(plain, stream)
    driver.record(timed, driver.api.legacy_stream)
    driver.wait(stream, plain)
    assert driver.is_reached(plain)
    driver.wait_for(plain)
    driver.synchronise(stream)
    driver.synchronise_all()
    assert driver.elapsed_ns(plain, timed) == 250_000
    driver.drop_event(plain)
    assert hip.calls() == [
        "hipStreamCreateWithFlags(1)", "hipEventCreateWithFlags(2)", "hipEventCreateWithFlags(0)",
        f"hipEventRecord({plain:#x}, {stream:#x})", f"hipEventRecord({timed:#x}, 0x0)",
        f"hipStreamWaitEvent({stream:#x}, {plain:#x}, 0)",
        f"hipEventQuery({plain:#x})", f"hipEventSynchronize({plain:#x})",
        f"hipStreamSynchronize({stream:#x})", "hipDeviceSynchronize()",
        f"hipEventElapsedTime({plain:#x}, {timed:#x})", f"hipEventDestroy({plain:#x})",
    ]  # fmt: skip


def test_memory_comes_from_a_pool_that_keeps_it(hip: Noted) -> None:
    driver = HipDriver()
    stream, pool = driver.stream(), driver.pool(1)
    hip.calls()
    first, second = (driver.allocate(64, pool, stream) for _ in range(2))
    pinned = driver.allocate_host(64)
    given = np.arange(16, dtype=np.float32)
    driver.copy_in(first, given.ctypes.data, 64, stream)
    driver.copy(second, first, 64, stream)
    driver.copy_out(pinned, second, 60, stream)
    assert list((ctypes.c_float * 15).from_address(pinned)) == list(range(15))
    driver.free(first, stream)
    driver.free_host(pinned)
    driver.trim(pool)
    at = f"{pool:#x}, {stream:#x}"
    assert hip.calls() == [
        f"hipMallocFromPoolAsync(64, {at})", f"hipMallocFromPoolAsync(64, {at})", "hipHostMalloc(64, 0)",
        f"hipMemcpyHtoDAsync(64, {stream:#x})", f"hipMemcpyDtoDAsync(64, {stream:#x})",
        f"hipMemcpyDtoHAsync(60, {stream:#x})", f"hipFreeAsync({first:#x}, {stream:#x})",
        f"hipHostFree({pinned:#x})", f"hipMemPoolTrimTo({pool:#x}, 0)",
    ]  # fmt: skip


def test_a_pool_is_of_the_devices_own_memory(hip: Noted) -> None:
    driver = HipDriver()
    hip.calls()
    pool = driver.pool(1)
    assert hip.calls() == [
        "hipMemPoolCreate(1, 0, 1, 1, 0x0, 0, 0)", f"hipMemPoolSetAttribute({pool:#x}, 4, {(1 << 64) - 1})"
    ]  # fmt: skip


def test_kernels_and_graphs(hip: Noted) -> None:
    driver = HipDriver()
    stream = driver.stream()
    hip.calls()
    module = driver.load(b"image\7\0more")
    function = driver.function(module, "kernel")
    values = np.array([0x7FFF12345678, -1], np.int64)
    places = values.ctypes.data + 8 * np.arange(2)
    driver.begin_capture(stream)
    driver.launch(function, (1 << 26) - 1, 64, places.ctypes.data, stream)
    graph = driver.end_capture(stream)
    executable = driver.instantiate(graph)
    assert driver.update(executable, graph)
    driver.replay(executable, stream)
    driver.drop_graph(graph)
    driver.drop_executable(executable)
    driver.unload(module)
    assert hip.calls() == [
        "hipModuleLoadData(7)", f"hipModuleGetFunction({module:#x}, kernel)", f"hipStreamBeginCapture({stream:#x}, 2)",
        f"hipModuleLaunchKernel({function:#x}, 67108863, 1, 1, 64, 1, 1, 0, {stream:#x}, 0x7fff12345678, "
        f"{(1 << 64) - 1}, 0x0)",
        f"hipStreamEndCapture({stream:#x})", f"hipGraphInstantiateWithFlags({graph:#x}, 0)",
        f"hipGraphExecUpdate({executable:#x}, {graph:#x})", f"hipGraphLaunch({executable:#x}, {stream:#x})",
        f"hipGraphDestroy({graph:#x})", f"hipGraphExecDestroy({executable:#x})", f"hipModuleUnload({module:#x})",
    ]  # fmt: skip
    hip.fail("hipGraphExecUpdate", UPDATE_FAILURE)
    assert not driver.update(executable, graph)
    hip.fail("hipGraphExecUpdate", OUT_OF_MEMORY)
    with pytest.raises(CallError, match=r"hipGraphExecUpdate gave hipErrorOutOfMemory \(2\)"):
        driver.update(executable, graph)


def test_code_stays_as_long_as_its_module(hip: Noted) -> None:
    driver = HipDriver()
    hip.library.image_of.argtypes, hip.library.image_of.restype = (ctypes.c_void_p,), ctypes.c_void_p
    modules = [driver.load(bytes([number]) * 5000) for number in range(1, 9)]
    for number, module in enumerate(modules, 1):
        assert ctypes.string_at(hip.library.image_of(module), 5000) == bytes([number]) * 5000
    for module in modules:
        driver.unload(module)
    assert not driver._images


def test_all_calls_were_seen(hip: Noted) -> None:
    """No signature is left that no test takes."""
    told = Path(__file__).read_text()
    assert not [name for name in SIGNATURES if name not in told and name not in UNNAMED]


UNNAMED = {"hipRuntimeGetVersion", "hipGetDeviceCount", "hipDeviceGetName", "hipGetDevicePropertiesR0600"}
"""Of which results were looked at."""


def test_texts_go_to_the_compiler_with_the_architecture(hip: Noted) -> None:
    code = HipDriver().compile("text", "gfx90a:sramecc+:xnack-", "add")
    assert code == (
        b"code of add.hip --offload-arch=gfx90a:sramecc+:xnack- -std=c++17 -O3 -ffp-contract=off\ntext"
    )  # fmt: skip
    assert hiprtc.version() == "6.3"
    with pytest.raises(CompileError, match=r"\[rocm\] add.hip for gfx942: add.hip:1: error: wrong"):
        HipDriver().compile("wrong", "gfx942", "add")


# a program on the library: nothing computes, and so results are not looked at


def program() -> CudaExecutable:
    executable = RocmBackend().compile(dense(), Options(cache=False))
    assert isinstance(executable, CudaExecutable)
    executable.set_params({"w": W, "bias": BIAS})
    return executable


def test_runs_are_given_once_then_noted_then_replayed(hip: Noted) -> None:
    bound = program().bind({"n": 3})
    hip.calls()
    runs = []
    for _ in range(3):
        bound([x_of(3)])
        runs.append([n for n in hip.names() if "Memcpy" in n or "Launch" in n or "Capture" in n or "Stream" in n])
    first, second, third = runs
    moves = ["hipMemcpyHtoDAsync", "hipMemcpyDtoHAsync", "hipStreamSynchronize"]
    assert first[-3:] == ["hipModuleLaunchKernel", *moves[1:]] and "hipGraphLaunch" not in first
    assert second[0] == "hipStreamBeginCapture" and second[1] == moves[0]
    assert second[-4:] == [moves[1], "hipStreamEndCapture", "hipGraphLaunch", moves[2]]
    assert third == ["hipGraphLaunch", moves[2]]


def test_memory_that_runs_out_is_named(hip: Noted) -> None:
    executable = program()
    executable.bind({"n": 3})([x_of(3)])
    large = executable.bind({"n": 1 << 16})
    hip.calls()
    with pytest.raises(OutOfMemory, match=r"bytes for the buffers of a run at .* on Noted 0, got \d+ free of 1048576"):
        large([np.zeros((1 << 16, 6), np.float32)])
    asked = [n for n in hip.names() if n in ("hipMallocFromPoolAsync", "hipMemPoolTrimTo")]
    assert asked == ["hipMallocFromPoolAsync", "hipMemPoolTrimTo", "hipMallocFromPoolAsync"]
    executable.bind({"n": 3})([x_of(3)])


def test_a_module_that_does_not_load_is_told(hip: Noted) -> None:
    hip.fail("hipModuleLoadData", NO_BINARY)
    with pytest.raises(
        DriverError, match=r"\[compile\] expected Noted 0 to work, got hipModuleLoadData gave hipErrorNoB"
    ):
        program()
    program().bind({"n": 3})([x_of(3)])


def test_a_launch_that_faults_loses_the_device_which_is_opened_anew(hip: Noted) -> None:
    bound = program().bind({"n": 3})
    hip.fail("hipModuleLaunchKernel", LAUNCH_FAILURE)
    with pytest.raises(DeviceLost, match=r"hipModuleLaunchKernel gave hipErrorLaunchFailure \(719\)"):
        bound([x_of(3)])
    hip.calls()
    bound([x_of(3)])
    names = hip.names()
    assert names.index("hipDeviceReset") < names.index("hipMemPoolCreate") < names.index("hipModuleLoadData")


def test_no_device_is_told_by_name(hip: Noted) -> None:
    hip.fail("hipInit", NO_DEVICE)
    with pytest.raises(DeviceUnavailable, match=r"HIP does not start: hipInit gave hipErrorNoDevice \(100\)"):
        program()
    with pytest.raises(DeviceUnavailable, match=r"expected rocm:5, got 2 devices of HIP"):
        RocmBackend().compile(dense(), Options(cache=False), ordinal=5)


def test_a_library_without_a_call_is_too_old(rocm: Path) -> None:
    source = rocm / "old.c"
    source.write_text("int hipInit(unsigned flags) { return 0; }")
    for name in (libraries.HIP, libraries.COMPILER):
        subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", str(source), "-o", str(rocm / f"{name}.6")], check=True)
    with pytest.raises(DeviceUnavailable, match=r"libamdhip64.so has no hipRuntimeGetVersion: install ROCm 6 or newer"):
        HipDriver()


def test_a_library_that_does_not_load_is_told(rocm: Path) -> None:
    (rocm / f"{libraries.HIP}.6").write_text("nothing")
    with pytest.raises(DeviceUnavailable, match=r"libamdhip64.so.6 does not load"):
        HipDriver()


def test_the_backend_tells_what_its_code_hangs_on(hip: Noted) -> None:
    assert RocmBackend().identity(1) == {
        "device": "Noted 1", "architecture": "gfx1100", "driver": "6.3",
        "compiler": "hiprtc 6.3 -std=c++17 -O3 -ffp-contract=off",
    }  # fmt: skip
