"""The backend on a library that takes the place of Objective-C's runtime and Metal: it notes messages, counts who has
objects, and runs kernels on the processor."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlx.backends.apple_gpu import AppleGpuBackend, objective_c
from rlx.backends.apple_gpu.driver import MetalDriver
from rlx.backends.base import Probe
from rlx.backends.cuda import device
from rlx.device import registry
from tools import emulate_cuda
from tools.emulate_cuda import Emulator

SOURCE = Path(__file__).with_name("metal_library.cpp")
_compiled: dict[str, bytes] = {}
"""Code of kernels, for all tests."""


class Noted:
    """The library."""

    def __init__(self, path: Path) -> None:
        self.library = library = ctypes.CDLL(str(path))
        library.noted_messages.restype = library.what_is_wrong.restype = ctypes.c_char_p
        library.fail_next.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_char_p)
        library.set_capacity.argtypes = (ctypes.c_ulong,)
        library.set_kernel.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
        library.count_of.argtypes = (ctypes.c_char_p,)

    def messages(self) -> list[str]:
        """Since the last time."""
        messages = self.library.noted_messages().decode().splitlines()
        self.library.forget_messages()
        return list(messages)

    def wrong(self) -> str:
        """What no program may do."""
        told: bytes = self.library.what_is_wrong()
        return told.decode()

    def fail(self, message: str, code: int = 1, text: str = "injected") -> None:
        """Has the next message of this name fail; `run` is what commands do."""
        self.library.fail_next(message.encode(), code, text.encode())

    def capacity(self, nbytes: int) -> None:
        self.library.set_capacity(nbytes)

    def count(self, kind: str) -> int:
        """Objects of a kind that somebody has."""
        return int(self.library.count_of(kind.encode()))


class EmulatedMetal(MetalDriver):
    """Kernels run on the processor, when the queue is waited for."""

    noted: Noted

    def __init__(self) -> None:
        super().__init__()
        self.emulator = Emulator()
        self._running: dict[str, ctypes.CDLL] = {}

    def function(self, module: Any, name: str) -> Any:
        if name not in self._running:
            if name not in _compiled:
                _compiled[name] = self.emulator.compile(module.text, [name])
            self._running[name] = self.emulator.load(_compiled[name])
        run = ctypes.cast(self._running[name][f"run_{name}"], ctypes.c_void_p)
        self.noted.library.set_kernel(name.encode(), run)
        return super().function(module, name)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = emulate_cuda.why_absent() or ("" if platform.machine() == "x86_64" else "messages go on by x86-64's code")
    if reason:
        pytest.skip(reason)
    library = tmp_path_factory.mktemp("metal") / "library.so"
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", str(SOURCE), "-o", str(library)], check=True)
    return library


@pytest.fixture
def noted(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Noted]:
    """A library of its own for each test, in the place of macOS."""
    path = tmp_path / "libmetal.so"
    shutil.copy(built, path)
    for name in ("RUNTIME", "METAL"):
        monkeypatch.setattr(objective_c, name, str(path))
    monkeypatch.setattr(objective_c, "OTHERS", ())
    objective_c.objective_c.cache_clear()
    monkeypatch.setattr(device, "_drivers", {})
    monkeypatch.setattr(device, "_devices", {})
    library = Noted(path)
    yield library
    objective_c.objective_c.cache_clear()
    assert not library.wrong()


@pytest.fixture
def metal(noted: Noted, monkeypatch: pytest.MonkeyPatch) -> Iterator[Noted]:
    """The device `apple-gpu`, whose kernels run on the processor."""
    monkeypatch.setattr(EmulatedMetal, "noted", noted, raising=False)
    monkeypatch.setattr(AppleGpuBackend, "driver", lambda self: EmulatedMetal)
    monkeypatch.setattr(AppleGpuBackend, "probe", lambda self: Probe(devices=("Emulated",)))
    registry.refresh()
    yield noted
    registry.refresh()
