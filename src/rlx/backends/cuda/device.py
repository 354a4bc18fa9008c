"""An open device: its context, streams and memory, and the driver's errors in rlx's words."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlx import locks
from rlx.backends.cuda import cubins
from rlx.backends.cuda.bindings import BindingsDriver
from rlx.backends.cuda.driver import OUT_OF_MEMORY, STICKY, CallError, Driver
from rlx.backends.failures import Step
from rlx.errors import DeviceLost, DeviceUnavailable, DriverError, OutOfMemory
from rlx.ir.literal import Array

ALIGNMENT = 256
"""Bytes between which memory starts, as the driver has it."""
SMALL_BYTES = 4096
"""Of an array that may be read while later work goes on."""

_drivers: dict[tuple[int, str], Driver] = {}
_devices: dict[tuple[int, str, int], Device] = {}
_opening = locks.lock()


def driver(kind: type[Driver] = BindingsDriver) -> Driver:
    """The driver, started once a process. Raises DeviceUnavailable, MissingExtra."""
    with _opening:
        return _driver(kind)


def _driver(kind: type[Driver]) -> Driver:
    key, label = (os.getpid(), kind.api.device), kind.api.label
    if key not in _drivers:
        if any(device == kind.api.device for _, device in _drivers):
            raise DeviceUnavailable(
                f"[device] expected a process that uses {label} itself, got the fork of one that did: {label} survives "
                f"no fork, multiprocessing's method spawn makes processes that have it"
            )
        _drivers[key] = kind()
    return _drivers[key]


def open_device(ordinal: int, kind: type[Driver] = BindingsDriver) -> Device:
    """The device, opened once a process, and anew where it was lost. Raises DeviceUnavailable, MissingExtra."""
    with _opening:
        started = _driver(kind)
        key = (os.getpid(), kind.api.device, ordinal)
        known = _devices.get(key)
        if known is None or known.lost:
            _devices[key] = _opened(started, ordinal, known is not None)
        return _devices[key]


def _opened(started: Driver, ordinal: int, was_lost: bool) -> Device:
    name, label = started.api.device, started.api.label
    try:
        count = started.device_count()
        if ordinal >= count:
            raise DeviceUnavailable(f"[device] expected {name}:{ordinal}, got {count} devices of {label}")
        if was_lost:
            started.reset(ordinal)
        return Device(started, ordinal)
    except CallError as error:
        again = ": after a fault of a kernel the driver opens no device in the same process" if was_lost else ""
        raise DeviceUnavailable(f"[device] {name}:{ordinal} does not open: {error}{again}") from error


class Memory:
    """Bytes on a device, given back when nobody has them.

    shared   whether other libraries have had them, which may still read them on streams of theirs
    """

    def __init__(self, device: Device, pointer: int, nbytes: int) -> None:
        self.device = device
        self.pointer = pointer
        self.nbytes = nbytes
        self.shared = False

    def __del__(self) -> None:
        if self.shared:
            self.device.later(self.device.driver.synchronise_all)
        self.device.later(self.device.driver.free, self.pointer, self.device.own_stream)


class Borrowed(Memory):
    """Bytes that another library gives back, when its array has no user.

    stream   the library's stream, by its number, in whose order it writes to the bytes and gives them back; None where
             all is written that was to be, and it may give them back at once
    written  whether the device's stream waits already for what was to be written
    """

    def __init__(self, device: Device, pointer: int, nbytes: int, owner: Any, stream: int | None = None) -> None:
        super().__init__(device, pointer, nbytes)
        self.owner = owner
        self.stream = stream
        self.written = stream is None

    def follow(self) -> None:
        """Has the device's stream wait for what was to be written. Call it within `Device.work`."""
        if not self.written and self.stream is not None:
            self.device.wait_for(self.stream)
            self.written = True

    def __del__(self) -> None:
        self.owner = None


class Pinned:
    """Memory of the host that the device copies from and to by itself. Made within `Device.work`."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device = device
        self.pointer = device.driver.allocate_host(max(nbytes, 1))
        self.bytes: Array = np.ctypeslib.as_array((ctypes.c_uint8 * max(nbytes, 1)).from_address(self.pointer))

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self.device.later(self.device.driver.synchronise_all)  # copies may be on their way
            self.device.later(self.device.driver.free_host, self.pointer)


class Event:
    """A point in the order of a stream. Made within `Device.work`."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.handle = device.driver.event()

    def record(self, stream: Any) -> None:
        """Makes it the point behind all that a stream was given so far."""
        self.device.driver.record(self.handle, stream)

    def wait(self) -> None:
        self.device.driver.wait_for(self.handle)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.device.later(self.device.driver.drop_event, self.handle)


class Landing:
    """A place of the host for a few bytes, and the point at which they are there."""

    def __init__(self, device: Device) -> None:
        self.pinned = Pinned(device, SMALL_BYTES)
        self.pointer = self.pinned.pointer
        self.event = Event(device)


