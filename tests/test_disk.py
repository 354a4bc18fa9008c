"""The cache may fail in any way, and programs run: no home, no right to write, no space, damaged or left files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rlx import disk
from rlx.device import calibration
from support import why_absent

RUN = """
import sys
import numpy as np
import rlx
graph = rlx.Graph()
graph.output(graph.input("x", (4,)) + 1.0, name="y")
(y,) = rlx.Session(sys.argv[1]).compile(graph).run([np.ones(4, np.float32)])
assert (y == 2).all()
"""
MEASURE = """
from rlx.device import calibration, observed
from rlx.device.device import Device
assert calibration.calibration(Device("null")).rates
key = observed.Key("p", ())
observed.of(Device("null")).record(key, observed.sample_of("p", [1.0], {"call": 1.0}, "t", 0.0))
assert observed.of(Device("null")).measured(key).measured_ns == 1.0
"""
NOBODY = """
import pwd
def unknown(user):
    raise KeyError(user)
pwd.getpwuid = unknown
"""
HOMELESS = dict.fromkeys(("HOME", "RLX_CACHE_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME"))


def python(program: str, *arguments: str, cwd: Path, **variables: str | None) -> str:
    """What a program prints; it must end well. Variables that are None are not set."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RLX_CACHE": "1", **variables}
    completed = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=cwd,
        env={name: value for name, value in environment.items() if value is not None},
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    disk._sweep.cache_clear()
    return tmp_path


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_a_user_without_a_home_runs_programs(device: str, tmp_path: Path) -> None:
    if why_absent(device):
        pytest.skip(f"{device}: {why_absent(device)}")
    empty = tmp_path / "empty"
    empty.mkdir()
    python(NOBODY + RUN, device, cwd=empty, **HOMELESS)
    assert not list(empty.iterdir()), "nothing is written beside the program"


def test_a_user_without_a_home_measures_devices(tmp_path: Path) -> None:
    python(NOBODY + MEASURE, cwd=tmp_path, **HOMELESS)


def test_a_user_without_a_home_may_ask_for_the_cache(tmp_path: Path) -> None:
    assert "none: " in python(NOBODY + "from rlx.cli import main; main(['cache'])", cwd=tmp_path, **HOMELESS)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: what is written beyond fails as it does there."""
    pytest.importorskip("resource")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
    python(limit + RUN, "cpu", cwd=tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_write_that_fails_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    disk.write("key", b"before")
    monkeypatch.setattr(os, "replace", full)
    disk.write("key", b"after")
    assert disk.read("key") == b"before"
    assert [path.name for path in tmp_path.iterdir()] == [f"key{disk.SUFFIX}"]


def test_what_was_left_long_ago_is_swept_away(tmp_path: Path) -> None:
    old, young = tmp_path / f"old{disk.UNFINISHED}", tmp_path / f"young{disk.UNFINISHED}"
    for path in (old, young):
        path.write_bytes(b"half")
    then = time.time() - 2 * disk.STALE_S
    os.utime(old, (then, then))
    disk.write("key", b"whole")
    assert not old.exists() and young.exists() and disk.read("key") == b"whole"


def test_a_damaged_entry_is_not_read(tmp_path: Path) -> None:
    disk.write("key", b"whole")
    path = tmp_path / f"key{disk.SUFFIX}"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert disk.read("key") is None and not path.exists()


@pytest.mark.parametrize("place", ["file", "/proc/self/nowhere", "folder"])
def test_a_folder_that_cannot_be_written_to_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir(mode=0o500)
    where = Path(place) if place.startswith("/") else tmp_path / place
    if os.access(where, os.W_OK) and where.is_dir():
        pytest.skip("this user may write anywhere")
    monkeypatch.setenv("RLX_CACHE_DIR", str(where))
    disk.write("key", b"whole")
    assert disk.read("key") is None and disk.entries() == []
    python(RUN, "cpu", cwd=tmp_path, RLX_CACHE_DIR=str(where))


def test_calibrations_and_observations_are_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx.device import observed
    from rlx.device.device import Device

    calibration.forget()
    observed.reload()
    calibrated = calibration.calibration(Device("null"))
    observations = observed.of(Device("null"))
    folder = calibration.path_of(Device("null"), calibrated.identity).parent
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    calibration.write(calibrated)
    observations.record(observed.Key("p", ()), observed.sample_of("p", [1.0], {"call": 1.0}, "t", 0.0))
    assert not list(folder.glob(f"*{disk.UNFINISHED}"))


def test_mapped_entries_come_back() -> None:
    arrays = {"a": np.arange(1000, dtype="f4").reshape(10, 100), "b": np.zeros(0, "u1"), "é": np.ones(3, "i8")}
    disk.write_mapped("key", arrays)
    entry = disk.map_entry("key")
    assert entry is not None and entry.is_whole() and list(entry.arrays) == list(arrays)
    for name, array in arrays.items():
        assert entry.arrays[name].tobytes() == array.tobytes()
        assert not array.nbytes or entry.arrays[name].ctypes.data % 64 == 0
    assert disk.map_entry("other") is None


def test_more_than_a_fourth_of_the_cache_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_BYTES", "4000")
    disk.write_mapped("key", {"a": np.zeros(1001, "u1")})
    assert disk.map_entry("key") is None


def test_a_block_that_a_process_has_left_is_free_again(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "HELD_S", 0.05)
    left = own_folder / f"key{disk.UNFINISHED}"
    left.touch()
    os.utime(left, (1, 1))
    with disk.alone("key"):
        assert left.stat().st_mtime > 1
    assert not left.exists()
