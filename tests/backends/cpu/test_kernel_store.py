"""Programs share the machine code of their kernels on disk: what is found, what is kept, and what is damaged."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx import disk
from rlx.backends.cpu import isa, jit, kernel_store, tiers, units
from rlx.backends.cpu.elf import Image, Unloadable
from rlx.errors import ModelError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.runtime.compiler import CODE
from rlx.runtime.session import Session

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="objects of x86-64 on Linux"
)

X = np.random.default_rng(0).standard_normal((7, 40)).astype(np.float32)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache folder of the test's own."""
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RLX_CACHE", "1")
    CODE.clear()
    yield tmp_path
    CODE.clear()


@pytest.fixture
def compiled_text(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that LLVM gets, in order."""
    texts: list[str] = []
    emit = jit.emit_objects

    def listening(parts: list[str], *arguments: object, **named: object) -> list[bytes]:
        texts.extend(parts)
        return emit(parts, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(jit, "emit_objects", listening)
    return texts


def net(name: str = "net", layers: int = 1, last: str = "softmax") -> Graph:
    graph = Graph(name)
    value = graph.input(f"{name}_x", ("n", 40), "f32")
    for number in range(layers):
        weight = np.random.default_rng(number).standard_normal((40, 40)).astype(np.float32) / 8
        value = rlx.gelu(value @ graph.param(f"{name}_w{number}", (40, 40), "f32", data=weight))
    graph.output(getattr(rlx, last)(value), name=f"{name}_y")
    return graph


def run(graph: Graph) -> Array:
    CODE.clear()
    return Session("cpu").compile(graph).run([X])[0]


def fresh(monkeypatch: pytest.MonkeyPatch, graph: Graph) -> Array:
    """Results of a compile that keeps nothing and finds nothing."""
    CODE.clear()
    with monkeypatch.context() as patch:
        patch.setenv("RLX_CACHE", "0")
        return Session("cpu").compile(graph).run([X])[0]


def kernels(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{disk.KERNELS}*{disk.SUFFIX}"))


def defined(texts: list[str]) -> list[str]:
    """Functions of kernels that texts define."""
    lines = [line for text in texts for line in text.splitlines() if line.startswith("define ")]
    return [line for line in lines if "@rlx_" not in line]


def test_kernels_that_differ_in_names_alone_are_compiled_once(
    compiled_text: list[str], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    first = run(net("one"))
    assert len(defined(compiled_text)) == len(kernels(cache)) > 2
    compiled_text.clear()
    np.testing.assert_array_equal(run(net("two")), first)
    assert compiled_text and defined(compiled_text) == []  # `rlx_main` is each program's own
    np.testing.assert_array_equal(fresh(monkeypatch, net("two")), first)


def test_a_net_that_has_more_compiles_what_is_new(
    compiled_text: list[str], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    run(net())
    before = kernels(cache)
    compiled_text.clear()
    larger = net(layers=3, last="log_softmax")
    actual = run(larger)
    new = set(kernels(cache)) - set(before)
    assert 0 < len(defined(compiled_text)) == len(new) < len(before)
    np.testing.assert_array_equal(actual, fresh(monkeypatch, larger))


def test_quick_code_beside_kernels_of_the_store(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """The first tier uses them as they are, and the second adds to them."""
    run(net())
    monkeypatch.setattr(tiers, "LEAST_CHARACTERS", 0)
    monkeypatch.setenv("RLX_TIERS", "1")
    before, larger = len(kernels(cache)), net(layers=2, last="log_softmax")
    CODE.clear()
    compiled = Session("cpu").compile(larger)
    quick = compiled.run([X])[0]
    compiled.finish()
    np.testing.assert_array_equal(compiled.run([X])[0], quick)
    np.testing.assert_array_equal(fresh(monkeypatch, larger), quick)
    assert len(kernels(cache)) > before and compiled.describe()["tier"] == "full"


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data + b"more"])
def test_damaged_entries_are_compiled_and_written_again(damage: object, compiled_text: list[str], cache: Path) -> None:
    expected = run(net())
    good = {path: path.read_bytes() for path in kernels(cache)}
    for path, data in good.items():
        path.write_bytes(damage(data))  # type: ignore[operator]
    compiled_text.clear()
    np.testing.assert_array_equal(run(net("another")), expected)
    assert len(defined(compiled_text)) == len(good)
    assert {path: path.read_bytes() for path in kernels(cache)} == good


def test_entries_of_another_form_are_compiled_again(compiled_text: list[str], cache: Path) -> None:
    expected = run(net())
    for path in kernels(cache):
        disk.write(path.stem, b"\x02\0\0\0[]")
    compiled_text.clear()
    np.testing.assert_array_equal(run(net("another")), expected)
    assert len(defined(compiled_text)) == len(kernels(cache))


def test_code_that_cannot_be_taken_apart_runs_and_is_not_kept(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def refuse(content: bytes) -> dict[str, units.Unit]:
        raise Unloadable("something new")

    expected = run(net())
    before = kernels(cache)
    monkeypatch.setattr(units, "split", refuse)
    larger = net(layers=2, last="log_softmax")
    np.testing.assert_array_equal(run(larger), fresh(monkeypatch, larger))
    np.testing.assert_array_equal(run(net("again")), expected)
    assert kernels(cache) == before


def test_nothing_is_kept_where_the_cache_is_off(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    fresh(monkeypatch, net())
    Session("cpu", cache=False).compile(net())
    assert not kernels(cache)


def test_the_store_lies_within_the_bounds_of_the_cache(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    run(net())
    most = sum(size for _, size in disk.entries()) // 2
    monkeypatch.setenv("RLX_CACHE_BYTES", str(most))
    disk.write_all({"kernel-new": b"unit"})
    assert cache / f"kernel-new{disk.SUFFIX}" in [path for path, _ in disk.entries()]
    assert sum(size for _, size in disk.entries()) <= most


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_kernel_store import X, net, run
for number in range(3):
    print(run(net(f"net{number}", layers=2)).tobytes().hex())
"""


def test_processes_that_write_at_once(cache: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parent)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate()[0] for process in started}
    assert len(said) == 1 and all(process.returncode == 0 for process in started)
    assert run(net(layers=2)).tobytes().hex() == said.pop().splitlines()[0]


