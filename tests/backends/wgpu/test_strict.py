"""What a strict compiler of WGSL refuses is not written, also where nothing runs it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.wgpu.build import build
from rlx.backends.wgpu.device import PORTABLE_BINDING
from rlx.ir.graph import Graph

ROOT = Path(__file__).parents[3]


def test_axes_without_elements_divide_nothing() -> None:
    graph = Graph("empty")
    x, none = graph.input("x", (2, 3), "f32"), graph.input("none", (2, 0), "f32")
    graph.output(ops.concat(x, none, axis=1), none + 1, ops.reduce_sum(none, axes=(0, 1)))
    plan = build(graph, Options(), PORTABLE_BINDING)
    text = "\n".join(step.shader.text for step in (*plan.prepare, *plan.main))
    assert "% 0i" not in text and "/ 0i" not in text


def test_dawn_takes_what_is_written() -> None:
    """Without the package that brings Dawn the check says so, and is no failure."""
    command = [sys.executable, str(ROOT / "tools" / "check_dawn.py"), "--only", "concat", "--compile-only"]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    completed = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    if importlib.util.find_spec("wgpudawn") is None:
        assert "wgpudawn is not installed" in completed.stdout
        pytest.skip("wgpudawn is not installed: nothing was compiled")
    assert "compiled, not run" in completed.stdout
