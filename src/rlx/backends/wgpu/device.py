"""Devices of the wgpu library: choice of an adapter, limits, pipelines, and errors in rlx's words."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

from rlx import flags, locks
from rlx.backends.wgpu import instance
from rlx.backends.wgpu.f16_check import exact
from rlx.backends.wgpu.subgroup_check import usable
from rlx.codegen.simt.code import WORKGROUP, Binding, Shader
from rlx.codegen.simt.irregular import MOST_ITERATIONS
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.errors import CompileError, DeviceLost, DeviceUnavailable, MissingExtra, OutOfMemory, RlxError

STORAGE_BUFFERS = 8
"""Storage bindings of a shader that every WebGPU device has."""
MAX_GROUPS = 65535
"""Workgroups along one dimension that every WebGPU device takes."""
PORTABLE_BINDING = 128 << 20
"""Bytes of a storage binding that every WebGPU device has."""

MAX_BINDING = (1 << 31) - 4
"""Bytes that kernels can count: they index words with an i32, and double it for 64-bit elements."""

_PORTABLE = {
    "max-storage-buffers-per-shader-stage": STORAGE_BUFFERS,
    "max-compute-invocations-per-workgroup": WORKGROUP,
    "max-compute-workgroup-size-x": WORKGROUP,
    "max-compute-workgroups-per-dimension": MAX_GROUPS,
}
_SIZES = ("max-storage-buffer-binding-size", "max-buffer-size")
F16 = "shader-f16"
SUBGROUPS = ("subgroups", "subgroup")
"""Names of one feature: the standard's, which asks for a line in shaders, and the library's own."""
_FEATURES = (F16, *SUBGROUPS)
_KIND_RANK = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown", "CPU")
_BACKEND_RANK = ("Metal", "Vulkan", "D3D12", "OpenGL")
EXTRA = "pip install 'rlx[gpu]'"
TIMESTAMPS = "timestamp-query"
"""The feature by which a device notes when a pass begins and ends."""


def library() -> Any:
    """The wgpu module. Raises MissingExtra."""
    try:
        import wgpu
        import wgpu.backends.wgpu_native
    except ImportError as error:
        raise MissingExtra(f"[device] the package wgpu is needed ({error}): {EXTRA}") from None
    return wgpu


def adapters(backend_type: str | None) -> list[Any]:
    """Adapters of one kind of driver (`Vulkan`, `OpenGL`, `D3D12`, `Metal`), or the best first of all; OpenGL's are
    among them only if there are no others."""
    if backend_type is None:
        return sorted(_enumerated(opengl=False) or _enumerated(opengl=True), key=_rank)
    return [a for a in _enumerated(backend_type == "OpenGL") if a.info["backend_type"] == backend_type]


def _enumerated(opengl: bool) -> list[Any]:
    """What the library finds, with OpenGL loaded or not."""
    wgpu = library()
    from wgpu.backends.wgpu_native import _helpers, extras

    with _runtime_folder(), translated("enumerate"):
        instance.choose(_helpers, extras, opengl)
        return list(wgpu.gpu.enumerate_adapters_sync())


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """Names a runtime folder where there is none: the OpenGL library would complain on stderr."""
    name = "XDG_RUNTIME_DIR"
    if name in os.environ:
        yield
        return
    os.environ[name] = tempfile.gettempdir()
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _rank(adapter: Any) -> tuple[int, int]:
    kind, backend = adapter.info["adapter_type"], adapter.info["backend_type"]
    return (
        _KIND_RANK.index(kind) if kind in _KIND_RANK else len(_KIND_RANK),
        _BACKEND_RANK.index(backend) if backend in _BACKEND_RANK else len(_BACKEND_RANK),
    )


def open_device(backend_type: str | None, ordinal: int, portable: bool = False) -> Device:
    """The device, opened once a process. `portable` keeps to the limits that every WebGPU device has.

    Raises DeviceUnavailable, MissingExtra.
    """
    return _open(backend_type, ordinal, portable, os.getpid())


@cache
def _open(backend_type: str | None, ordinal: int, portable: bool, _: int) -> Device:
    return Device(_adapter(backend_type, ordinal), portable, extensions=not portable)


def _adapter(backend_type: str | None, ordinal: int) -> Any:
    found_adapters = adapters(backend_type)
    if ordinal >= len(found_adapters):
        adapter_names = ", ".join(describe(a) for a in adapters(None)) or "none"
        expected = f"{backend_type or 'GPU'} adapter number {ordinal}"
        raise DeviceUnavailable(
            f"[device] expected a {expected}, got {len(found_adapters)} of that kind; adapters here: {adapter_names}"
        )
    return found_adapters[ordinal]


def adapter_info(backend_type: str | None, ordinal: int) -> Mapping[str, Any]:
    """What the library tells of an adapter, asked once a process. Raises DeviceUnavailable, MissingExtra."""
    return _adapter_info(backend_type, ordinal, os.getpid())


@cache
def _adapter_info(backend_type: str | None, ordinal: int, _: int) -> Mapping[str, Any]:
    return dict(_adapter(backend_type, ordinal).info)


def describe(adapter: Any) -> str:
    info = adapter.info
    return f"{info['device']} ({info['backend_type']}, {info['adapter_type']})"


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Errors of the library as rlx's."""
    try:
        yield
    except RlxError:
        raise
    except Exception as error:
        name, text = type(error).__name__, str(error)
        if name == "GPUOutOfMemoryError" or "out of memory" in text.lower():
            raise OutOfMemory(f"[{what}] {text}") from error
        if "lost" in text.lower():
            raise DeviceLost(f"[{what}] {text}") from error
        if name.startswith("GPU"):
            raise CompileError(f"[{what}] {name}: {text}") from error
        raise


