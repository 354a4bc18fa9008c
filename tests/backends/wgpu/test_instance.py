"""Drivers live beside libraries that bring an LLVM of their own: each program here is a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

from support import why_absent

RUN = """
import sys
import numpy as np
import rlx
graph = rlx.Graph()
graph.output(graph.input("x", (4,)) + 1.0, name="y")
for device in sys.argv[1].split(","):
    (y,) = rlx.Session(device).compile(graph).run([np.ones(4, np.float32)])
    assert (y == 2).all()
"""
LOADED = 'print(*sorted({line.split()[-1] for line in open("/proc/self/maps")}), sep="\\n")'
linux = pytest.mark.skipif(sys.platform != "linux", reason="drivers of Mesa are Linux's")


def run(program: str, devices: str, path: Path | None = None) -> str:
    """What the program prints. It must end well."""
    for device in devices.split(","):
        if why_absent(device):
            pytest.skip(f"{device}: {why_absent(device)}")
    searched = os.pathsep.join(map(str, [*([path] if path else []), *sys.path]))
    completed = subprocess.run([sys.executable, "-c", RUN + program, devices], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": searched})  # fmt: skip
    assert completed.returncode == 0, f"{completed.returncode}: {completed.stderr}"
    return completed.stdout


@linux
@pytest.mark.parametrize("device", ["vulkan", "gpu"])
def test_opengl_is_not_loaded_for_others(device: str) -> None:
    """It brings its driver's LLVM into the scope of the whole process."""
    loaded = run(LOADED, device)
    assert "vulkan" in loaded and "libEGL" not in loaded and "swrast" not in loaded


@linux
def test_both_run_in_one_process() -> None:
    assert "libEGL" in run(LOADED, "vulkan,opengl,vulkan")


@linux
def test_libraries_with_an_llvm_are_loaded_before_opengl(tmp_path: Path) -> None:
    library = tmp_path / "triton" / "_C" / "libtriton.so"
    library.parent.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").touch()
    shutil.copy(next(Path(sysconfig.get_path("platlib")).glob("_cffi_backend*.so")), library)  # any will do
    assert str(library) not in run(LOADED, "vulkan", tmp_path)
    assert str(library) in run(LOADED, "opengl", tmp_path)


@linux
@pytest.mark.parametrize("devices", ["vulkan", "opengl", "vulkan,opengl"])
def test_triton_is_imported_after_a_driver(devices: str) -> None:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed: nothing here has an LLVM of its own that others see")
    run("from triton._C.libtriton import llvm; llvm.init_targets(); llvm.context()", devices)
