"""The backend on a driver that works on the processor: everything but the driver runs for real, on any machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rlx.backends.base import Probe
from rlx.backends.cuda import CudaBackend, device
from rlx.device import registry
from rlx.runtime.compiler import CODE
from tools import emulate_cuda

from .emulated_driver import EmulatedDriver

_compiled: dict[str, bytes] = {}
"""Code of kernels, for all tests: a compiler takes a second for each."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedDriver]:
    """The driver that the device `cuda` has in this test."""
    reason = emulate_cuda.why_absent()
    if reason:
        pytest.skip(reason)
    emulated = EmulatedDriver()
    emulated._compiled = _compiled
    monkeypatch.setattr(device, "_drivers", {(os.getpid(), "cuda"): emulated})
    monkeypatch.setattr(device, "_devices", {})
    monkeypatch.setattr(CudaBackend, "probe", lambda self: Probe(devices=("Emulated",)))
    CODE.clear()  # programs of other tests, on drivers of theirs
    registry.refresh()
    yield emulated
    registry.refresh()
