"""The table of backends. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
from functools import cache
from importlib import metadata

from rlx.backends.base import Backend, Probe
from rlx.errors import DeviceUnavailable, RlxError

BUILT_IN: dict[str, str] = {
    "cpu": "rlx.backends.cpu:CpuBackend",
    "gpu": "rlx.backends.wgpu:GpuBackend",
    "vulkan": "rlx.backends.wgpu:VulkanBackend",
    "opengl": "rlx.backends.wgpu:OpenGlBackend",
    "directx": "rlx.backends.wgpu:DirectXBackend",
    "metal": "rlx.backends.wgpu:MetalBackend",
    "webgpu": "rlx.backends.wgpu:WebGpuBackend",
    "reference": "rlx.backends.reference:ReferenceBackend",
}
ENTRY_POINTS = "rlx.backends"


def names() -> list[str]:
    """Names of all backends, built in and from other packages."""
    return [*BUILT_IN, *(n for n in _plugins() if n not in BUILT_IN)]


@cache
def _plugins() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}


@cache
def _load(name: str) -> Backend:
    module_name, _, attribute = BUILT_IN.get(name, "").partition(":")
    if not module_name:
        made: Backend = _plugins()[name].load()()
        return made
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise DeviceUnavailable(f"{name}: this build of rlx has no {module_name}") from None
    backend: Backend = getattr(module, attribute)()
    return backend


def parse(device: str) -> tuple[str, int]:
    """`vulkan:1` as backend name and ordinal (0 if there is none). Raises DeviceUnavailable."""
    name, _, ordinal = device.partition(":")
    if (name not in BUILT_IN and name not in _plugins()) or not (ordinal.isdecimal() or ordinal == _):
        wanted = f"expected a device among auto, {', '.join(names())}"
        raise DeviceUnavailable(f"[device] {wanted}, got {device!r}; {available_text()}")
    return name, int(ordinal or 0)


def probe(name: str) -> Probe:
    """What this backend finds here; a backend that cannot be loaded gives its reason."""
    try:
        return _load(name).probe()
    except (RlxError, ImportError) as error:
        return Probe(reason=str(error))


def backend(device: str) -> tuple[Backend, int]:
    """The backend of this device and the ordinal.

    Raises DeviceUnavailable, which says why and what there is instead.
    """
    name, ordinal = parse(device)
    found = probe(name)
    if not found.devices:
        raise DeviceUnavailable(f"[device] {device}: {found.reason or 'no such device here'}; {available_text()}")
    if ordinal >= len(found.devices):
        raise DeviceUnavailable(
            f"[device] expected an ordinal below {len(found.devices)}, got {device!r}; {available_text()}"
        )
    return _load(name), ordinal


def available() -> dict[str, tuple[str, ...]]:
    """Devices on this machine: backend name → names of its physical devices."""
    found = {name: probe(name).devices for name in names()}
    return {name: devices for name, devices in found.items() if devices}


def available_text() -> str:
    """`available()` as a clause of an error message."""
    listed = [f"{name} ({', '.join(devices)})" for name, devices in available().items()]
    return f"available here: {'; '.join(listed) or 'none'}"
