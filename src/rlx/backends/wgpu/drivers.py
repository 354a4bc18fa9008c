"""Looks for drivers cheaply, by files; no library is loaded. `device.py` asks the drivers what they really find."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from rlx.backends import driver_folders

_SOFTWARE = ("lvp", "swiftshader", "swrast", "llvmpipe")
_DEV, _SYS = Path("/dev"), Path("/sys/class/drm")
_NVIDIA = "0x10de"


def vulkan() -> tuple[str, ...]:
    """What Vulkan may find, by its loader and the manifests of drivers: hardware, then software drivers."""
    if sys.platform == "win32":
        return _windows_library("vulkan-1.dll")
    if not _library("libvulkan.so.1", "libvulkan.1.dylib", "libMoltenVK.dylib"):
        return ()
    drivers = [m.name.split("_icd")[0].removesuffix(".json") for m in _manifests()]
    software = [d for d in drivers if d.startswith(_SOFTWARE) or "swiftshader" in d]
    hardware = _nodes() if len(drivers) > len(software) else []
    return tuple(dict.fromkeys([*hardware, *(f"software ({d})" for d in software)]))


def opengl() -> tuple[str, ...]:
    """What OpenGL may find."""
    if sys.platform == "win32":
        return _windows_library("opengl32.dll")
    if sys.platform == "darwin" or not _library("libEGL.so.1", "libEGL.so"):
        return ()
    return ("EGL" if _nodes() else "software (EGL)",)


def directx() -> tuple[str, ...]:
    return _windows_library("d3d12.dll") if sys.platform == "win32" else ()


def metal() -> tuple[str, ...]:
    return ("Metal",) if sys.platform == "darwin" else ()


def _nodes() -> list[str]:
    """Device nodes of graphics hardware, one for each product: those of NVIDIA have one of the kernel's and one of the
    driver's, or the driver's alone."""
    render = [path.name for path in sorted(_DEV.glob("dri/renderD*"))]
    own = [path.name for path in sorted(_DEV.glob("nvidia[0-9]*"))]
    both = sum(_vendor(name) in (_NVIDIA, "") for name in render)
    others = [path.name for pattern in driver_folders.OTHER_NODES for path in sorted(_DEV.glob(pattern))]
    nodes = [*render, *own[both:], *others]
    return nodes or (["Metal"] if sys.platform == "darwin" else [])


def _vendor(node: str) -> str:
    """Who made what a node of the kernel's is for; empty where that is not told."""
    try:
        return (_SYS / node / "device" / "vendor").read_text().strip()
    except OSError:
        return ""


def _manifests() -> list[Path]:
    """Manifests of Vulkan drivers, where the loader looks for them."""
    named = driver_folders.named_manifests()
    if named:
        return [path for path in named if path.exists()]
    return [path for folder in driver_folders.manifest_folders() for path in sorted(folder.glob("*.json"))]


def _library(*names: str) -> bool:
    return _any_file(dirs=driver_folders.library_folders(), names=names)


def _windows_library(name: str) -> tuple[str, ...]:
    root = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32"
    return (name,) if (root / name).exists() else ()


def _any_file(dirs: Iterable[str], names: Iterable[str]) -> bool:
    file_names = tuple(names)
    return any(os.path.exists(os.path.join(d, n)) for d in dirs for n in file_names)
