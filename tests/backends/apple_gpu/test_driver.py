"""Messages of the driver as macOS gets them: names, arguments, order, who has what, and what comes of failures."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

from backends.cuda.graphs import dense
from rlx.backends.apple_gpu import AppleGpuBackend
from rlx.backends.apple_gpu.build import APPLES
from rlx.backends.apple_gpu.commands import MOST_LAUNCHES
from rlx.backends.apple_gpu.driver import MetalDriver, Pipeline, parameters_of
from rlx.backends.apple_gpu.objective_c import SIGNATURES
from rlx.backends.base import Options
from rlx.backends.cuda.build import build
from rlx.backends.cuda.driver import CallError
from rlx.errors import CompileError, DriverError

from .conftest import SOURCE, Noted

OUT_OF_MEMORY, LAUNCH_FAILURE = 2, 719
TEXT = """[[max_total_threads_per_threadgroup(64)]] kernel void
copies(device float* slot0 [[buffer(0)]], const device float* a [[buffer(1)]], constant Record<3>& r [[buffer(2)]]) {
}
"""
RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p))


def words_at(pointer: Any, count: int) -> list[int]:
    """Words of 64 bits that something points to."""
    return list((ctypes.c_uint64 * count).from_address(ctypes.addressof(pointer.contents)))


def word_at(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def opened() -> MetalDriver:
    driver = MetalDriver()
    driver.enter(driver.open(0))
    return driver


def arguments_of(*pointers: int, numbers: tuple[int, ...] = (1, 2, 3)) -> tuple[int, tuple[np.ndarray, np.ndarray]]:
    """Where places of arguments are, and what holds them."""
    values = np.array([*pointers, *numbers], np.int64)
    places = values.ctypes.data + 8 * np.arange(len(pointers) + 1)
    return int(places.ctypes.data), (values, places)


def test_what_the_device_is(noted: Noted) -> None:
    driver = opened()
    assert driver.device_count() == 1 and driver.device_name(0) == driver.architecture(0) == "Noted GPU"
    assert driver.memory() == (1 << 26, 1 << 26) and not driver.overlaps(0) and not driver.captures
    assert noted.messages() == ["MTLCreateSystemDefaultDevice", "newCommandQueue"]
    assert noted.count("string") == 0 and noted.count("device") == noted.count("queue") == 1


def test_memory_is_the_processors_too(noted: Noted) -> None:
    driver = opened()
    stream, pool = driver.stream(), driver.pool(0)
    first, second = (driver.allocate(64, pool, stream) for _ in range(2))
    pinned = driver.allocate_host(61)
    noted.messages()
    given = np.arange(16, dtype=np.float32)
    driver.copy_in(first, given.ctypes.data, 64, stream)
    driver.copy(second, first, 64, stream)
    driver.copy_out(pinned, second, 60, stream)
    assert list((ctypes.c_float * 15).from_address(pinned)) == list(range(15))
    assert noted.messages() == []  # the device has nothing to do, and so the processor copies
    driver.free(first, stream)
    assert driver.allocate(64, pool, stream) == first and driver.allocate(32, pool, stream) not in (first, second)
    assert noted.messages() == ["newBufferWithLength:options: 32 0"]
    driver.free(first, stream)
    driver.free_host(pinned)
    assert noted.count("buffer") == 3
    driver.trim(pool)
    assert noted.count("buffer") == 2
    driver.reset(0)
    assert noted.count("buffer") == noted.count("queue") == 0


def test_kernels_and_copies_are_in_order(noted: Noted) -> None:
    """A kernel, copies behind it, and another kernel; nothing is done before somebody waits."""
    driver = opened()
    stream, pool = driver.stream(), driver.pool(0)
    module = driver.load(driver.compile(TEXT, driver.architecture(0), "copies"))
    function = driver.function(module, "copies")
    assert (function.pointers, function.numbers) == (2, 3)
    assert noted.messages()[2:] == [
        "setFastMathEnabled: 0", "setLanguageVersion: 196608", "newLibraryWithSource:options:error: options",
        "newFunctionWithName: copies", "newComputePipelineStateWithFunction:error: copies",
    ]  # fmt: skip
    ran: list[tuple[int, ...]] = []

    def run(lanes: int, blocks: int, given: Any) -> int:
        to, of, record = words_at(given, 3)
        numbers = (ctypes.c_long * 3).from_address(record)
        ctypes.memmove(word_at(to), word_at(of), 8)
        ran.append((lanes, blocks, *numbers))
        return 0

    called = RUN(run)
    noted.library.set_kernel(b"copies", ctypes.cast(called, ctypes.c_void_p))
    first, second, host = (
        driver.allocate(256, pool, stream),
        driver.allocate(256, pool, stream),
        driver.allocate_host(8),
    )
    given = np.array([1.5, 2.5], np.float32)
    driver.copy_in(first + 64, given.ctypes.data, 8, stream)
    noted.messages()
    place, held = arguments_of(second + 32, first + 64)
    driver.launch(function, (1 << 26) - 1, 64, place, stream)
    held[0][2:] = 0  # the numbers were taken
    driver.copy_out(host, second + 32, 8, stream)
    driver.copy_in(first + 64, host, 8, stream)
    place, held = arguments_of(second, first + 64, numbers=(-1, 1 << 40, 0))
    driver.launch(function, 2, 64, place, stream)
    assert not ran
    driver.synchronise(stream)
    assert ran == [(64, (1 << 26) - 1, 1, 2, 3), (64, 2, -1, 1 << 40, 0)]
    assert (
        list((ctypes.c_float * 2).from_address(second)) == list((ctypes.c_float * 2).from_address(host)) == [1.5, 2.5]
    )
    kernel = ["setComputePipelineState: copies", "setBuffer:offset:atIndex: 32 0", "setBuffer:offset:atIndex: 64 1",
              "setBytes:length:atIndex: 24 2"]  # fmt: skip
    dispatch, copies = "dispatchThreadgroups:threadsPerThreadgroup: ", "copyFromBuffer:sourceOffset:toBuffer:"
    copies += "destinationOffset:size: "
    assert noted.messages() == [
        "commandBuffer", "computeCommandEncoder", *kernel, f"{dispatch}67108863x1x1 64x1x1", "endEncoding",
        "blitCommandEncoder", f"{copies}32 0 8", f"{copies}0 64 8", "endEncoding",
        "computeCommandEncoder", kernel[0], "setBuffer:offset:atIndex: 0 0", *kernel[2:], f"{dispatch}2x1x1 64x1x1",
        "endEncoding", "commit", "waitUntilCompleted",
    ]  # fmt: skip
    driver.unload(module)
    assert noted.count("library") == noted.count("function") == noted.count("pipeline") == 0


def test_copies_that_the_device_cannot_make(noted: Noted) -> None:
    """Those of no whole words, and of memory that is the processor's alone, wait for what was given before."""
    driver = opened()
    stream, pool = driver.stream(), driver.pool(0)
    first, host = driver.allocate(256, pool, stream), driver.allocate_host(256)
    given = np.arange(64, dtype=np.float32)
    for target, source, nbytes in ((first, host, 7), (first + 1, host, 4), (first, given.ctypes.data, 256)):
        busy(driver, stream)
        noted.messages()
        driver.copy_in(target, source, nbytes, stream)
        assert noted.messages()[-1] == "waitUntilCompleted"
    np.testing.assert_array_equal((ctypes.c_float * 64).from_address(first), given)


