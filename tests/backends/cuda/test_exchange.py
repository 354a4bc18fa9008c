"""Arrays of other libraries in the memory of a CUDA device, in both directions and without a copy."""

from __future__ import annotations

import ctypes
import gc
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cuda import device, dlpack
from rlx.backends.cuda.arrays import CudaArray, place_of
from rlx.errors import InputError
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array

from .emulated_driver import EmulatedDriver
from .graphs import BIAS, W, dense, expected, ready, x_of
from .torch_tensors import Tensor, Torch, torch_of


class Exporter:
    """An array of another library."""

    def __init__(self, array: CudaArray, ordinal: int = 0, stride: int | None = None) -> None:
        self.array = array
        self.ordinal = ordinal
        self.stride = stride
        self.streams: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.ordinal

    def __dlpack__(self, stream: int) -> Any:
        self.streams.append(stream)
        capsule = dlpack.capsule_of(self.array.of, self.array.shape, self.array.pointer, (2, 0), self)
        if self.stride is not None:
            _tensor(capsule).strides[1] = self.stride
        return capsule


def _tensor(capsule: Any) -> Any:
    return dlpack._Tensor.from_address(dlpack._pointer_of(capsule, dlpack.NAME))


def array_of(values: Array) -> CudaArray:
    array = ready().put("x", values)
    assert isinstance(array, CudaArray)
    return array


ALL = [dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.f8e5m2, dtypes.i64, dtypes.u8, dtypes.bool_]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_capsules_tell_what_an_array_is(dtype: DType, driver: EmulatedDriver) -> None:
    array = array_of(np.zeros((2, 3), dtype.numpy))
    told = dlpack.described(array.__dlpack__())
    assert told == dlpack.Described(dtype, (2, 3), (3, 1), array.pointer)
    assert array.__dlpack_device__() == (2, 0)


def test_a_dtype_of_less_than_a_byte_has_no_capsule(driver: EmulatedDriver) -> None:
    with pytest.raises(BufferError, match="u4"):
        array_of(np.zeros(3, dtypes.u4.numpy)).__dlpack__()


def test_memory_lives_as_long_as_a_capsule_or_its_taker(driver: EmulatedDriver) -> None:
    array = array_of(x_of(3))
    pointer, device = array.pointer, array.owner
    capsule = array.__dlpack__()
    taken = dlpack._Managed.from_address(dlpack._pointer_of(capsule, dlpack.NAME))
    del array

    def is_there() -> bool:
        gc.collect()
        with device.work("run"):
            driver.synchronise(device.stream)
        return pointer in driver.blocks

    assert is_there()
    dlpack.ctypes.pythonapi.PyCapsule_SetName(
        dlpack.ctypes.py_object(capsule), dlpack.ctypes.c_char_p(dlpack.USED_NAME)
    )
    del capsule  # as that of a taker: its array is still there
    assert is_there()
    with driver.counted() as calls:
        taken.deleter(ctypes.byref(taken))
        assert not is_there()
    assert calls.index("synchronise_all") < calls.index("free"), "others may still read it"
    unused = array_of(x_of(3))
    pointer = unused.pointer
    capsule = unused.__dlpack__()
    del unused, capsule
    assert not is_there()


def test_a_taker_waits_on_its_stream(driver: EmulatedDriver) -> None:
    array = array_of(x_of(3))
    for stream, waits in ((None, True), (1, True), (1001, True), (-1, False)):
        with driver.counted() as calls:
            array.__dlpack__(stream=stream)
        assert ("wait" in calls) == waits
    np.testing.assert_array_equal(np.from_dlpack(_Host(array)), x_of(3))
    with pytest.raises(BufferError, match=r"\(2, 5\)"):
        array.__dlpack__(dl_device=(2, 5))
    copied = dlpack.described(array.__dlpack__(copy=True))
    assert copied.pointer != array.pointer


