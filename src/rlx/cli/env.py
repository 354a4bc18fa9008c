"""`rlx env`: what a report of a fault needs to say of a machine."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from rlx import flags
from rlx.backends.cpu import isa, topology
from rlx.backends.failures import memory_bytes
from rlx.cli.baselines import version_of
from rlx.cli.cache import contents
from rlx.cli.console import emit_json, human_bytes, out, progress, table
from rlx.cli.devices import listed
from rlx.device import registry
from rlx.device.device import Device
from rlx.errors import DeviceUnavailable

PACKAGES = (
    "numpy", "llvmlite", "ml_dtypes", "onnx", "onnxruntime", "torch", "jax", "mlx", "wgpu", "coremltools", "typer",
)  # fmt: skip
"""Those whose versions matter to rlx, where they are installed."""


def show_env(as_json: bool) -> None:
    """Prints versions, the machine, devices, flags that are set, and the cache."""
    with progress("looking at devices"):
        report = environment()
    if as_json:
        emit_json(report)
        return
    console = out()
    cpu, cache = report["cpu"], report["cache"]
    rows = [
        ("rlx", report["rlx"]),
        ("Python", report["python"]),
        ("packages", ", ".join(f"{name} {version}" for name, version in report["packages"].items())),
        ("system", report["system"]),
        ("processor", f"{cpu['model']}, {cpu['isa']}"),
        ("cores", f"{cpu['cores']}, of which {cpu['usable']} may be used; rlx takes {cpu['threads']} threads"),
        ("memory", human_bytes(report["memory_bytes"])),
        ("cache", f"{cache['folder']}, {human_bytes(cache['bytes'])} in {cache['entries']} files{_off(cache)}"),
        *((name, value) for name, value in report["flags"].items()),
    ]
    console.print(table("", ("", ""), rows, wrap=(1,)))
    console.print()
    devices = [(d["device"], d["name"] if d["available"] else d["reason"]) for d in report["devices"]]
    console.print(table("devices", ("device", "what it is, or why it is not there"), devices, wrap=(1,)))


def _off(cache: dict[str, Any]) -> str:
    return "" if cache["enabled"] else " (not in use: RLX_CACHE=0)"


def environment() -> dict[str, Any]:
    """What `rlx env` tells, as data."""
    import rlx

    return {
        "rlx": rlx.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})",
        "packages": {name: version for name in PACKAGES if (version := version_of(name))},
        "system": platform.platform(),
        "cpu": _cpu(),
        "memory_bytes": memory_bytes(),
        "cache": contents(),
        "flags": {
            name: value + ("" if name in flags.FLAGS else " (rlx reads no variable of this name)")
            for name, value in sorted(os.environ.items())
            if name.startswith(flags.PREFIX) and name not in flags.OTHERS
        },
        "devices": [_device(device) for device in listed()],
    }


def _device(device: Device) -> dict[str, Any]:
    reason = registry.why_unavailable(device)
    name = device.label if reason else registry.full_name(device)
    return {"device": str(device), "name": name, "available": not reason, "reason": reason}


def _cpu() -> dict[str, Any]:
    usable = topology.usable()
    try:
        level = isa.detect().name
    except DeviceUnavailable as error:
        level = str(error)
    return {
        "model": isa.model_name(), "isa": level, "cores": os.cpu_count(), "usable": usable,
        "threads": topology.threads(),
    }  # fmt: skip