class Reading:
    """A few bytes on their way to the host. Whoever makes it, within `Device.work`, has a stream bring them to the
    landing and records the event there."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.landing = device.landings.pop() if device.landings else Landing(device)

    @staticmethod
    def of(device: Device, pointer: int, nbytes: int) -> Reading:
        """Of a place, when all is done that the device was given before. Call it within `Device.work`."""
        reading = Reading(device)
        device.driver.copy_out(reading.landing.pointer, pointer, nbytes, device.stream)
        reading.landing.event.record(device.stream)
        return reading

    def is_there(self) -> bool:
        with self.device.errors("run"):
            self.device.driver.enter(self.device.context)
            return self.device.driver.is_reached(self.landing.event.handle)

    def into(self, target: Array) -> None:
        """Waits for the bytes, without holding others up, and takes them."""
        with self.device.errors("run"):
            self.device.driver.enter(self.device.context)
            self.landing.event.wait()
        target[:] = self.landing.pinned.bytes[: target.size]

    def __del__(self) -> None:
        if hasattr(self, "landing"):  # what comes there next comes behind these bytes
            self.device.landings.append(self.landing)


class Function:
    """A loaded kernel."""

    def __init__(self, device: Device, name: str, code: bytes) -> None:
        self.device = device
        self.name = name
        self.module = device.driver.load(code)
        self.handle = device.driver.function(self.module, name)

    def __del__(self) -> None:
        if hasattr(self, "module"):
            self.device.later(self.device.driver.synchronise, self.device.own_stream)
            self.device.later(self.device.driver.unload, self.module)


class Work:
    """The driver, for one thread at a time, with its errors as those of rlx. Raises DeviceLost, OutOfMemory,
    DriverError. A class, as generators that are contexts cost a microsecond each."""

    __slots__ = ("device", "step")

    def __init__(self, device: Device, step: Step) -> None:
        self.device = device
        self.step = step

    def __enter__(self) -> Driver:
        device = self.device
        device.lock.acquire()
        try:
            if device.lost:
                raise DeviceLost(
                    f"[{self.step}] expected {device.name} to go on, got a device that was lost: {device.lost}"
                )
            device.driver.enter(device.context)
            if device.dropped:
                device.give_back_dropped()
        except CallError as error:
            try:
                raise device.translated(error, self.step) from error
            finally:
                device.lock.release()
        except BaseException:
            device.lock.release()
            raise
        return device.driver

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, CallError):
                raise self.device.translated(error, self.step) from error
        finally:
            self.device.lock.release()


class Device:
    """An open device. Whoever gives it work does so within `work`: the order of runs is one, and so is their stream,
    but for runs that another library's stream is given in its place (`lead`).

    lost             why it works no more; empty while it does
    place            what tells its memory from that of others (`arrays.place_of`)
    overlaps         whether kernels begin while those before them end
    room_of_one      bytes of workgroup memory with which a block has a multiprocessor for itself; 0 where none overlap
    own_stream       where kernels run, for those who ask for no order, as objects that end do
    incoming, outgoing   streams of copies that go on beside kernels
    blas             its library of products (`blas.py`), if one was asked for
    setter           its kernel that sets conditions of graphs (`branches.py`), if one was asked for
    landings         places for small arrays on their way to the host, which nobody has any more
    spares           memory of results that nobody has any more (`spares.py`)
    dropped          calls that give back what nobody has any more, made at the next occasion
    """

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver = driver
        self.api = driver.api
        self.ordinal = ordinal
        self.lock = locks.rlock()
        self.lost = ""
        self.place: object = None
        self.blas: object = None
        self.setter: object = None
        self.landings: deque[Landing] = deque()
        self.spares: weakref.WeakSet[Any] = weakref.WeakSet()
        self.dropped: deque[tuple[Any, ...]] = deque()
        self.context = driver.open(ordinal)
        self.name = driver.device_name(ordinal)
        self.architecture = driver.architecture(ordinal)
        self.overlaps = driver.overlaps(ordinal)
        self.room_of_one = driver.room_of_one(ordinal)
        self.own_stream, self.incoming, self.outgoing = (driver.stream() for _ in range(3))
        self._event, self._theirs, self._led_event = driver.event(), driver.event(), driver.event()
        self._led: int | None = None
        self._led_until: Any = None
        self.told = f"{self.api.device}:{ordinal}" if ordinal else self.api.device
        self._pool = driver.pool(ordinal)
        self._functions: weakref.WeakValueDictionary[str, Function] = weakref.WeakValueDictionary()

    def __str__(self) -> str:
        return self.told

    def work(self, step: Step) -> Work:
        """The driver, for one thread at a time. Raises DeviceLost, OutOfMemory, DriverError."""
        return Work(self, step)

    @contextmanager
    def errors(self, step: Step) -> Iterator[None]:
        """Errors of the driver as those of rlx."""
        try:
            yield
        except CallError as error:
            raise self.translated(error, step) from error

    def translated(self, error: CallError, step: Step) -> DriverError | OutOfMemory:
        """An error of the driver as one of rlx."""
        if error.code in STICKY:
            self.lost = str(error)
            return DeviceLost(
                f"[{step}] expected {self.name} to go on, got {error}: what was on it is lost, and a driver that does "
                f"not open it again in this process does so in a new one"
            )
        if error.code == OUT_OF_MEMORY:
            return OutOfMemory(f"[{step}] expected memory of {self.name}, got {error}")
        return DriverError(f"[{step}] expected {self.name} to work, got {error}")

    def later(self, *call: Any) -> None:
        """Notes a call of the driver: none is made from where objects end, in any thread."""
        self.dropped.append(call)

    def give_back_dropped(self) -> None:
        """Makes the calls that were noted, behind all that was given so far. Call it within `work`."""
        _ = self.stream
        while self.dropped:
            function, *arguments = self.dropped.popleft()
            function(*arguments)

    def allocate(self, nbytes: int, what: str) -> Memory:
        """Memory, for what it is named by. Call it within `work`. Raises OutOfMemory."""
        return Memory(self, self.allocated(nbytes, what), nbytes)

    def allocated(self, nbytes: int, what: str) -> int:
        """As `allocate`, of memory that the caller gives back."""
        size = max(-(-nbytes // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
        try:
            try:
                pointer = self.driver.allocate(size, self._pool, self.stream)
            except CallError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                self.trim()
                pointer = self.driver.allocate(size, self._pool, self.stream)
        except CallError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            free, total = self.driver.memory()
            raise OutOfMemory(
                f"[memory] expected {nbytes} bytes for {what} on {self.name}, got {free} free of {total}"
            ) from error
        return pointer

    def trim(self) -> None:
        """Gives memory that is in no use back to the device, for other processes. Call it within `work`."""
        for spares in list(self.spares):
            spares.give_back()
        self.give_back_dropped()
        self.driver.synchronise(self.stream)
        self.driver.trim(self._pool)

    def free_bytes(self) -> int:
        with self.work("bind") as driver:
            self.trim()
            return driver.memory()[0]

    def functions(self, codes: Sequence[tuple[str, bytes]]) -> list[Function]:
        """Kernels, of which each has the name that its text has and its code; equal ones are loaded once."""
        with self.work("compile"):
            loaded = []
            for name, code in codes:
                function = self._functions.get(name)
                if function is None:
                    function = self._functions[name] = Function(self, name, code)
                loaded.append(function)
            return loaded

    def compiled(self, kernels: Sequence[tuple[str, str]], cache: bool) -> list[bytes]:
        """Machine code of kernels by name and text, from the cache on disk or compiled, as many at once as there are
        processors. Raises CompileError."""

        def code_of(kernel: tuple[str, str]) -> bytes:
            return cubins.code_of(self.driver, self.architecture, kernel[0], kernel[1], cache)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(code_of, kernels))

    # other libraries

    @property
    def stream(self) -> Any:
        """Where kernels run, behind all that was given so far. Call it within `work`."""
        if self._led is not None:
            if self._led_until is None:
                self.driver.synchronise(self._led)
            else:
                self.driver.wait(self.own_stream, self._led_until)
            self._led = None
        return self.own_stream

    def lead(self, stream: int | None) -> Any:
        """The stream that is given a run, behind all that was given so far: ours, or another library's, by its number,
        which then has no events to wait for between runs. `leave` ends that. Call it within `work`."""
        if stream is None:
            return self.stream
        if self._led != stream:
            self.driver.record(self._event, self.stream)
            self.driver.wait(stream, self._event)
        self._led, self._led_until = stream, None  # until the event is recorded: a run may fail
        return stream

    def leave(self, event: Event | None, done: bool) -> None:
        """Says that the run which `lead` was for was given: what follows elsewhere waits for the event, or for one of
        the device's; for nothing where the run is `done`. The other library may end its stream from now on."""
        if self._led is None:
            return
        if done:
            self._led = None
        elif event is not None:
            self._led_until = event.handle
        else:
            self.driver.record(self._led_event, self._led)
            self._led_until = self._led_event

    def let_wait(self, stream: int) -> None:
        """Has a stream of another library, by its number, wait for what was given to ours. Call it within `work`."""
        if stream == self._led:
            return
        self.driver.record(self._event, self.stream)
        self.driver.wait(stream, self._event)

    def wait_for(self, stream: int) -> None:
        """Has ours wait for what was given to a stream of another library, by its number. Call it within `work`."""
        self.driver.record(self._theirs, stream)
        self.driver.wait(self.stream, self._theirs)