def busy(driver: MetalDriver, stream: object) -> None:
    """Has the device do something."""
    module = driver.load(TEXT.encode())
    function = driver.function(module, "copies")
    place = driver.allocate(64, driver.pool(0), stream)
    launched(driver, function, place, place)


def launched(driver: MetalDriver, function: Pipeline, *pointers: int) -> None:
    """Gives the device a workgroup."""
    arguments, held = arguments_of(*pointers)
    driver.launch(function, 1, 64, arguments, 1)
    assert held[0].size == len(pointers) + 3


def test_events_are_behind_what_was_given(noted: Noted) -> None:
    driver = opened()
    stream, other = driver.stream(), driver.stream()
    assert driver.stream_number(stream) != driver.stream_number(other) != driver.api.legacy_stream
    event, untouched = driver.event(), driver.event()
    driver.record(untouched, stream)
    assert driver.is_reached(untouched)
    busy(driver, stream)
    driver.record(event, stream)
    driver.wait(other, event)
    assert "commit" not in noted.messages()
    assert not driver.is_reached(event) and noted.messages() == ["endEncoding", "commit"]
    while not driver.is_reached(event):
        pass
    busy(driver, stream)
    driver.record(event, stream)
    driver.wait(driver.api.legacy_stream, event)  # by the host
    assert noted.messages()[-2:] == ["commit", "waitUntilCompleted"] and driver.is_reached(event)
    driver.drop_event(event)

    first, last = driver.event(timed=True), driver.event(timed=True)
    driver.record(first, stream)
    busy(driver, stream)
    driver.record(last, stream)
    assert driver.elapsed_ns(first, last) == -driver.elapsed_ns(last, first) > 0
    driver.submit(stream)
    driver.synchronise_all()


