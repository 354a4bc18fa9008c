"""Where ROCm's libraries are: by files, nothing is loaded before it is needed."""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path

from rlx.backends import driver_folders
from rlx.errors import DeviceUnavailable

HIP, COMPILER = "libamdhip64.so", "libhiprtc.so"
OLDEST = 6
"""The first version of ROCm whose calls are those of `driver.py`."""
INSTALL = f"install ROCm {OLDEST} or newer (https://rocm.docs.amd.com)"
ROCM = Path("/opt/rocm")


def folders() -> list[str]:
    """Folders of libraries, ROCm's own first."""
    named = os.environ.get("ROCM_PATH")
    return [*([os.path.join(named, "lib")] if named else []), str(ROCM / "lib"), *driver_folders.library_folders()]


def find(name: str) -> tuple[str, int | None] | None:
    """A library: the newest file of the first folder that has one, and its version; None where there is none. A file
    without a version is one of any."""
    for folder in folders():
        try:
            files = [file for file in os.listdir(folder) if re.fullmatch(rf"{re.escape(name)}(\.\d+)?", file)]
        except OSError:
            continue
        if files:
            newest = max(files, key=lambda file: _version(file) or 0)
            return os.path.join(folder, newest), _version(newest)
    return None


def _version(file: str) -> int | None:
    number = file.rpartition(".")[2]
    return int(number) if number.isdigit() else None


def why_absent(name: str = HIP) -> str:
    """Why a library is not there; empty if it is."""
    found = find(name)
    if found is None:
        return f"no {name}: {INSTALL}"
    version = found[1]
    return f"{os.path.basename(found[0])} is too old: {INSTALL}" if version is not None and version < OLDEST else ""


@cache
def load(name: str) -> ctypes.CDLL:
    """Raises DeviceUnavailable."""
    reason, found = why_absent(name), find(name)
    if reason or found is None:
        raise DeviceUnavailable(f"[device] {reason}")
    try:
        return ctypes.CDLL(found[0])
    except OSError as error:
        raise DeviceUnavailable(f"[device] {found[0]} does not load: {error}") from error
