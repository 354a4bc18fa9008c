"""What the device finds: macOS, Apple's own processor, a version, a framework; and libraries that do not load."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

import rlx
from rlx.backends.apple_gpu import AppleGpuBackend, objective_c, probe
from rlx.backends.apple_gpu.driver import MetalDriver
from rlx.device import registry
from rlx.errors import DeviceUnavailable

from .conftest import Noted


@pytest.fixture
def macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that has all."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("14.5", ("", "", ""), "arm64"))
    monkeypatch.setattr(probe, "FRAMEWORK", tmp_path)
    return monkeypatch


def test_a_machine_that_has_all(macos: pytest.MonkeyPatch) -> None:
    assert probe.probe().devices == ("Apple GPU (macOS 14.5)",) and not probe.probe().reason


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has them")
def test_other_systems_have_none() -> None:
    assert AppleGpuBackend().probe().reason == "Apple GPUs are there on macOS only"
    registry.refresh()
    for name in ("apple-gpu", "apple"):
        with pytest.raises(DeviceUnavailable, match="Apple GPUs are there on macOS only; available here: "):
            rlx.Session(name)


def test_processors_of_others_have_none(macos: pytest.MonkeyPatch) -> None:
    macos.setattr(platform, "machine", lambda: "x86_64")
    assert "Apple's own processors only: the device metal" in probe.probe().reason


@pytest.mark.parametrize("version", ["12.7.1", "10.15", ""])
def test_old_systems_have_not_the_language(macos: pytest.MonkeyPatch, version: str) -> None:
    macos.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), "arm64"))
    assert probe.probe().reason == f"macOS {version} is too old: Metal's language 3.0 came with macOS 13"


def test_a_framework_that_is_not_there(macos: pytest.MonkeyPatch, tmp_path: Path) -> None:
    macos.setattr(probe, "FRAMEWORK", tmp_path / "Metal.framework")
    assert probe.probe().reason == f"no {tmp_path / 'Metal.framework'}"


def test_libraries_that_do_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective_c, "RUNTIME", "/nowhere/libobjc.dylib")
    objective_c.objective_c.cache_clear()
    with pytest.raises(DeviceUnavailable, match=r"Metal does not load: .*libobjc"):
        MetalDriver()


def test_no_device_and_no_class(noted: Noted) -> None:
    noted.fail("MTLCreateSystemDefaultDevice")
    with pytest.raises(DeviceUnavailable, match="Metal has no device here"):
        MetalDriver()
    noted.fail("NSString")
    with pytest.raises(DeviceUnavailable, match="macOS has no class NSString"):
        objective_c.objective_c().string("text")
