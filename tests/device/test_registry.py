"""What is here and what is not: quick, with reasons, without importing anything heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlx.device import registry
from rlx.device.device import HELPERS, KINDS, Device
from rlx.errors import DeviceUnavailable

HEAVY = ("wgpu", "jax", "mlx", "coremltools", "torch", "llvmlite", "importlib.metadata")


def test_every_kind_has_a_backend() -> None:
    for kind in (*KINDS, *HELPERS):
        assert registry.load(kind).name == kind
        assert all(registry.load(alias) is registry.load(kind) for alias in (KINDS | HELPERS)[kind].aliases)


def test_every_kind_is_here_or_says_why_not() -> None:
    for kind in (*KINDS, *HELPERS):
        probe = registry.probe(kind)
        assert probe.devices or probe.reason, kind
        assert registry.is_available(kind) == bool(probe.devices)


def test_a_probe_imports_nothing_heavy() -> None:
    program = (
        "import sys; from rlx.device import registry; from rlx.device.device import KINDS\n"
        "for kind in KINDS: registry.probe(kind)\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


def test_what_was_found_is_looked_up_once_until_it_is_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.refresh()
    looks = []
    backend = registry.load("cpu")
    plain = type(backend).probe
    monkeypatch.setattr(type(backend), "probe", lambda self: looks.append(1) or plain(self))
    registry.probe("cpu")
    registry.probe("cpu")
    assert len(looks) == 1
    registry.refresh()
    registry.probe("cpu")
    assert len(looks) == 2


def test_what_is_absent_is_refused_with_the_reason_and_what_is_here() -> None:
    with pytest.raises(DeviceUnavailable, match=r"\[device\] rocm: .*install ROCm 6 or newer.*available here: "):
        registry.backend("rocm")
    with pytest.raises(DeviceUnavailable, match=r"cpu:7: expected an ordinal below 1, got 7"):
        registry.backend("cpu:7")
    assert "Apple" in registry.why_unavailable("metal") or registry.is_available("metal")


def test_full_names_tell_the_product() -> None:
    assert registry.full_name("cpu").startswith("CPU: ")
    assert "H100" in registry.full_name("null")


def test_devices_come_strongest_kind_first_and_helpers_last() -> None:
    devices = registry.available_devices()
    assert Device("cpu") in devices
    ranks = [d.rank for d in devices]
    assert ranks == sorted(ranks)
