"""The backend on a driver that works on the processor: everything but the driver runs for real, on any machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlx.backends.base import Probe
from rlx.backends.cuda import CudaBackend, blas, device
from rlx.device import registry
from rlx.runtime.compiler import CODE
from tools import emulate_cuda

from .emulated_driver import EmulatedDriver
from .emulated_kernels import Kernels
from .fake_cublaslt import FakeLibrary, build, installed

KERNELS = Kernels()
"""Of all tests: many have one in common."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedDriver]:
    """The driver that the device `cuda` has in this test."""
    reason = emulate_cuda.why_absent()
    if reason:
        pytest.skip(reason)
    emulated = EmulatedDriver()
    emulated.kernels = KERNELS
    monkeypatch.setattr(device, "_drivers", {(os.getpid(), "cuda"): emulated})
    monkeypatch.setattr(device, "_devices", {})
    monkeypatch.setattr(CudaBackend, "probe", lambda self: Probe(devices=("Emulated",)))
    CODE.clear()  # programs of other tests, on drivers of theirs
    registry.refresh()
    yield emulated
    registry.refresh()
    KERNELS.finish(emulated.emulator)


@pytest.fixture(scope="session")
def cublaslt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that works on the processor."""
    reason = emulate_cuda.why_absent()
    if reason:
        pytest.skip(reason)
    return build(tmp_path_factory.mktemp("cublaslt"))


@pytest.fixture
def fake(driver: EmulatedDriver, cublaslt: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    """The library, which `auto` has make products of few rows too."""
    monkeypatch.setattr(blas, "LEAST_ROWS", 8)
    monkeypatch.setattr(blas, "MOST_REPEATS", 2)
    monkeypatch.setenv("RLX_CUDA_BLAS", "auto")
    return installed(monkeypatch, cublaslt, driver)


@pytest.fixture
def always(fake: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    monkeypatch.setenv("RLX_CUDA_BLAS", "always")
    return fake
