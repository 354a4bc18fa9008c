"""A package that brings a device: the example is installed and used, as its users would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import numpy as np, rlx
from rlx.device import registry
assert registry.full_name("abacus") == "abacus: ten rods of ten beads", registry.full_name("abacus")
graph = rlx.Graph("sum")
graph.output(graph.input("x", (3,), "i64") + graph.input("y", (3,), "i64"))
compiled = rlx.Session("abacus").compile(graph)
print(compiled.device, compiled.run([np.arange(3), np.arange(3)])[0].tolist())
floats = rlx.Graph("floats")
floats.output(rlx.exp(floats.input("x", (3,), "f32")))
from rlx.device.support import dispatch_report
print(dispatch_report(floats, "abacus").why_not)
"""


def test_the_example_package_brings_its_device(tmp_path: Path) -> None:
    place = tmp_path / "packages"
    package = tmp_path / "package"  # builds leave files beside their sources
    subprocess.run(["cp", "-r", str(ROOT / "examples/backend_package"), str(package)], check=True)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), str(package)]
    completed = subprocess.run(install, capture_output=True, text=True)
    if completed.returncode and "hatchling" in completed.stderr:
        pytest.skip("what builds the package cannot be installed here")
    assert completed.returncode == 0, completed.stderr
    path = os.pathsep.join([str(place), *sys.path])
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert lines[0] == "abacus [0, 2, 4]"
    assert "an abacus has no f32" in lines[1]
