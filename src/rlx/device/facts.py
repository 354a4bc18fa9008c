"""The facts that a choice without the graph depends on, according to the file system and the environment. A stored
choice is used if they are unchanged. No backend is imported.

Probes look for packages, drivers, device nodes and calibrations (`backends/*/__init__.py`, `backends/wgpu/drivers.py`).
Adding or removing one changes the folder that contains it.
"""

from __future__ import annotations

import hashlib
import os
import sys

from rlx import disk
from rlx.backends import driver_folders

VARIABLES = ("VK_", "XDG_DATA", "LD_LIBRARY_PATH", "SYSTEMROOT", "HOME", "PYTHON", "PATH")
"""How the names of those begin that probes and imports go by, beside rlx's own."""
_NODES = ("dri", *driver_folders.OTHER_NODES)
_LOOKED_FOR = ("wgpu", "jax", "libtpu", "mlx", "coremltools")
_METADATA = (".dist-info", ".egg-info", ".pth", ".egg-link")


def digest() -> str:
    """Changes wherever another device might be there to choose, or another reason to choose it."""
    variables = sorted(item for item in os.environ.items() if item[0].startswith(VARIABLES))
    parts = [repr(variables), repr([_stat(path) for path in _folders()]), repr(_listed("/sys/bus/pci/devices"))]
    parts.append(repr([name for name in _listed("/dev") if name.startswith("nvidia")]))
    parts.append(repr(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0))
    parts.append(repr([_packages(root or ".") for root in sys.path]))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _packages(root: str) -> list[tuple[object, ...]]:
    """What is installed in a folder of modules: packages that probes look for, and what tells of all others. The folder
    itself may change with every file that a program writes beside its script."""
    entries_of = [_stat(os.path.join(root, name)) for name in _LOOKED_FOR]
    try:
        with os.scandir(root) as entries:
            metadata = [entry for entry in entries if entry.name.endswith(_METADATA)]
            return entries_of + sorted((entry.name, entry.stat().st_mtime_ns) for entry in metadata)
    except OSError:  # an archive, or nothing
        return [*entries_of, _stat(root)]


def _folders() -> list[str]:
    try:
        calibrations = [os.path.join(disk.folder(), "calibration")]
    except disk.NoFolder:
        calibrations = []
    nodes = [os.path.join("/dev", name) for name in _NODES]
    manifests = [*driver_folders.named_manifests(), *driver_folders.manifest_folders()]
    return [*driver_folders.library_folders(), *nodes, *map(str, manifests), *calibrations]


def _stat(path: str) -> tuple[object, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return (path,)
    return (path, status.st_ino, status.st_mtime_ns)


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
