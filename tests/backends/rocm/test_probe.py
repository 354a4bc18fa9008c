"""Which devices are found, by files that tests lay out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlx
from rlx.backends.rocm import libraries, probe
from rlx.device import registry

INSTALL = "install ROCm 6 or newer (https://rocm.docs.amd.com)"


@pytest.fixture
def machine(rocm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with ROCm, a processor and two GPUs; what is missing, tests take away."""
    for name in (libraries.HIP, libraries.COMPILER):
        (rocm / f"{name}.6").touch()
    for number, version in enumerate((0, 90010, 110001)):
        node = tmp_path / "nodes" / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 8\ngfx_target_version {version}\nvendor_id 4098\n")
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(probe, "DRIVER", tmp_path / "kfd")
    monkeypatch.setattr(probe, "NODES", tmp_path / "nodes")
    for variable in probe.VISIBLE:
        monkeypatch.delenv(variable, raising=False)
    return rocm


def test_gpus_by_their_architecture(machine: Path) -> None:
    assert probe.probe().devices == ("AMD GPU (gfx90a)", "AMD GPU (gfx1101)")
    assert [probe.architecture(n) for n in (90402, 120001, 100300)] == ["gfx942", "gfx1201", "gfx1030"]


@pytest.mark.parametrize("name", [libraries.HIP, libraries.COMPILER])
def test_no_library(name: str, machine: Path) -> None:
    (machine / f"{name}.6").unlink()
    assert probe.probe().reason == f"no {name}: {INSTALL}"
    (machine / f"{name}.5").touch()
    assert probe.probe().reason == f"{name}.5 is too old: {INSTALL}"
    (machine / f"{name}.7").touch()
    assert probe.probe().devices


def test_a_library_of_no_version_is_taken(machine: Path) -> None:
    (machine / f"{libraries.HIP}.6").rename(machine / libraries.HIP)
    assert probe.probe().devices


def test_rocm_that_the_environment_names_comes_first(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "lib").mkdir(parents=True)
    (tmp_path / "mine" / "lib" / f"{libraries.HIP}.5").touch()
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "mine"))
    assert probe.probe().reason == f"{libraries.HIP}.5 is too old: {INSTALL}"


def test_no_driver(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe.DRIVER.unlink()
    assert "no driver for AMD's GPUs" in probe.probe().reason
    probe.DRIVER.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "join the groups render and video" in probe.probe().reason


def test_a_driver_without_a_device(machine: Path) -> None:
    for number in (1, 2):
        (probe.NODES / str(number) / "properties").unlink()
    assert probe.probe().reason == "ROCm is here, and no AMD GPU"


@pytest.mark.parametrize(
    ("listed", "devices"),
    [
        ({"HIP_VISIBLE_DEVICES": "1,0"}, ("AMD GPU (gfx1101)", "AMD GPU (gfx90a)")),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, ("AMD GPU (gfx1101)",)),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, ()),
        ({"HIP_VISIBLE_DEVICES": ""}, ()),
    ],
    ids=str,
)
def test_devices_that_the_environment_leaves(
    listed: dict[str, str], devices: tuple[str, ...], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in listed.items():
        monkeypatch.setenv(name, value)
    found = probe.probe()
    assert found.devices == devices
    assert bool(devices) or found.reason.endswith(f"{' and '.join(v for v in probe.VISIBLE if v in listed)} hides it")


def test_rlx_tells_why_there_is_no_rocm(rocm: Path) -> None:
    registry.refresh()
    try:
        assert rlx.why_unavailable("rocm") == rlx.why_unavailable("hip:1") == f"no libamdhip64.so: {INSTALL}"
    finally:
        registry.refresh()


def test_a_look_loads_nothing() -> None:
    look = "import sys; from rlx.backends.rocm import probe; probe.probe(); print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "rlx.backends.rocm.probe" in loaded
    assert not {"rlx.backends.rocm.driver", "rlx.backends.rocm.hiprtc", "rlx.backends.cuda.device"} & loaded
