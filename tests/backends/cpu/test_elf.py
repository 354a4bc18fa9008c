"""Objects in memory without LLVM's loader: the same code as with it, and what is refused."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu import elf, isa, jit
from rlx.backends.cpu.artifact import from_bytes
from rlx.backends.cpu.elf import Image, Unloadable
from rlx.errors import CompileError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="objects of x86-64 on Linux"
)

TEXT = """
@table = internal constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
@counter = internal global i64 40
@pointer = internal global ptr @counter
declare i64 @labs(i64)
define i64 @rlx_pick(i64 %at) {
  %place = getelementptr i64, ptr @table, i64 %at
  %found = load i64, ptr %place
  ret i64 %found
}
define i64 @rlx_count() {
  %where = load ptr, ptr @pointer
  %old = load i64, ptr %where
  %new = add i64 %old, 1
  store i64 %new, ptr %where
  ret i64 %new
}
define i64 @rlx_outside(i64 %x) {
  %made = call i64 @labs(i64 %x)
  ret i64 %made
}
"""
OTHER = """
declare i64 @rlx_pick(i64)
define i64 @rlx_twice(i64 %at) {
  %found = call i64 @rlx_pick(i64 %at)
  %made = add i64 %found, %found
  ret i64 %made
}
"""


def objects(*texts: str) -> list[bytes]:
    return jit.emit_objects(texts, isa.detect())


def call(image: Image, name: str, *arguments: int) -> int:
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))(image.symbols[name])
    return int(function(*arguments))


def test_code_constants_data_and_the_c_library() -> None:
    image = Image(objects(TEXT, OTHER))
    assert [call(image, "rlx_pick", n) for n in range(4)] == [3, 5, 7, 11]
    assert [call(image, "rlx_count") for _ in range(3)] == [41, 42, 43]
    assert call(image, "rlx_outside", -9) == 9
    assert call(image, "rlx_twice", 2) == 14


def test_memory_is_not_written_and_run() -> None:
    image = Image(objects(TEXT))
    with open("/proc/self/maps", encoding="utf-8") as file:
        maps = [line.split() for line in file]
    at = image.symbols["rlx_pick"]
    (rights,) = (line[1] for line in maps if (s := line[0].split("-")) and int(s[0], 16) <= at < int(s[1], 16))
    assert rights.startswith("r-x")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: b"no object", "no ELF"),
        (lambda data: data[:18] + b"\xb7\0" + data[20:], "no relocatable object"),  # of another processor
        (lambda data: data[:16] + b"\3\0" + data[18:], "no relocatable object"),  # a shared library
    ],
)
def test_other_files_are_refused(change: Any, why: str) -> None:
    with pytest.raises(Unloadable, match=why):
        Image([change(objects(TEXT)[0])])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("declare void @rlx_no()\ndefine void @rlx_call() {\n  call void @rlx_no()\n  ret void\n}", "'rlx_no'"),
        ("@own = thread_local global i64 0\ndefine ptr @rlx_own() {\n  ret ptr @own\n}", "sections"),
        ("@far = global i64 0, align 8192\ndefine ptr @rlx_far() {\n  ret ptr @far\n}", "aligned to 8192"),
    ],
)  # fmt: skip
def test_what_it_does_not_know_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unloadable, match=why):
        Image(objects(text))


def test_symbols_that_are_there_twice_are_refused() -> None:
    with pytest.raises(Unloadable, match="twice"):
        Image(objects(OTHER + TEXT.split("declare")[0], OTHER))


def test_llvm_loads_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = rlx.Graph()
    x = graph.input("x", ("n", 64))
    graph.output(rlx.softmax(x @ graph.param("w", (64, 64), data=np.eye(64, dtype="f4")), axis=-1), name="y")
    program = rlx.Session("cpu", cache=False).compile(graph)
    code = from_bytes(program.executable.code()).code
    inputs = [np.linspace(0, 1, 3 * 64, dtype="f4").reshape(3, 64)]
    ours = program.run(inputs)[0]
    assert jit.Loaded(code, isa.detect())._image is not None

    def refuse(objects: object) -> Image:
        raise Unloadable("something new")

    monkeypatch.setattr(jit, "Image", refuse)
    loaded = jit.Loaded(code, isa.detect())
    assert loaded._image is None and loaded.address("rlx_main")
    np.testing.assert_array_equal(rlx.Session("cpu", cache=False).compile(graph).run(inputs)[0], ours)


def test_relocations_of_other_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "BY_DISTANCE", (elf.R_PLT32,))
    with pytest.raises(Unloadable, match=r"kinds \[.*2.*\]"):
        Image(objects(TEXT))


FORKED = """
import os, time
import numpy as np
import rlx
g = rlx.Graph("products")
x, w = g.input("x", ("n", 64)), g.param("w", (64, 256))
g.output(rlx.relu(x @ w) @ w.transpose(1, 0), name="y")
compiled = rlx.Session("cpu", threads=2).compile(g)
random = np.random.default_rng(0)
weights = random.integers(-3, 4, (64, 256)).astype("f4")
rows = random.integers(-3, 4, (400, 64)).astype("f4")
compiled.set_params({"w": weights})
wanted = np.maximum(rows @ weights, 0) @ weights.T

def wrong():
    end, count = time.monotonic() + 1.5, 0
    while time.monotonic() < end:
        count += not np.array_equal(compiled.run({"x": rows})[0], wanted)
    return count

wrong()
child = os.fork()
count = wrong()
if not child:
    os._exit(count > 0)
assert os.waitpid(child, 0)[1] == 0
assert count == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_shares_no_threads_with_its_parent(tmp_path: Path) -> None:
    environment = {**os.environ, "RLX_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=120, env=environment)


def test_code_that_calls_what_nobody_has_is_refused() -> None:
    """LLVM's loader would have it call address 0."""
    text = "declare i64 @rlx_nobody()\ndefine i64 @rlx_calls() {\n  %v = call i64 @rlx_nobody()\n  ret i64 %v\n}\n"
    with pytest.raises(CompileError, match="functions of this process, got 'rlx_nobody'"):
        jit.Loaded(objects(text), isa.detect())
