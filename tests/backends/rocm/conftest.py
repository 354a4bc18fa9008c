"""The backend on a driver that works on the processor, and its calls on a library that notes them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.cuda.emulated_driver import EmulatedDriver
from backends.cuda.emulated_kernels import Kernels
from rlx.backends.base import Probe
from rlx.backends.cuda import device
from rlx.backends.cuda.driver import Driver
from rlx.backends.rocm import RocmBackend, hiprtc, libraries
from rlx.backends.rocm.driver import HIP
from rlx.device import registry
from rlx.runtime.compiler import CODE
from tools import emulate_cuda

SOURCE = Path(__file__).with_name("hip_library.cpp")
KERNELS = {32: Kernels(), 64: Kernels()}
"""Of all tests, by the length of wavefronts."""


class EmulatedHip(EmulatedDriver):
    api = HIP
    times_in_graphs = False

    def version(self) -> str:
        return "6.3"

    def overlaps(self, ordinal: int) -> bool:
        return False

    def why_no_branches(self) -> str:
        return Driver.why_no_branches(self)


def needs_cpp() -> None:
    reason = emulate_cuda.why_absent()
    if reason:
        pytest.skip(reason)


@pytest.fixture(params=[64, 32], ids=lambda lanes: f"wavefronts of {lanes}")
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedHip]:
    """The driver that the device `rocm` has in this test."""
    needs_cpp()
    emulated = EmulatedHip(warp=request.param)
    emulated.kernels = KERNELS[request.param]
    monkeypatch.setattr(device, "_drivers", {(os.getpid(), "rocm"): emulated})
    monkeypatch.setattr(device, "_devices", {})
    monkeypatch.setattr(RocmBackend, "probe", lambda self: Probe(devices=("Emulated",)))
    CODE.clear()  # programs of other tests, on drivers of theirs
    registry.refresh()
    yield emulated
    registry.refresh()
    emulated.kernels.finish(emulated.emulator)


class Noted:
    """The library that notes calls."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.noted_calls.restype = ctypes.c_char_p
        library.fail_next.argtypes = (ctypes.c_char_p, ctypes.c_int)
        library.set_capacity.argtypes = (ctypes.c_size_t,)

    def calls(self) -> list[str]:
        """Since the last time."""
        calls = self.library.noted_calls().decode().splitlines()
        self.library.forget_calls()
        return list(calls)

    def names(self) -> list[str]:
        return [call.partition("(")[0] for call in self.calls()]

    def fail(self, name: str, code: int) -> None:
        """Has the next call of this name fail."""
        self.library.fail_next(name.encode(), code)

    def capacity(self, nbytes: int) -> None:
        self.library.set_capacity(nbytes)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_cpp()
    library = tmp_path_factory.mktemp("hip") / "library.so"
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", str(SOURCE), "-o", str(library)], check=True)
    return library


@pytest.fixture
def rocm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of ROCm's libraries, which is empty."""
    folder = tmp_path / "rocm" / "lib"
    folder.mkdir(parents=True)
    monkeypatch.setattr(libraries, "ROCM", folder.parent)
    monkeypatch.setattr(libraries.driver_folders, "LIBRARY_DIRS", ())
    for name in ("ROCM_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    libraries.load.cache_clear()
    hiprtc._compiler.cache_clear()
    yield folder
    libraries.load.cache_clear()
    hiprtc._compiler.cache_clear()


@pytest.fixture
def hip(built: Path, rocm: Path, monkeypatch: pytest.MonkeyPatch) -> Noted:
    """A library of HIP that notes calls, and one of hiprtc, in the place of ROCm's."""
    for name in (libraries.HIP, libraries.COMPILER):
        shutil.copy(built, rocm / f"{name}.6")
    monkeypatch.setattr(device, "_drivers", {})
    monkeypatch.setattr(device, "_devices", {})
    return Noted(libraries.load(libraries.HIP))