class _Host:
    """Asks for an array on the host."""

    def __init__(self, array: CudaArray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(dl_device=(1, 0))


def test_runs_take_arrays_of_other_libraries(driver: EmulatedDriver) -> None:
    program = rlx.Session("cuda").compile(dense())
    program.set_params({"w": W, "bias": BIAS})
    exporter = Exporter(array_of(x_of(3)))
    program.run([exporter])
    for _ in range(3):
        with driver.counted() as calls:
            results = program.run([exporter])
        np.testing.assert_array_equal(results[0], expected(x_of(3))[0])
        assert not {"copy_in", "copy"} & set(calls)
    assert exporter.streams[0] == driver.stream_number(exporter.array.owner.stream), "its work is waited for"
    with driver.counted() as calls:
        program.run([exporter], "device")
    assert calls[-1] == "synchronise", "its owner may take it back when the run is over"


class Interface:
    """An array by its interface alone."""

    def __init__(self, **facts: Any) -> None:
        self.__cuda_array_interface__ = facts


def test_the_array_interface_goes_both_ways(driver: EmulatedDriver) -> None:
    array = array_of(x_of(3))
    place = array.place
    facts = array.__cuda_array_interface__
    assert (facts["shape"], facts["typestr"], facts["data"][0]) == ((3, 6), "<f4", array.pointer)
    assert array.memory.shared
    adopted = place.adopt(Interface(**facts))
    assert adopted is not None and adopted.pointer == array.pointer
    np.testing.assert_array_equal(adopted.numpy(), x_of(3))
    assert place.adopt(Interface(**{**facts, "strides": (24, 4), "stream": 1})) is not None
    with pytest.raises(InputError, match="without gaps"):
        place.adopt(Interface(**{**facts, "strides": (48, 4)}))
    with pytest.raises(InputError, match="without a mask"):
        place.adopt(Interface(**{**facts, "mask": object()}))
    with pytest.raises(AttributeError, match="bfloat16"):
        _ = array_of(np.zeros(2, dtypes.bf16.numpy)).__cuda_array_interface__


def test_what_lies_elsewhere_or_has_gaps(driver: EmulatedDriver) -> None:
    array = array_of(x_of(3))
    place = array.place
    assert place.adopt(Exporter(array, ordinal=1)) is None and place.adopt(object()) is None
    assert place.adopt(np.zeros(3)) is None
    with pytest.raises(InputError, match="without gaps"):
        place.adopt(Exporter(array, stride=2))
    with pytest.raises(InputError, match="hands over, got Refusing"):
        place.adopt(Refusing())


class Refusing:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, stream: int) -> Any:
        raise BufferError("it wants a gradient")


def test_handles_take_them_too(driver: EmulatedDriver) -> None:
    program = rlx.Session("cuda").compile(dense())
    program.set_params({"w": W, "bias": BIAS})
    program.bind_handle("x", Exporter(array_of(x_of(3))))
    np.testing.assert_array_equal(program.run([])[0], expected(x_of(3))[0])


def test_tensors_of_a_torch_for_other_gpus_are_not_taken_for_ours(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_of(SimpleNamespace(), "hip"))
    given = Tensor(array_of(x_of(3)), "torch.float32", (6, 1))
    assert place_of(device.open_device(0)).adopt(given) is None


def test_tensors_of_torch_wait_for_runs_and_not_the_host(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs wait for what torch's stream was given, and that stream for the run: nobody waits for the device."""
    Torch(monkeypatch, driver.stream_number(driver.stream()))
    program = rlx.Session("cuda").compile(dense())
    program.set_params({"w": W, "bias": BIAS})
    given = Tensor(array_of(x_of(3)), "torch.float32", (6, 1))
    program.run([given], outputs="device")
    with driver.counted() as calls:
        results = program.run([given], outputs="device")
    assert not {"synchronise", "synchronise_all", "wait_for"} & set(calls)
    for result, wanted in zip(results, expected(x_of(3))):
        np.testing.assert_array_equal(np.asarray(result), wanted)
    with pytest.raises(InputError, match="without gaps"):
        program.run([Tensor(array_of(x_of(3)), "torch.float32", (12, 2))])
