"""Calls of the driver by cuda-bindings, as a library gets them: what a graph is told of its parts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.probe import has_bindings
from rlx.codegen.simt.language import cuda
from rlx.codegen.simt.language.texts import text_of
from tools import emulate_cuda

SOURCE = Path(__file__).with_name("driver_library.cpp")
CALLS = """
from rlx.backends.cuda.bindings import BindingsDriver

driver = BindingsDriver()
assert driver.why_no_branches() == ""
stream = driver.stream()
condition = driver.condition(stream)
driver.branch(condition, stream, [lambda inner: print("yes", inner), lambda inner: print("no", inner)])
driver.branch(condition, stream, [lambda inner: driver.condition(inner)], repeated=True)
try:
    driver.branch(condition, stream, [lambda inner: 1 // 0])
except ZeroDivisionError:
    print("failed")
driver.load(b"text\\0")
"""
NODE = "node of 0x7f0000002001 behind 0x7f00000a1000:00 0x7f00000a2000:11, 13 f234567890abcdef"
BEHIND = "0x7f0000002000 goes on behind 1: 0x7f00000d0000 (nil) 1"
CONTEXT = "0x7f00000c0000"


def test_parts_of_graphs_get_their_arguments(tmp_path: Path) -> None:
    reason = emulate_cuda.why_absent() or ("" if has_bindings() else "no cuda-bindings")
    if reason:
        pytest.skip(reason)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", str(SOURCE), "-o", str(library), "-ldl"], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-u", "-c", CALLS]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.splitlines() == [
        "stream 0x7f0000002000 1",
        f"condition of 0x7f0000002001 {CONTEXT} 0 0",
        f"{NODE} 0 2 {CONTEXT}",
        "stream 0x7f0000003000 1", "note 0x7f0000003000 in 0x7f00000b1000 behind 0, 2", "yes <CUstream 0x7f0000003000>",
        "noted 0x7f0000003000", "drop 0x7f0000003000",
        "stream 0x7f0000004000 1", "note 0x7f0000004000 in 0x7f00000b2000 behind 0, 2", "no <CUstream 0x7f0000004000>",
        "noted 0x7f0000004000", "drop 0x7f0000004000",
        BEHIND,
        f"{NODE} 1 1 {CONTEXT}",
        "stream 0x7f0000005000 1", "note 0x7f0000005000 in 0x7f00000b1000 behind 0, 2",
        f"condition of 0x7f0000005001 {CONTEXT} 0 0", "noted 0x7f0000005000", "drop 0x7f0000005000",
        BEHIND,
        f"{NODE} 0 1 {CONTEXT}",
        "stream 0x7f0000006000 1", "note 0x7f0000006000 in 0x7f00000b1000 behind 0, 2",
        "noted 0x7f0000006000", "drop 0x7f0000006000", "failed",
        "load 4",
    ]  # fmt: skip


def test_what_decides_is_ptx_of_an_old_version() -> None:
    """Which drivers take that are older than the compiler, and whose call they resolve themselves."""
    if nvrtc.why_absent():
        pytest.skip(nvrtc.why_absent())
    text = nvrtc.compile_ptx(f"{cuda.prelude()}\n{text_of('cuda_decide.cuh')}").decode()
    lines = [line.strip() for line in text.splitlines()]
    assert [line for line in lines if line.startswith(".version")] == [f".version {nvrtc.PTX_VERSION}"]
    assert ".target sm_75" in lines and ".extern .func cudaGraphSetConditional" in lines
    assert [line for line in lines if ".entry" in line] == [".visible .entry rlx_decide("]
    assert "\0" not in text
