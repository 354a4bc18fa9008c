"""The driver of AMD's GPUs: HIP, by ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref
from ctypes import c_int as Int
from ctypes import c_size_t as Size
from ctypes import c_uint as Unsigned
from ctypes import c_void_p as Handle
from typing import Any

from rlx.backends.cuda.driver import NOT_READY, OUT_OF_MEMORY, Api, CallError, Driver
from rlx.backends.rocm import hiprtc, libraries
from rlx.errors import DeviceUnavailable

HIP = Api("rocm", "HIP", dlpack=10, torch="hip", legacy_stream=0, most_lanes=(1 << 32) - 1)
KEEP_ALL = (1 << 64) - 1
NON_BLOCKING, UNTIMED = 1, 2
RELEASE_THRESHOLD = 4
PINNED, ON_DEVICE = 1, 1
RELAXED = 2
"""Flags of streams and events, an attribute of pools, where their memory is, and how streams are noted, as numbers."""


class Location(ctypes.Structure):
    """`hipMemLocation`."""

    _fields_ = [("type", Int), ("id", Int)]


class PoolProperties(ctypes.Structure):
    """`hipMemPoolProps`."""

    _fields_ = [
        ("allocation", Int), ("handles", Int), ("location", Location), ("security", Handle), ("most", Size),
        ("reserved", ctypes.c_ubyte * 56),
    ]  # fmt: skip


class Properties(ctypes.Structure):
    """`hipDeviceProp_tR0600`, of which the name of the architecture is read."""

    _fields_ = [
        ("name", ctypes.c_char * 256), ("others", ctypes.c_ubyte * 904), ("architecture", ctypes.c_char * 256),
        ("rest", ctypes.c_ubyte * 56),
    ]  # fmt: skip


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "hipInit": (Unsigned,),
    "hipRuntimeGetVersion": (POINTER(Int),),
    "hipGetDeviceCount": (POINTER(Int),),
    "hipDeviceGetName": (ctypes.c_char_p, Int, Int),
    "hipGetDevicePropertiesR0600": (POINTER(Properties), Int),
    "hipSetDevice": (Int,),
    "hipDeviceReset": (),
    "hipDeviceSynchronize": (),
    "hipMemGetInfo": (POINTER(Size), POINTER(Size)),
    "hipStreamCreateWithFlags": (POINTER(Handle), Unsigned),
    "hipStreamSynchronize": (Handle,),
    "hipStreamWaitEvent": (Handle, Handle, Unsigned),
    "hipEventCreateWithFlags": (POINTER(Handle), Unsigned),
    "hipEventRecord": (Handle, Handle),
    "hipEventQuery": (Handle,),
    "hipEventSynchronize": (Handle,),
    "hipEventElapsedTime": (POINTER(ctypes.c_float), Handle, Handle),
    "hipEventDestroy": (Handle,),
    "hipMemPoolCreate": (POINTER(Handle), POINTER(PoolProperties)),
    "hipMemPoolSetAttribute": (Handle, Int, POINTER(ctypes.c_uint64)),
    "hipMemPoolTrimTo": (Handle, Size),
    "hipMallocFromPoolAsync": (POINTER(Handle), Size, Handle, Handle),
    "hipFreeAsync": (Handle, Handle),
    "hipHostMalloc": (POINTER(Handle), Size, Unsigned),
    "hipHostFree": (Handle,),
    "hipMemcpyHtoDAsync": (Handle, Handle, Size, Handle),
    "hipMemcpyDtoHAsync": (Handle, Handle, Size, Handle),
    "hipMemcpyDtoDAsync": (Handle, Handle, Size, Handle),
    "hipModuleLoadData": (POINTER(Handle), ctypes.c_char_p),
    "hipModuleUnload": (Handle,),
    "hipModuleGetFunction": (POINTER(Handle), Handle, ctypes.c_char_p),
    "hipModuleLaunchKernel": (Handle, *[Unsigned] * 7, Handle, Handle, Handle),
    "hipStreamBeginCapture": (Handle, Int),
    "hipStreamEndCapture": (Handle, POINTER(Handle)),
    "hipGraphInstantiateWithFlags": (POINTER(Handle), Handle, ctypes.c_ulonglong),
    "hipGraphExecUpdate": (Handle, Handle, POINTER(Handle), POINTER(Int)),
    "hipGraphLaunch": (Handle, Handle),
    "hipGraphDestroy": (Handle,),
    "hipGraphExecDestroy": (Handle,),
}
"""Parameters of the calls that are made, by `hip_runtime_api.h` of ROCm 6. All give a `hipError_t`."""


class HipDriver(Driver):
    """The driver of this machine. Raises DeviceUnavailable."""

    api = HIP
    times_in_graphs = False  # the call for it came with later versions of ROCm 6

    def __init__(self) -> None:
        self.library = libraries.load(libraries.HIP)
        for name, parameters in SIGNATURES.items():
            function = getattr(self.library, name, None)
            if function is None:
                raise DeviceUnavailable(f"[device] {libraries.HIP} has no {name}: {libraries.INSTALL}")
            function.argtypes, function.restype = parameters, Int
        self.library.hipGetErrorName.argtypes, self.library.hipGetErrorName.restype = (Int,), ctypes.c_char_p
        self._images: dict[int, bytes] = {}
        self.compiler = f"hiprtc {hiprtc.version()} {' '.join(hiprtc.OPTIONS)}"
        try:
            self._call("hipInit", 0)
        except CallError as error:
            raise DeviceUnavailable(f"[device] HIP does not start: {error}") from error

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise CallError(name, code, self.library.hipGetErrorName(code).decode())

    def _made(self, name: str, *arguments: Any) -> int:
        """What a call makes, a handle or a pointer, whose place is its first argument."""
        handle = Handle()
        self._call(name, byref(handle), *arguments)
        return handle.value or 0

    def _number(self, name: str) -> int:
        number = Int()
        self._call(name, byref(number))
        return number.value

    def version(self) -> str:
        number = self._number("hipRuntimeGetVersion")
        return f"{number // 10_000_000}.{number // 100_000 % 100}"

    def device_count(self) -> int:
        return self._number("hipGetDeviceCount")

    def device_name(self, ordinal: int) -> str:
        name = ctypes.create_string_buffer(256)
        self._call("hipDeviceGetName", name, len(name), ordinal)
        return name.value.decode()

    def architecture(self, ordinal: int) -> str:
        """With what it may be set to: `gfx90a:sramecc+:xnack-`."""
        properties = Properties()
        self._call("hipGetDevicePropertiesR0600", byref(properties), ordinal)
        return str(properties.architecture.decode())

    def overlaps(self, ordinal: int) -> bool:
        return False

    def compile(self, source: str, architecture: str, name: str) -> bytes:
        return hiprtc.compile_code(source, architecture, f"{name}.hip")

    def open(self, ordinal: int) -> Any:
        self.enter(ordinal)
        return ordinal

    def reset(self, ordinal: int) -> None:
        self.enter(ordinal)
        self._call("hipDeviceReset")

    def enter(self, context: Any) -> None:
        self._call("hipSetDevice", context)

    def memory(self) -> tuple[int, int]:
        free, total = Size(), Size()
        self._call("hipMemGetInfo", byref(free), byref(total))
        return free.value, total.value

    def stream(self) -> Any:
        return self._made("hipStreamCreateWithFlags", NON_BLOCKING)

    def stream_number(self, stream: Any) -> int:
        return int(stream)

    def synchronise(self, stream: Any) -> None:
        self._call("hipStreamSynchronize", stream)

    def synchronise_all(self) -> None:
        self._call("hipDeviceSynchronize")

    def event(self, timed: bool = False) -> Any:
        return self._made("hipEventCreateWithFlags", 0 if timed else UNTIMED)

    def record(self, event: Any, stream: Any, external: bool = False) -> None:
        self._call("hipEventRecord", event, stream)

    def wait(self, stream: Any, event: Any) -> None:
        self._call("hipStreamWaitEvent", stream, event, 0)

    def wait_for(self, event: Any) -> None:
        self._call("hipEventSynchronize", event)

    def is_reached(self, event: Any) -> bool:
        try:
            self._call("hipEventQuery", event)
        except CallError as error:
            if error.code != NOT_READY:
                raise
            return False
        return True

    def elapsed_ns(self, first: Any, last: Any) -> float:
        milliseconds = ctypes.c_float()
        self._call("hipEventElapsedTime", byref(milliseconds), first, last)
        return milliseconds.value * 1e6

    def drop_event(self, event: Any) -> None:
        self._call("hipEventDestroy", event)

    def pool(self, ordinal: int) -> Any:
        wanted = PoolProperties(allocation=PINNED, location=Location(ON_DEVICE, ordinal))
        pool = self._made("hipMemPoolCreate", byref(wanted))
        self._call("hipMemPoolSetAttribute", pool, RELEASE_THRESHOLD, byref(ctypes.c_uint64(KEEP_ALL)))
        return pool

    def allocate(self, nbytes: int, pool: Any, stream: Any) -> int:
        return self._made("hipMallocFromPoolAsync", nbytes, pool, stream)

    def free(self, pointer: int, stream: Any) -> None:
        self._call("hipFreeAsync", pointer, stream)

    def trim(self, pool: Any) -> None:
        self._call("hipMemPoolTrimTo", pool, 0)

    def allocate_host(self, nbytes: int) -> int:
        return self._made("hipHostMalloc", nbytes, 0)

    def free_host(self, pointer: int) -> None:
        self._call("hipHostFree", pointer)

    def copy_in(self, target: int, host: int, nbytes: int, stream: Any) -> None:
        self._call("hipMemcpyHtoDAsync", target, host, nbytes, stream)

    def copy_out(self, host: int, source: int, nbytes: int, stream: Any) -> None:
        self._call("hipMemcpyDtoHAsync", host, source, nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self._call("hipMemcpyDtoDAsync", target, source, nbytes, stream)

    def load(self, code: bytes) -> Any:
        """The code stays where it is for as long as the module: HIP need not copy it."""
        module = self._made("hipModuleLoadData", code)
        self._images[module] = code
        return module

    def unload(self, module: Any) -> None:
        self._call("hipModuleUnload", module)
        self._images.pop(module, None)

    def function(self, module: Any, name: str) -> Any:
        return self._made("hipModuleGetFunction", module, name.encode())

    def launch(
        self, function: Any, blocks: int, lanes: int, arguments: int, stream: Any, overlapping: bool = False,
        shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        self._call("hipModuleLaunchKernel", function, blocks, 1, 1, lanes, 1, 1, shared_bytes, stream, arguments, None)

    def begin_capture(self, stream: Any) -> None:
        self._call("hipStreamBeginCapture", stream, RELAXED)

    def end_capture(self, stream: Any) -> Any:
        graph = Handle()
        self._call("hipStreamEndCapture", stream, byref(graph))
        return graph.value

    def instantiate(self, graph: Any) -> Any:
        return self._made("hipGraphInstantiateWithFlags", graph, 0)

    def update(self, executable: Any, graph: Any) -> bool:
        try:
            self._call("hipGraphExecUpdate", executable, graph, byref(Handle()), byref(Int()))
        except CallError as error:
            if error.code == OUT_OF_MEMORY:
                raise
            return False
        return True

    def replay(self, executable: Any, stream: Any) -> None:
        self._call("hipGraphLaunch", executable, stream)

    def drop_graph(self, graph: Any) -> None:
        self._call("hipGraphDestroy", graph)

    def drop_executable(self, executable: Any) -> None:
        self._call("hipGraphExecDestroy", executable)