FUNCTIONS = """
declare double @cos(double) nonlazybind
declare void @later(ptr, ptr) nonlazybind
declare void @tail(ptr) nonlazybind
define void @first(ptr %a) {
  %v = load <8 x float>, ptr %a, align 4
  %s = fmul <8 x float> %v, <float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0, float 8.0>
  %t = fadd <8 x float> %s, <float 0.5, float 0.5, float 0.5, float 0.5, float 0.5, float 0.5, float 0.5, float 0.5>
  store <8 x float> %t, ptr %a, align 4
  call void @later(ptr %a, ptr @tail)
  ret void
}
define double @outside(double %x) {
  %y = call double @cos(double %x)
  %z = fadd double %y, 0.25
  ret double %z
}
"""
OTHERS = """
define void @later(ptr %a, ptr %function) {
  %v = load float, ptr %a, align 4
  %w = fadd float %v, 0.5
  store float %w, ptr %a, align 4
  tail call void %function(ptr %a)
  ret void
}
define void @tail(ptr %a) {
  %v = load float, ptr %a, align 4
  %w = fmul float %v, 3.0
  store float %w, ptr %a, align 4
  ret void
}
"""


def test_units_are_put_together_as_a_linker_does() -> None:
    objects = jit.emit_objects([FUNCTIONS, OTHERS], isa.detect())
    made = {name: unit for part in objects for name, unit in units.split(part).items()}
    assert sorted(made) == ["first", "later", "outside", "tail"]
    assert all(units.from_bytes(units.to_bytes(unit)) == unit for unit in made.values())
    data = np.arange(8, dtype=np.float32)
    expected = data * np.arange(1, 9, dtype=np.float32) + np.float32(0.5)
    expected[0] = (expected[0] + np.float32(0.5)) * 3
    whole = Image([units.linked(made, ["first", "outside"])])
    assert sorted(whole.symbols) == ["first", "outside"]
    parts = Image([units.linked({n: made[n] for n in ("first", "outside")}, ["first", "outside"]), objects[1]])
    for image in (whole, parts, Image(objects)):
        array = data.copy()
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(image.symbols["first"])(array.ctypes.data)
        np.testing.assert_array_equal(array, expected)
        outside = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(image.symbols["outside"])
        assert outside(0.0) == 1.25


def test_llvm_loads_what_is_put_together() -> None:
    made = {n: u for part in jit.emit_objects([FUNCTIONS, OTHERS], isa.detect()) for n, u in units.split(part).items()}
    engine = jit.Loaded._by_llvm([units.linked(made, ["outside"])], isa.detect())
    address = int(engine.get_function_address("outside"))
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(address)(0.0) == 1.25


@pytest.mark.parametrize("level", ["sse", "avx2", "avx512"])
def test_code_for_each_instruction_set_comes_apart(level: str) -> None:
    from rlx.backends.base import Options
    from rlx.backends.cpu import build
    from rlx.codegen.simd.module import written

    target = isa.forced(level, for_codegen_only=True)
    graph = net(layers=2)
    program, bounds = build.program_of(graph, target, Options())
    module = written(program, target, bounds, build._kept(program), reuse=True)
    pieces = kernel_store.look_up(module, target, 1)
    (content,) = jit.emit_objects(pieces.texts, target)
    assert units.split(content).keys() > module.kernels().keys()


@pytest.mark.parametrize("text", [
    "define internal i64 @f() noinline {\n  ret i64 1\n}\ndefine i64 @g() {\n  %a = call i64 @f()\n  ret i64 %a\n}\n",
    "@t = internal global i64 4\ndefine i64 @g() {\n  %a = load i64, ptr @t\n  ret i64 %a\n}\n",
    "@t = internal constant [3 x i64] [i64 4, i64 5, i64 6]\ndefine i64 @g(i64 %i) {\n"
    "  %p = getelementptr i64, ptr @t, i64 %i\n  %a = load i64, ptr %p\n  ret i64 %a\n}\n",
])  # fmt: skip
def test_what_a_function_shares_with_others_is_refused(text: str) -> None:
    (content,) = jit.emit_objects([text], isa.detect())
    with pytest.raises(Unloadable):
        units.split(content)


def test_damaged_pieces_are_told() -> None:
    pieces = kernel_store.Pieces(("text", "more"), {"f": b"unit"}, {"g": "key"})
    assert kernel_store.unpack(kernel_store.pack(pieces)) == pieces
    for data in (b"", b"\xff" * 40, (2).to_bytes(8, "little") + b"{}"):
        with pytest.raises(ModelError, match="first tier"):
            kernel_store.unpack(data)
