"""A cheap look for NVIDIA's driver and devices, by files: nothing is loaded."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path

from rlx.backends import driver_folders
from rlx.backends.base import Probe
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.bindings import EXTRA

LIBRARY = "libcuda.so.1"
FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/cuda/compat", "/usr/lib/wsl/lib")
LOADER_CACHE = Path("/etc/ld.so.cache")
DRIVER = Path("/proc/driver/nvidia")
NODES = Path("/dev")
OLDEST = 580
"""The first driver that runs what NVRTC 13 makes."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def probe() -> Probe:
    if not has_library():
        return Probe(reason=f"no NVIDIA driver on this machine ({LIBRARY} not found): install it")
    version = driver_version()
    if version is not None and version < OLDEST:
        return Probe(reason=f"the NVIDIA driver {version} is too old: install {OLDEST} or newer")
    devices = visible(names())
    if not devices:
        hidden = f", or {VISIBLE} hides it" if os.environ.get(VISIBLE) is not None else ""
        return Probe(reason=f"the NVIDIA driver is here, and no device (/dev/nvidia0){hidden}")
    if not has_bindings():
        return Probe(reason=f"the package cuda-bindings is not installed: {EXTRA}")
    absent = nvrtc.why_absent()
    return Probe(reason=absent) if absent else Probe(devices=devices)


def has_library() -> bool:
    """Whether the loader would find the driver's library."""
    folders = (*driver_folders.library_folders(), *FOLDERS)
    if any(os.path.exists(os.path.join(folder, LIBRARY)) for folder in folders):
        return True
    try:
        return LIBRARY.encode() in LOADER_CACHE.read_bytes()
    except OSError:
        return False


def driver_version() -> int | None:
    """The first number of the driver's version, where it tells it."""
    try:
        found = re.search(r"\b(\d{3})\.\d+", (DRIVER / "version").read_text())
    except OSError:
        return None
    return int(found[1]) if found else None


def names() -> list[str]:
    """Products, by what the driver tells of each; where it tells nothing, one for each node."""
    told = sorted((DRIVER / "gpus").glob("*/information"))
    models = [re.search(r"Model:\s*(.+)", _text(path)) for path in told]
    if models:
        return [model[1].strip() if model else "NVIDIA GPU" for model in models]
    nodes = [path for path in NODES.glob("nvidia[0-9]*") if path.name[6:].isdigit()]
    if nodes:
        return ["NVIDIA GPU"] * len(nodes)
    return ["NVIDIA GPU"] if (NODES / "dxg").exists() and os.path.exists(f"/usr/lib/wsl/lib/{LIBRARY}") else []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def visible(devices: Sequence[str], variable: str = VISIBLE) -> tuple[str, ...]:
    """The devices that the environment leaves, in its order: numbers up to the first that there is not. Names of
    devices that are no numbers stand for one each."""
    listed = os.environ.get(variable)
    if listed is None:
        return tuple(devices)
    chosen: list[str] = []
    for word in listed.split(","):
        word = word.strip()
        if re.fullmatch(r"(GPU|MIG)-.+", word):
            chosen.append(devices[0] if devices else "NVIDIA GPU")
        elif word.isdigit() and int(word) < len(devices):
            chosen.append(devices[int(word)])
        else:
            break
    return tuple(chosen)


def has_bindings() -> bool:
    spec = importlib.util.find_spec("cuda")
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    return any(os.path.isdir(os.path.join(folder, "bindings")) for folder in folders)