def test_the_device_begins_before_all_is_written(noted: Noted) -> None:
    driver = opened()
    stream = driver.stream()
    module = driver.load(TEXT.encode())
    function = driver.function(module, "copies")
    place = driver.allocate(64, driver.pool(0), stream)
    arguments, held = arguments_of(place, place)
    for _ in range(MOST_LAUNCHES + 1):
        driver.launch(function, 1, 64, arguments, stream)
    assert noted.messages().count("commit") == 1 and held[0][0] == place
    driver.submit(stream)
    driver.submit(stream)
    assert noted.messages() == ["endEncoding", "commit"]
    driver.synchronise(stream)
    gc.collect()
    assert noted.count("commandBuffer") == 1


def test_numbers_that_commands_do_not_hold(noted: Noted) -> None:
    driver = opened()
    stream = driver.stream()
    place = driver.allocate(64, driver.pool(0), stream)
    module = driver.load(TEXT.encode())
    function = driver.function(module, "copies")
    arguments, held = arguments_of(place, place, numbers=tuple(range(513)))
    driver.launch(Pipeline(function.handle, 2, 513, 2), 1, 64, arguments, stream)
    assert held[0].size == 515
    assert noted.messages()[-3:-1] == ["newBufferWithBytes:length:options: 4104 0", "setBuffer:offset:atIndex: 0 2"]
    assert noted.count("buffer") == 2  # the commands keep it
    driver.synchronise(stream)
    assert noted.count("buffer") == 1
    noted.fail("newBufferWithBytes:length:options:")
    with pytest.raises(CallError, match=r"newBufferWithBytes gave OUT_OF_MEMORY \(2\)"):
        driver.launch(Pipeline(function.handle, 2, 513, 2), 1, 64, arguments, stream)


def test_operands_for_which_no_buffer_is_left(noted: Noted) -> None:
    """Their places are in one buffer, and the device is told that their memory is used."""
    driver = opened()
    stream, pool = driver.stream(), driver.pool(0)
    first, second = driver.allocate(64, pool, stream), driver.allocate(64, pool, stream)
    module = driver.load(TEXT.encode())
    function = driver.function(module, "copies")
    ran: list[tuple[int, ...]] = []

    def run(lanes: int, blocks: int, given: Any) -> int:
        near, far, record = words_at(given, 3)
        places, numbers = (ctypes.c_uint64 * 2).from_address(far), (ctypes.c_long * 3).from_address(record)
        ran.append((word_at(near), *places, *numbers))
        return 0

    called = RUN(run)
    noted.library.set_kernel(b"copies", ctypes.cast(called, ctypes.c_void_p))
    noted.messages()
    arguments, held = arguments_of(first, second + 16, first + 8)
    driver.launch(Pipeline(function.handle, 3, 3, 1), 1, 64, arguments, stream)
    driver.synchronise(stream)
    assert ran == [(first, second + 16, first + 8, 1, 2, 3)] and held[0].size == 6
    assert noted.messages()[2:8] == [
        "setComputePipelineState: copies", "setBuffer:offset:atIndex: 0 0", "useResource:usage: 3",
        "useResource:usage: 3", "setBytes:length:atIndex: 16 1", "setBytes:length:atIndex: 24 2",
    ]  # fmt: skip


