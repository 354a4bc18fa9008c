"""Looking for drivers: cheap, and with a reason where there is none."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from rlx.backends import driver_folders
from rlx.backends.wgpu import BACKENDS, drivers
from rlx.backends.wgpu.device import adapters
from rlx.device import calibration, registry
from rlx.device.device import Device
from rlx.errors import DeviceUnavailable


def test_a_probe_imports_nothing_heavy() -> None:
    code = (
        "import sys; from rlx.backends.wgpu import BACKENDS; [b().probe() for b in BACKENDS.values()]; "
        "print(sorted({'wgpu', 'numpy.linalg.lapack_lite', 'rlx.codegen.simt', 'cffi'} & set(sys.modules)))"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "wgpu" not in completed.stdout and "wgsl" not in completed.stdout and "cffi" not in completed.stdout


def test_each_backend_has_devices_or_a_reason() -> None:
    for name, backend in BACKENDS.items():
        probe = backend().probe()
        assert backend.name == name
        assert bool(probe.devices) != bool(probe.reason), name


def test_manifests_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_folders, "LIBRARY_DIRS", (str(tmp_path),))
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


def test_a_product_is_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "_DEV", tmp_path / "dev")
    monkeypatch.setattr(drivers, "_SYS", tmp_path / "sys")
    (tmp_path / "dev" / "dri").mkdir(parents=True)
    monkeypatch.setattr(sys, "platform", "linux")

    def node(name: str, vendor: str = "") -> None:
        (tmp_path / "dev" / name).touch()
        if vendor:
            folder = tmp_path / "sys" / Path(name).name / "device"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor}\n")

    node("nvidia0")
    assert drivers._nodes() == ["nvidia0"], "a container often has the driver's own node alone"
    node("dri/renderD128")
    assert drivers._nodes() == ["renderD128"], "who made it is not told: it is taken for the same"
    node("dri/renderD129", "0x8086")
    assert drivers._nodes() == ["renderD128", "renderD129"], "one of Intel beside it"
    node("nvidia1")
    assert drivers._nodes() == ["renderD128", "renderD129", "nvidia1"]
    node("dri/renderD130", "0x10de")
    assert drivers._nodes() == ["renderD128", "renderD129", "renderD130"]


def test_opengl_counts_where_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = BACKENDS["gpu"]
    monkeypatch.setattr(drivers, "opengl", lambda: ("EGL",))
    monkeypatch.setattr(gpu, "looks", (lambda: ("renderD128",), lambda: ()))
    assert gpu().look() == ("renderD128",)
    monkeypatch.setattr(gpu, "looks", (lambda: (),))
    assert gpu().look() == ("EGL",)


def test_devices_are_known_by_their_adapter_and_its_driver() -> None:
    backend = BACKENDS["vulkan"]()
    if not backend.probe().devices:
        pytest.skip("no Vulkan here")
    adapter = adapters("Vulkan")[0]
    identity = backend.identity()
    assert identity["device"] == adapter.info["device"] and identity["driver"] == adapter.info["description"]
    assert identity["wgpu"] == version("wgpu") and identity["interface"] == "Vulkan"
    assert identity["device"] in backend.full_name() and identity["driver"] in backend.full_name()
    assert identity["device"] in calibration.identity(Device("vulkan")).values()
    assert identity["device"] in registry.full_name("vulkan")
    with pytest.raises(DeviceUnavailable, match="adapter number 7"):
        backend.identity(7)
