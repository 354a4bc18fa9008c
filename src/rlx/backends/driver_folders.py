"""Where graphics drivers are installed: folders and environment variables, for probes and for checks whether a driver
was added."""

from __future__ import annotations

import os
from pathlib import Path

LIBRARY_DIRS = (
    "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/opt/homebrew/lib",
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
)  # fmt: skip
OTHER_NODES = ("dxg", "kgsl-3d0", "mali0")
"""Device nodes in /dev beside those of `dri` and of NVIDIA."""


def library_folders() -> list[str]:
    """Folders of shared libraries."""
    extra = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [folder for folder in extra if folder] + list(LIBRARY_DIRS)


def named_manifests() -> list[Path]:
    """Manifests of Vulkan drivers that the environment names, in place of all others."""
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES") or ""
    return [Path(name) for name in named.split(os.pathsep) if name]


def manifest_folders() -> list[Path]:
    """Folders where the loader looks for manifests of Vulkan drivers."""
    shared = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    roots = [*_own_data(), *map(Path, shared.split(":")), Path("/etc")]
    return [root / "vulkan" / "icd.d" for root in roots]


def _own_data() -> list[Path]:
    """The user's folder of data; a user may have no home."""
    if os.environ.get("XDG_DATA_HOME"):
        return [Path(os.environ["XDG_DATA_HOME"])]
    try:
        return [Path.home() / ".local/share"]
    except RuntimeError:
        return []
