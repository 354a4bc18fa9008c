"""The CUDA driver API through the package cuda-bindings."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from rlx.backends.cuda import cublaslt, nvrtc
from rlx.backends.cuda.cublaslt import CublasLt
from rlx.backends.cuda.driver import CUDA, MAP_BYTES, NOT_READY, OUT_OF_MEMORY, CallError, Driver
from rlx.codegen.simt.maps import PlacedMap
from rlx.errors import DeviceUnavailable, MissingExtra
from rlx.ir import dtype as dtypes

EXTRA = "pip install 'rlx[cuda]'"
KEEP_ALL = (1 << 64) - 1
NON_BLOCKING = 1
UNTIMED = 2
EXTERNAL = 1
"""Flags of streams, events and records, as numbers."""
BRANCHES_SINCE = 12080
"""The version of CUDA whose graphs have branches with two sides, as the driver tells its own."""


@cache
def library() -> Any:
    """The module of the driver's calls. Raises MissingExtra."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingExtra(f"[device] the package cuda-bindings is needed ({error}): {EXTRA}") from None
    return driver


class BindingsDriver(Driver):
    """The driver of this machine. Raises DeviceUnavailable, MissingExtra."""

    api = CUDA

    def __init__(self) -> None:
        self.cuda = library()
        self.compiler = f"NVRTC {nvrtc.version()} {' '.join(nvrtc.OPTIONS)}"
        try:
            self._call("cuInit", 0)
        except (CallError, RuntimeError, OSError) as error:  # the package has errors of its own for a missing library
            raise DeviceUnavailable(f"[device] the CUDA driver does not start: {error}") from error
        kinds = self.cuda.CUlaunchAttributeID
        self._overlapping = self.cuda.CUlaunchAttribute()
        self._overlapping.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        self._overlapping.value.programmaticStreamSerializationAllowed = 1

    def _call(self, name: str, *arguments: Any) -> Any:
        code, *results = getattr(self.cuda, name)(*arguments)
        if code:
            raise CallError(name, int(code), getattr(code, "name", str(code)))
        return results[0] if len(results) == 1 else results

    def version(self) -> str:
        number = int(self._call("cuDriverGetVersion"))
        return f"{number // 1000}.{number % 1000 // 10}"

    def device_count(self) -> int:
        return int(self._call("cuDeviceGetCount"))

    def _device(self, ordinal: int) -> Any:
        return self._call("cuDeviceGet", ordinal)

    def device_name(self, ordinal: int) -> str:
        return str(self._call("cuDeviceGetName", 256, self._device(ordinal)).split(b"\0")[0].decode())

    def _capability(self, ordinal: int) -> tuple[int, int]:
        kinds, device = self.cuda.CUdevice_attribute, self._device(ordinal)
        major, minor = (
            int(self._call("cuDeviceGetAttribute", kind, device))
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )  # fmt: skip
        return major, minor

    def architecture(self, ordinal: int) -> str:
        major, minor = self._capability(ordinal)
        return f"sm_{major}{minor}" + "a" * (major >= 9)

    def overlaps(self, ordinal: int) -> bool:
        return self._capability(ordinal) >= (9, 0)

    def room_of_one(self, ordinal: int) -> int:
        if not self.overlaps(ordinal):
            return 0
        kind = self.cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        return int(self._call("cuDeviceGetAttribute", kind, self._device(ordinal))) // 2

    def compile(self, source: str, architecture: str, name: str) -> bytes:
        return nvrtc.compile_cubin(source, architecture, f"{name}.cu")

    def why_no_blas(self) -> str:
        return cublaslt.why_absent()

    def blas(self) -> CublasLt:
        return cublaslt.load()

    def open(self, ordinal: int) -> Any:
        context = self._call("cuDevicePrimaryCtxRetain", self._device(ordinal))
        self.enter(context)
        return context

    def reset(self, ordinal: int) -> None:
        self._call("cuDevicePrimaryCtxReset", self._device(ordinal))

    def enter(self, context: Any) -> None:
        self._call("cuCtxSetCurrent", context)

    def memory(self) -> tuple[int, int]:
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    def stream(self) -> Any:
        return self._call("cuStreamCreate", NON_BLOCKING)

    def stream_number(self, stream: Any) -> int:
        return int(stream)

    def synchronise(self, stream: Any) -> None:
        self._call("cuStreamSynchronize", stream)

    def synchronise_all(self) -> None:
        self._call("cuCtxSynchronize")

    def event(self, timed: bool = False) -> Any:
        return self._call("cuEventCreate", 0 if timed else UNTIMED)

    def record(self, event: Any, stream: Any, external: bool = False) -> None:
        self._call("cuEventRecordWithFlags", event, stream, EXTERNAL if external else 0)

    def wait(self, stream: Any, event: Any) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def wait_for(self, event: Any) -> None:
        self._call("cuEventSynchronize", event)

    def is_reached(self, event: Any) -> bool:
        try:
            self._call("cuEventQuery", event)
        except CallError as error:
            if error.code != NOT_READY:
                raise
            return False
        return True

    def elapsed_ns(self, first: Any, last: Any) -> float:
        return float(self._call("cuEventElapsedTime", first, last)) * 1e6

    def drop_event(self, event: Any) -> None:
        self._call("cuEventDestroy", event)

    def pool(self, ordinal: int) -> Any:
        cuda = self.cuda
        wanted = cuda.CUmemPoolProps()
        wanted.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = ordinal
        pool = self._call("cuMemPoolCreate", wanted)
        threshold = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self._call("cuMemPoolSetAttribute", pool, threshold, cuda.cuuint64_t(KEEP_ALL))
        return pool

    def allocate(self, nbytes: int, pool: Any, stream: Any) -> int:
        return int(self._call("cuMemAllocFromPoolAsync", nbytes, pool, stream))

    def free(self, pointer: int, stream: Any) -> None:
        self._call("cuMemFreeAsync", pointer, stream)

    def trim(self, pool: Any) -> None:
        self._call("cuMemPoolTrimTo", pool, 0)

    def allocate_host(self, nbytes: int) -> int:
        return int(self._call("cuMemHostAlloc", nbytes, 0))

    def free_host(self, pointer: int) -> None:
        self._call("cuMemFreeHost", pointer)

    def copy_in(self, target: int, host: int, nbytes: int, stream: Any) -> None:
        self._call("cuMemcpyHtoDAsync", target, host, nbytes, stream)

    def copy_out(self, host: int, source: int, nbytes: int, stream: Any) -> None:
        self._call("cuMemcpyDtoHAsync", host, source, nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self._call("cuMemcpyDtoDAsync", target, source, nbytes, stream)

    def load(self, code: bytes) -> Any:
        return self._call("cuModuleLoadData", code)

    def unload(self, module: Any) -> None:
        self._call("cuModuleUnload", module)

    def function(self, module: Any, name: str) -> Any:
        return self._call("cuModuleGetFunction", module, name.encode())

    def launch(
        self, function: Any, blocks: int, lanes: int, arguments: int, stream: Any, overlapping: bool = False,
        shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        if shared_bytes:  # with what the kernel declares it may be more than a launch has without having said so
            kind = self.cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            if self._call("cuFuncGetAttribute", kind, function) < shared_bytes:  # launches of more may be in graphs
                self._call("cuFuncSetAttribute", function, kind, shared_bytes)
        if not overlapping:
            self._call("cuLaunchKernel", function, blocks, 1, 1, lanes, 1, 1, shared_bytes, stream, arguments, 0)
            return
        config = self.cuda.CUlaunchConfig()
        config.gridDimX, config.blockDimX, config.hStream = blocks, lanes, stream
        config.sharedMemBytes = shared_bytes
        config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.attrs, config.numAttrs = [self._overlapping], 1
        self._call("cuLaunchKernelEx", config, function, arguments, 0)

    def encode_map(self, placed: PlacedMap, start: int) -> bytes:
        cuda = self.cuda
        kinds, swaps = cuda.CUtensorMapDataType, cuda.CUtensorMapSwizzle
        kind = {
            dtypes.f16: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16, dtypes.bf16: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
        }[placed.dtype]  # fmt: skip
        rank = len(placed.extents)
        made = self._call(
            "cuTensorMapEncodeTiled", kind, rank, start + placed.first,
            [cuda.cuuint64_t(extent) for extent in placed.extents], [cuda.cuuint64_t(step) for step in placed.strides],
            [cuda.cuuint32_t(width) for width in placed.box], [cuda.cuuint32_t(1)] * rank,
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, swaps.CU_TENSOR_MAP_SWIZZLE_128B,
            cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )  # fmt: skip
        return ctypes.string_at(made.getPtr(), MAP_BYTES)

    def begin_capture(self, stream: Any) -> None:
        self._call("cuStreamBeginCapture", stream, self.cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)

    def end_capture(self, stream: Any) -> Any:
        return self._call("cuStreamEndCapture", stream)

    def instantiate(self, graph: Any) -> Any:
        return self._call("cuGraphInstantiate", graph, 0)

    def update(self, executable: Any, graph: Any) -> bool:
        try:
            self._call("cuGraphExecUpdate", executable, graph)
        except CallError as error:
            if error.code == OUT_OF_MEMORY:
                raise
            return False
        return True

    def replay(self, executable: Any, stream: Any) -> None:
        self._call("cuGraphLaunch", executable, stream)

    def drop_graph(self, graph: Any) -> None:
        self._call("cuGraphDestroy", graph)

    def drop_executable(self, executable: Any) -> None:
        self._call("cuGraphExecDestroy", executable)

    def why_no_branches(self) -> str:
        number = int(self._call("cuDriverGetVersion"))
        return "" if number >= BRANCHES_SINCE else f"CUDA {self.version()} has no branches with two sides in graphs"

    def compile_setter(self, source: str, name: str) -> bytes:
        return nvrtc.compile_ptx(source, f"{name}.cu") + b"\0"

    def condition(self, stream: Any) -> int:
        graph, context = self._noted(stream)[0], self._call("cuCtxGetCurrent")
        return int(self._call("cuGraphConditionalHandleCreate", graph, context, 0, 0))

    def branch(
        self, condition: int, stream: Any, bodies: Sequence[Callable[[Any], None]], repeated: bool = False
    ) -> None:
        cuda = self.cuda
        kinds = cuda.CUgraphConditionalNodeType
        wanted = cuda.CUgraphNodeParams()
        wanted.type = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        wanted.conditional.handle = condition
        wanted.conditional.type = kinds.CU_GRAPH_COND_TYPE_WHILE if repeated else kinds.CU_GRAPH_COND_TYPE_IF
        wanted.conditional.size = len(bodies)
        wanted.conditional.ctx = self._call("cuCtxGetCurrent")
        graph, nodes, edges = self._noted(stream)
        node = self._call("cuGraphAddNode", graph, nodes, edges, len(nodes), wanted)
        for body, inner in zip(bodies, wanted.conditional.phGraph_out, strict=True):
            self._note_into(inner, body)
        instead = cuda.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
        self._call("cuStreamUpdateCaptureDependencies", stream, [node], None, 1, instead)

    def _noted(self, stream: Any) -> tuple[Any, list[Any], list[Any]]:
        """The graph that a stream notes, the nodes that the next one follows, and how it follows each."""
        _, _, graph, nodes, edges, _ = self._call("cuStreamGetCaptureInfo", stream)
        return graph, nodes, edges

    def _note_into(self, graph: Any, body: Callable[[Any], None]) -> None:
        """Notes what a body gives a stream of its own in a graph that there is."""
        relaxed = self.cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        stream = self.stream()
        try:
            self._call("cuStreamBeginCaptureToGraph", stream, graph, [], [], 0, relaxed)
            try:
                body(stream)
            finally:
                self._call("cuStreamEndCapture", stream)
        finally:
            self._call("cuStreamDestroy", stream)
