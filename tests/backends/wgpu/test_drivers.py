"""Looking for drivers: cheap, and with a reason where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlx.backends.wgpu import BACKENDS, drivers


def test_a_probe_imports_nothing_heavy() -> None:
    code = (
        "import sys; from rlx.backends.wgpu import BACKENDS; [b().probe() for b in BACKENDS.values()]; "
        "print(sorted({'wgpu', 'numpy.linalg.lapack_lite', 'rlx.codegen.simt', 'cffi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "wgpu" not in done.stdout and "wgsl" not in done.stdout and "cffi" not in done.stdout


def test_each_backend_has_devices_or_a_reason() -> None:
    for name, backend in BACKENDS.items():
        probe = backend().probe()
        assert backend.name == name
        assert bool(probe.devices) != bool(probe.reason), name


def test_manifests_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "_LIBRARY_DIRS", (str(tmp_path),))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "lvp_icd.x86_64.json"))
    assert drivers.vulkan() == ()
    (tmp_path / "libvulkan.so.1").touch()
    assert drivers.vulkan() == ()
    (tmp_path / "lvp_icd.x86_64.json").touch()
    assert drivers.vulkan() == ("software (lvp)",)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'rlx[gpu]'" in BACKENDS["vulkan"]().probe().reason
