"""What fails in the driver: errors that say what of, and programs, chains and processes that go on."""

from __future__ import annotations

import os

import numpy as np
import pytest

import rlx
from rlx.backends.cuda import device
from rlx.backends.cuda.arrays import CudaArray
from rlx.backends.cuda.driver import OUT_OF_MEMORY
from rlx.errors import DeviceLost, DeviceUnavailable, DriverError, OutOfMemory
from rlx.ir import dtype as dtypes

from .emulated_driver import ILLEGAL_ADDRESS, EmulatedDriver
from .graphs import BIAS, W, dense, expected, ready, settle, x_of

INVALID = 1


def test_a_run_without_memory_says_of_what(driver: EmulatedDriver) -> None:
    executable = ready()
    small = executable.bind({"n": 3})
    small([x_of(3)])
    large = executable.bind({"n": 1 << 23})
    with pytest.raises(OutOfMemory, match=rf"{large.nbytes} bytes for the buffers of a run at .*8388608.* on Emulated"):
        large([np.zeros((1 << 23, 6), np.float32)])
    np.testing.assert_array_equal(small([x_of(3)])[0], expected(x_of(3))[0])


def test_weights_without_memory_are_named(driver: EmulatedDriver) -> None:
    driver.capacity = 128
    with pytest.raises(OutOfMemory, match=r"bytes for the weight 'w'|bytes for the weight 'bias'"):
        ready().bind({"n": 3})([x_of(3)])


def test_memory_in_the_pool_is_given_back_before_none_is_there(driver: EmulatedDriver) -> None:
    executable = ready()
    bound = executable.bind({"n": 3})
    bound([x_of(3)])
    driver.fail("allocate", OUT_OF_MEMORY)
    with driver.counted() as calls:
        y = bound.deliver_to(["device", "nowhere"], [x_of(3)])[0]
    assert calls[calls.index("allocate") :][:4] == ["allocate", "synchronise", "trim", "allocate"]
    np.testing.assert_array_equal(y.numpy(), expected(x_of(3))[0])


@pytest.mark.parametrize("call", ["launch", "copy_in", "copy_out", "synchronise", "begin_capture", "replay"])
def test_an_error_ends_the_run_alone(call: str, driver: EmulatedDriver) -> None:
    executable = ready()
    bound = executable.bind({"n": 3})
    for run in range(3):
        driver.fail(call, INVALID)
        try:
            bound([x_of(3, run)])
        except DriverError as error:
            assert call in str(error) and not isinstance(error, DeviceLost)
        driver._failures.clear()
        np.testing.assert_array_equal(bound([x_of(3, run)])[0], expected(x_of(3, run))[0])
    assert not executable.device.lost


@pytest.mark.parametrize("call", ["launch", "copy_in", "synchronise", "allocate"])
def test_a_lost_device_is_opened_anew(call: str, driver: EmulatedDriver) -> None:
    """By the next run, to which weights come from the host again; another program finds it open."""
    executable = ready()
    bound = executable.bind({"n": 3})
    driver.fail(call, ILLEGAL_ADDRESS)
    with pytest.raises(DeviceLost, match=f"Emulated to go on, got {call} gave"):
        bound([x_of(3)])
    assert driver.broken
    np.testing.assert_array_equal(bound([x_of(3)])[0], expected(x_of(3))[0])
    assert driver.calls.count("reset") == 1
    np.testing.assert_array_equal(ready().bind({"n": 2})([x_of(2)])[0], expected(x_of(2))[0])
    assert driver.calls.count("reset") == 1


def test_a_kernel_that_reads_what_is_no_memory_loses_the_device(driver: EmulatedDriver) -> None:
    executable = ready()
    bound = executable.bind({"n": 3})
    bound([x_of(3)])
    settle(executable)
    for pointer in list(driver.blocks):
        del driver.blocks[pointer]
    with pytest.raises(DeviceLost, match="ILLEGAL_ADDRESS"):
        bound([x_of(3)])
    np.testing.assert_array_equal(bound([x_of(3)])[0], expected(x_of(3))[0])


def test_arrays_of_a_lost_device_are_lost(driver: EmulatedDriver) -> None:
    executable = ready()
    bound = executable.bind({"n": 3})
    y = bound.deliver_to(["device", "nowhere"], [x_of(3)])[0]
    driver.fail("synchronise", ILLEGAL_ADDRESS)
    with pytest.raises(DeviceLost):
        bound([x_of(3)])
    with pytest.raises(DeviceLost):
        y.numpy()
    with pytest.raises(DeviceLost):
        executable.bind({"n": 3})([CudaArray(y.owner, dtypes.f32, (3, 6), y.memory)])


def test_a_device_that_does_not_come_back_is_unavailable(driver: EmulatedDriver) -> None:
    bound = ready().bind({"n": 3})
    driver.fail("synchronise", ILLEGAL_ADDRESS)
    with pytest.raises(DeviceLost):
        bound([x_of(3)])
    driver.fail("open", ILLEGAL_ADDRESS)
    with pytest.raises(DeviceUnavailable, match="does not open"):
        bound([x_of(3)])


def test_a_chain_goes_on_without_a_lost_device(driver: EmulatedDriver) -> None:
    devices = rlx.GraphDevices(dense(), rlx.DevicePolicy().only("cuda", "cpu"))
    devices.set_params({"w": W, "bias": BIAS})
    ran, results = devices.run_chain([x_of(3)], ["cuda", "cpu"])
    assert str(ran) == "cuda"
    driver.fail("synchronise", ILLEGAL_ADDRESS)
    ran, results = devices.run_chain([x_of(3)], ["cuda", "cpu"])
    assert str(ran) == "cpu"
    np.testing.assert_array_equal(results[0], expected(x_of(3))[0])


def test_ordinals_that_there_are_not(driver: EmulatedDriver) -> None:
    with pytest.raises(DeviceUnavailable, match="ordinal below 1, got 1"):
        rlx.Session("cuda:1")
    with pytest.raises(DeviceUnavailable, match=r"expected cuda:3, got 1 devices"):
        device.open_device(3)


def test_the_child_of_a_fork_is_told(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(DeviceUnavailable, match="CUDA survives no fork"):
        device.open_device(0)
