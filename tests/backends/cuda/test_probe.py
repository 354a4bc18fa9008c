"""Which devices are found, by files that tests lay out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.backends.cuda import nvrtc, probe

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}.159.04  Tue\nGCC version: 13.2"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a driver and two devices; what is missing, tests take away."""
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / probe.LIBRARY).touch()
    for number, model in enumerate(("NVIDIA H200", "NVIDIA L4")):
        gpu = tmp_path / "proc" / "gpus" / f"0000:0{number}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"Model: \t\t {model}\nIRQ: 11\n")
    (tmp_path / "proc" / "version").write_text(VERSION.format(580))
    (tmp_path / "dev").mkdir()
    (tmp_path / "site" / "cuda" / "bindings").mkdir(parents=True)
    monkeypatch.setattr(probe, "FOLDERS", (str(folder),))
    monkeypatch.setattr(probe.driver_folders, "LIBRARY_DIRS", ())
    monkeypatch.setattr(probe, "LOADER_CACHE", tmp_path / "cache")
    monkeypatch.setattr(probe, "DRIVER", tmp_path / "proc")
    monkeypatch.setattr(probe, "NODES", tmp_path / "dev")
    monkeypatch.setattr(nvrtc, "why_absent", lambda: "")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for name in ("LD_LIBRARY_PATH", probe.VISIBLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_products_by_what_the_driver_tells(machine: Path) -> None:
    assert probe.probe().devices == ("NVIDIA H200", "NVIDIA L4")


def test_no_driver(machine: Path) -> None:
    (machine / "lib" / probe.LIBRARY).unlink()
    assert "no NVIDIA driver on this machine" in probe.probe().reason
    (machine / "cache").write_bytes(b"\0libcuda.so.1\0/opt/libcuda.so.1\0")
    assert probe.probe().devices, "the loader knows of folders that nobody lists"


def test_an_old_driver(machine: Path) -> None:
    (machine / "proc" / "version").write_text(VERSION.format(535))
    assert probe.probe().reason == "the NVIDIA driver 535 is too old: install 580 or newer"


def test_a_driver_without_a_device(machine: Path) -> None:
    for information in machine.glob("proc/gpus/*/information"):
        information.unlink()
    assert "no device" in probe.probe().reason
    for node in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (machine / "dev" / node).touch()
    assert probe.probe().devices == ("NVIDIA GPU",)


@pytest.mark.parametrize(
    ("listed", "devices"),
    [
        ("1,0", ("NVIDIA L4", "NVIDIA H200")), ("1", ("NVIDIA L4",)), ("0,7,1", ("NVIDIA H200",)),
        ("GPU-1a2b", ("NVIDIA H200",)), ("", ()), ("-1", ()),
    ],
)  # fmt: skip
def test_devices_that_the_environment_leaves(
    listed: str, devices: tuple[str, ...], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(probe.VISIBLE, listed)
    found = probe.probe()
    assert found.devices == devices
    assert bool(devices) or "CUDA_VISIBLE_DEVICES hides it" in found.reason


def test_packages_that_are_missing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "why_absent", lambda: "no NVRTC")
    assert probe.probe().reason == "no NVRTC"
    monkeypatch.setattr(probe, "has_bindings", lambda: False)
    assert "cuda-bindings is not installed: pip install 'rlx[cuda]'" in probe.probe().reason


def test_a_look_loads_nothing() -> None:
    look = "import sys; from rlx.backends.cuda import probe; probe.probe(); print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, text=True, check=True)
    assert "rlx.backends.cuda.probe" in done.stdout
    assert not any(name.startswith("cuda.") for name in done.stdout.split())
