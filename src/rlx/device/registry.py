"""The table of backends, and what each finds on this machine. A backend is imported when it is first needed."""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from rlx.arguments import checked
from rlx.backends.base import Backend, Probe
from rlx.device.device import HELPERS, KINDS, Device
from rlx.errors import DeviceUnavailable, RlxError

if TYPE_CHECKING:
    from importlib import metadata

BUILT_IN: dict[str, str] = {
    "cpu": "rlx.backends.cpu:CpuBackend",
    "cuda": "rlx.backends.cuda:CudaBackend",
    "rocm": "rlx.backends.rocm:RocmBackend",
    "apple-gpu": "rlx.backends.apple_gpu:AppleGpuBackend",
    "gpu": "rlx.backends.wgpu:GpuBackend",
    "vulkan": "rlx.backends.wgpu:VulkanBackend",
    "opengl": "rlx.backends.wgpu:OpenGlBackend",
    "directx": "rlx.backends.wgpu:DirectXBackend",
    "metal": "rlx.backends.wgpu:MetalBackend",
    "webgpu": "rlx.backends.wgpu:WebGpuBackend",
    "mlx": "rlx.backends.mlx:MlxBackend",
    "ane": "rlx.backends.coreml:CoremlBackend",
    "xla": "rlx.backends.xla:XlaBackend",
    "tpu": "rlx.backends.xla:TpuBackend",
    "reference": "rlx.backends.reference:ReferenceBackend",
    "null": "rlx.backends.null:NullBackend",
}
ENTRY_POINTS = "rlx.backends"
_METADATA = (".dist-info", ".egg-info")


def names() -> list[str]:
    """Kinds of all backends, built in and from other packages."""
    return [*BUILT_IN, *(n for n in _plugins() if n not in BUILT_IN)]


@cache
def _plugins() -> dict[str, metadata.EntryPoint]:
    if not _may_have_plugins():
        return {}
    from importlib import metadata

    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}


def _may_have_plugins() -> bool:
    """Whether any installed package names our group, or lies in an archive, which `importlib.metadata` can read.
    That takes far longer, and is asked then alone."""
    for root in sys.path:
        if not os.path.isdir(root or "."):
            if os.path.exists(root):
                return True
            continue
        try:
            with os.scandir(root or ".") as entries:
                folders = [entry.path for entry in entries if entry.name.endswith((*_METADATA, ".egg"))]
        except OSError:
            return True
        for folder in folders:
            if folder.endswith(".egg"):
                return True
            try:
                with open(os.path.join(folder, "entry_points.txt"), "rb") as file:
                    if f"[{ENTRY_POINTS}]".encode() in file.read():
                        return True
            except OSError:  # it has none
                continue
    return False


def has_plugins() -> bool:
    """Whether other packages bring backends."""
    return bool(_plugins())


@cache
def load(kind: str) -> Backend:
    """The backend of a kind, whether or not it finds devices here. Raises DeviceUnavailable."""
    if kind not in BUILT_IN and kind not in _plugins():
        return load(parse(kind).kind)  # another name of a kind; of others it says what there is
    module_name, _, attribute = BUILT_IN.get(kind, "").partition(":")
    if not module_name:
        instance: Backend = _plugins()[kind].load()()
        return instance
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise DeviceUnavailable(f"{kind}: this build of rlx has no {module_name}") from None
    backend: Backend = getattr(module, attribute)()
    return backend


def refresh() -> None:
    """Forgets what was found, so that added or removed drivers and newly installed packages are seen."""
    _plugins.cache_clear()
    load.cache_clear()
    _probed.cache_clear()


def parse(device: str | Device) -> Device:
    """The device of this name, whether or not it is available. Raises DeviceUnavailable, which lists what is
    available."""
    try:
        return Device.parse(device, _plugins())
    except DeviceUnavailable as error:
        between = " " if str(error).endswith("?") else "; "
        raise DeviceUnavailable(f"{error}{between}{available_text()}") from None


def parse_list(devices: str) -> tuple[Device, ...]:
    """Devices by comma. Raises DeviceUnavailable."""
    return Device.parse_list(devices, _plugins())


@cache
def _probed(kind: str) -> Probe:
    try:
        return load(kind).probe()
    except (RlxError, ImportError) as error:
        return Probe(reason=str(error).removeprefix("[device] "))


def probe(kind: str) -> Probe:
    """What this backend finds here, looked up once (`refresh` forgets it); a backend that cannot be loaded gives its
    reason."""
    return _probed(kind)


def backend(device: str | Device) -> tuple[Backend, int]:
    """The backend of this device and the ordinal.

    Raises DeviceUnavailable with the reason and the available devices.
    """
    named = parse(device)
    reason = why_unavailable(named)
    if reason:
        raise DeviceUnavailable(f"[device] {named}: {reason}; {available_text()}")
    return load(named.kind), named.ordinal


@checked
def why_unavailable(device: str | Device) -> str:
    """Why the device cannot be used here, and what would help; empty if it can."""
    named = parse(device)
    probed = probe(named.kind)
    if not probed.devices:
        return probed.reason or "no such device here"
    if named.ordinal >= len(probed.devices):
        return f"expected an ordinal below {len(probed.devices)}, got {named.ordinal}"
    return ""


def is_available(device: str | Device) -> bool:
    return not why_unavailable(device)


def full_name(device: str | Device) -> str:
    """Kind and product: `CPU: AMD EPYC 9354 (avx512)`. Raises DeviceUnavailable."""
    named = parse(device)
    instance, ordinal = backend(named)
    return f"{named.label}: {instance.full_name(ordinal)}"


def available_devices() -> list[Device]:
    """All available devices, the strongest kinds first; `reference` and similar ones come last."""
    kinds = [*KINDS, *HELPERS, *(n for n in _plugins() if n not in KINDS and n not in HELPERS)]
    return [Device(kind, i) for kind in kinds for i in range(len(probe(kind).devices))]


def available() -> dict[str, tuple[str, ...]]:
    """Devices on this machine: backend name → names of its physical devices."""
    devices_of = {name: probe(name).devices for name in names()}
    return {name: devices for name, devices in devices_of.items() if devices}


def available_text() -> str:
    """`available()` as a clause of an error message."""
    return f"available here: {', '.join(available()) or 'none'}"