class Device:
    """An open device. Whoever submits work holds `lock`: the queue is one, and so is the order of writes and runs.

    max_binding        bytes that one storage binding, and so one buffer of ours, may have
    record_alignment   bytes between which uniform records start
    max_iterations     times that an invocation may go through loops
    software           whether processors do its work
    compiles_only      whether it runs nothing (Dawn's way to check shaders)
    features           what it has of what not every WebGPU device has and shaders may use; nothing of it without
                       `extensions`
    tick_ns            unit of the timestamps that it writes; None if it writes none
    """

    def __init__(self, adapter: Any, portable: bool, extensions: bool = True) -> None:
        self.wgpu = library()
        self.name = describe(adapter)
        self.software = adapter.info["adapter_type"] == "CPU"
        self.compiles_only = adapter.info["backend_type"] == "Null"
        self.lock = locks.rlock()
        required = dict(_PORTABLE)
        if not portable:
            required |= {name: adapter.limits[name] for name in _SIZES}
        self.features = [name for name in _FEATURES if extensions and name in adapter.features]
        try:
            with _runtime_folder():
                stamps = [name for name in (TIMESTAMPS,) if name in adapter.features]
                features = [*self.features, *stamps]
                self.raw = adapter.request_device_sync(required_features=features, required_limits=required)
        except RuntimeError as error:  # mostly an OpenGL that is too old for compute shaders
            reason = " ".join(str(error).split())
            raise DeviceUnavailable(f"[device] {self.name} does not open: {reason}") from error
        limits = self.raw.limits
        most = PORTABLE_BINDING if portable else MAX_BINDING
        self.max_binding = min(most, *(limits[name] for name in _SIZES))
        # llvmpipe silently ends loops after so many iterations in total
        self.max_iterations = MOST_ITERATIONS if "llvmpipe" in self.name else (1 << 31) - 1
        self.tick_ns = _tick_ns(self.raw) if stamps else None
        self.record_alignment = max(limits["min-uniform-buffer-offset-alignment"], 16)
        self._pipelines: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._layouts: dict[tuple[Binding, ...], Any] = {}

    def target(self, halves: bool = True) -> Target:
        """What shaders may use here, by the flags; `halves` tells whether they have a use for f16."""
        setting = flags.wgpu_halves()
        # drivers in software are slower with halves than with integers
        enabled = setting == "1" or (setting == "auto" and not self.software)
        return Target(
            halves=halves and enabled and self._exact_f16,
            software=self.software,
            subgroups=flags.wgpu_subgroups() and self._usable_subgroups,
        )

    @cached_property
    def _exact_f16(self) -> bool:
        if F16 not in self.features:
            return False
        with self.lock, translated("f16"):
            return self.compiles_only or exact(self)

    @cached_property
    def _usable_subgroups(self) -> bool:
        if not any(name in self.features for name in SUBGROUPS):
            return False
        with self.lock, translated("subgroups"):
            return self.compiles_only or usable(self)

    def enabled(self, text: str) -> str:
        """A shader with the line that some implementations ask for, and some refuse."""
        return f"enable subgroups;\n{text}" if "subgroup_size" in text and SUBGROUPS[0] in self.features else text

    def buffer(self, nbytes: int, what: str, *usages: str) -> Any:
        """A buffer of at least `nbytes`. Raises OutOfMemory."""
        most = self.max_binding if "STORAGE" in usages else self.raw.limits["max-buffer-size"]
        if nbytes > most:
            raise OutOfMemory(f"[{what}] expected at most {most} bytes in one buffer on {self.name}, got {nbytes}")
        kinds = self.wgpu.BufferUsage
        usage = kinds.COPY_DST
        for name in usages:
            usage |= getattr(kinds, name)
        with translated(what):
            return self.raw.create_buffer(size=max(-(-nbytes // 4) * 4, 16), usage=usage)

    def begin_mapping(self, buffer: Any) -> Any:
        """A promise to map a buffer for reading; its `sync_wait` waits for what was submitted.

        The library would submit an empty list of commands first, in case that nothing was; its own reads do not.
        """
        try:
            return buffer.map_async("READ_NOSYNC")
        except ValueError:  # a version without this mode
            return buffer.map_async(self.wgpu.MapMode.READ)

    def layout(self, bindings: Sequence[Binding]) -> Any:
        """The bind group layout of a shader with these storage bindings behind its record."""
        key = tuple(bindings)
        if key not in self._layouts:
            visible = self.wgpu.ShaderStage.COMPUTE
            record = {"type": "uniform", "has_dynamic_offset": True}
            entries = [{"binding": 0, "visibility": visible, "buffer": record}]
            for number, binding in enumerate(bindings):
                kind = "storage" if binding.writable else "read-only-storage"
                entries.append({"binding": number + 1, "visibility": visible, "buffer": {"type": kind}})
            self._layouts[key] = self.raw.create_bind_group_layout(entries=entries)
        return self._layouts[key]

    def pipeline(self, shader: Shader) -> Any:
        """The pipeline of a shader; equal texts share one."""
        pipeline = self._pipelines.get(shader.text)
        if pipeline is None:
            with translated("shader"):
                module = self.raw.create_shader_module(code=self.enabled(shader.text))
                layout = self.raw.create_pipeline_layout(bind_group_layouts=[self.layout(shader.bindings)])
                pipeline = self.raw.create_compute_pipeline(
                    layout=layout, compute={"module": module, "entry_point": "main"}
                )
            self._pipelines[shader.text] = pipeline
        return pipeline


def _tick_ns(raw: Any) -> float:
    """What a timestamp counts. WebGPU says nanoseconds; the library gives what the driver counts, and tells its unit
    through a function that its Python part has no method for."""
    try:
        from wgpu.backends.wgpu_native import lib

        return float(lib.wgpuQueueGetTimestampPeriod(raw.queue._internal)) or 1.0
    except (ImportError, AttributeError, TypeError):  # a version without it, or another library under its name
        return 1.0


def in_two_dimensions(groups: int) -> tuple[int, int]:
    """At least so many workgroups, of which there may only be so many along one dimension."""
    if groups <= MAX_GROUPS:
        return groups, 1
    return MAX_GROUPS, -(-groups // MAX_GROUPS)