def test_memory_that_is_none_is_told(noted: Noted) -> None:
    driver = opened()
    stream = driver.stream()
    module = driver.load(TEXT.encode())
    function = driver.function(module, "copies")
    place = driver.allocate(64, driver.pool(0), stream)
    for pointer in (place + 65, 8):
        with pytest.raises(CallError, match=rf"no memory of the device at {pointer:#x} \(700\)"):
            launched(driver, function, pointer, place)
    launched(driver, function, place + 64, place)  # an array without elements
    noted.capacity(128)
    with pytest.raises(CallError, match=r"newBufferWithLength gave OUT_OF_MEMORY \(2\)") as caught:
        driver.allocate(65, driver.pool(0), stream)
    assert caught.value.code == OUT_OF_MEMORY
    driver.synchronise(stream)


def test_texts_that_do_not_compile(noted: Noted) -> None:
    driver = opened()
    noted.fail("newLibraryWithSource:options:error:", 3, "program_source:12:3: error: use of undeclared identifier 'x'")
    with pytest.raises(CompileError, match=r"\[apple-gpu\] copies: program_source:12:3: error: use of undeclared"):
        driver.compile(TEXT, "Noted GPU", "copies")
    code = driver.compile(TEXT, "Noted GPU", "copies")
    assert driver.compile(TEXT, "Noted GPU", "copies") == code == TEXT.encode() and noted.count("library") == 1
    module = driver.load(code)
    with pytest.raises(CallError, match="newFunctionWithName gave no function others"):
        driver.function(module, "others")
    noted.fail("newComputePipelineStateWithFunction:error:", 2, "Compute function exceeds available stack space")
    with pytest.raises(CallError, match=r"newComputePipelineStateWithFunction gave .*exceeds available stack space"):
        driver.function(module, "copies")
    driver.unload(module)
    for kind in ("library", "function", "pipeline", "options", "string", "error"):
        assert noted.count(kind) == 0, kind


def test_a_failure_is_told_once_and_by_events_again(noted: Noted) -> None:
    driver = opened()
    stream, event = driver.stream(), driver.event()
    busy(driver, stream)
    driver.record(event, stream)
    noted.fail("run", 2, "Caused GPU Timeout Error")
    with pytest.raises(CallError, match=r"waitUntilCompleted gave Caused GPU Timeout Error \(719\)"):
        driver.synchronise(stream)
    driver.synchronise(stream)
    with pytest.raises(CallError, match="GPU Timeout"):
        driver.wait_for(event)


def test_what_makes_nothing_is_told(noted: Noted) -> None:
    """Messages to nothing would be lost."""
    noted.fail("newCommandQueue")
    with pytest.raises(CallError, match=r"newCommandQueue gave nothing \(719\)"):
        opened()
    driver = opened()
    for message in ("commandBuffer", "computeCommandEncoder"):
        noted.fail(message)
        with pytest.raises(CallError, match=rf"{message} gave nothing \(719\)"):
            busy(driver, driver.stream())
    busy(driver, driver.stream())
    driver.synchronise_all()


def test_errors_of_the_backend_say_what_failed(metal: Noted) -> None:
    metal.fail("newComputePipelineStateWithFunction:error:", 2, "Compute function exceeds available stack space")
    with pytest.raises(DriverError, match=r"\[compile\] expected Noted GPU to work, got .*stack space"):
        AppleGpuBackend().compile(dense(), Options(cache=False))


def test_parameters_are_told_by_the_text() -> None:
    plan = build(dense(), Options(cache=False), APPLES)
    for kernel in plan.program.main:
        shader = plan.module.variants[id(kernel)][0]
        numbers = max(len(shader.shader.numbers), 1)
        moving = bool(plan.table)
        pointers = len(kernel.slots) + moving
        assert parameters_of(plan.texts[shader.name], shader.name) == (pointers, numbers, pointers)


def test_every_message_is_one_of_the_library() -> None:
    """The library has the same messages, and no others."""
    text = SOURCE.read_text()
    named = {line.split('"')[1] for line in text.splitlines() if line.startswith('    {"')}
    assert named == SIGNATURES.keys()
