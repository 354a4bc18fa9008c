"""Programs in files and in the memory of a process: whole, damaged, of other machines, and compiled once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ModelError, RlxError
from rlx.runtime import compiler
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.compiler import CodeCache
from rlx.runtime.saved import ALIGN, MAGIC, _digest

X = np.arange(8, dtype="f4").reshape(2, 4)


def graph_of(scale: float = 2.0) -> rlx.Graph:
    graph = rlx.Graph("saved")
    x, w = graph.input("x", ("batch", 4)), graph.param("w", (4, 3), data=np.arange(12, dtype="f4").reshape(4, 3))
    graph.output(rlx.gelu(x @ w * scale), name="y")
    return graph


def saved(folder: Path) -> tuple[Path, CompiledGraph]:
    program = rlx.Session("cpu").compile(graph_of())
    program.save(folder / "program.rlxc")
    return folder / "program.rlxc", program


def rewrite(path: Path, change: Any) -> None:
    """Writes the file anew with another header, whose digest is right."""
    data = path.read_bytes()
    length = int.from_bytes(data[16:24], "little")
    header = json.loads(data[ALIGN : ALIGN + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGN)
    start = MAGIC + len(text).to_bytes(8, "little") + bytes(8) + bytes.fromhex(_digest(text))
    path.write_bytes(start + text + data[ALIGN + length :])


def test_a_saved_program_runs_as_it_did(tmp_path: Path) -> None:
    path, compiled = saved(tmp_path)
    opened = rlx.load_compiled(path)
    np.testing.assert_array_equal(opened.run([X])[0], compiled.run([X])[0])
    assert opened.executable.from_cache and opened.input_names == ("x",)
    opened.set_param("w", np.zeros((4, 3), "f4"))
    assert not opened.run([np.ones((7, 4), "f4")])[0].any()
    np.testing.assert_array_equal(rlx.load_compiled(path, threads=1).select("y").run([X])[0], compiled.run([X])[0])


@pytest.mark.parametrize(
    "fact, value, words",
    [
        ("rlx", "99.0", "version"),
        ("interface", "0", "version"),
        ("system", "Plan 9", "system"),
        ("features", "+avx512f,+warp9", "lacks.*warp9"),
        ("isa", "neon9", "neon9"),
    ],
)
def test_code_of_another_machine_is_refused_or_compiled_anew(tmp_path: Path, fact: str, value: str, words: str) -> None:
    path, compiled = saved(tmp_path)
    rewrite(path, lambda header: header["facts"].update({fact: value}))
    with pytest.raises(ModelError, match=words):
        rlx.load_compiled(path)
    np.testing.assert_array_equal(rlx.load_compiled(path, recompile=True).run([X])[0], compiled.run([X])[0])


def test_code_of_another_graph_is_refused(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    rewrite(path, lambda header: header.update(graph_digest="0"))
    with pytest.raises(ModelError, match="not of the graph"):
        rlx.load_compiled(path)


def test_damage_is_found_wherever_it_is(tmp_path: Path) -> None:
    path, compiled = saved(tmp_path)
    data = path.read_bytes()
    header = int.from_bytes(data[16:24], "little")
    code = json.loads(data[ALIGN : ALIGN + header])["code_bytes"]
    for at in (0, 20, 40, ALIGN + 3, ALIGN + header + 100, ALIGN + header + code // 2):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        with pytest.raises(ModelError):
            rlx.load_compiled(path)
    for length in (0, 1, 63, 64, 200, ALIGN + header + code // 2, ALIGN + header + code, len(data) - 100):
        path.write_bytes(data[:length])
        with pytest.raises(ModelError):
            rlx.load_compiled(path)
    path.write_bytes(data)
    np.testing.assert_array_equal(rlx.load_compiled(path).run([X])[0], compiled.run([X])[0])
    with pytest.raises(ModelError):
        rlx.load_compiled(tmp_path / "none")
    with pytest.raises(ModelError):
        rlx.load_compiled(tmp_path)


def test_headers_of_any_kind_raise_our_errors(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    changes: list[Any] = [
        lambda h: h.pop("device"), lambda h: h.update(facts=3), lambda h: h.update(code_bytes=-1),
        lambda h: h.update(code_bytes=1 << 60), lambda h: h.update(device="warp"), lambda h: h.update(code_bytes="x"),
        lambda h: h.update(facts={}),
    ]  # fmt: skip
    data = path.read_bytes()
    for change in changes:
        path.write_bytes(data)
        rewrite(path, change)
        with pytest.raises(RlxError):
            rlx.load_compiled(path)


def test_equal_graphs_share_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "CODE", CodeCache(1 << 24))
    monkeypatch.setenv("RLX_CACHE", "0")
    session = rlx.Session("cpu", cache=True)
    first, second, other = (session.compile(graph_of(s)) for s in (2.0, 2.0, 3.0))
    assert second.executable.loaded is first.executable.loaded  # type: ignore[attr-defined]
    assert other.executable.loaded is not first.executable.loaded  # type: ignore[attr-defined]
    assert (compiler.CODE.hits, compiler.CODE.misses, len(compiler.CODE)) == (1, 2, 2)
    assert second.describe()["from_cache"]
    second.set_param("w", np.zeros((4, 3), "f4"))
    assert first.run([X])[0].any() and not second.run([X])[0].any()
    session.compile(graph_of(4.0))
    assert 0 < compiler.CODE.nbytes <= 1 << 24
    rlx.Session("cpu", cache=False).compile(graph_of(2.0))
    assert compiler.CODE.hits == 1


def test_kept_code_is_bounded_in_bytes() -> None:
    cache = CodeCache(100)

    class Sized:
        nbytes = 40

    for key in "abc":
        cache.put(key, Sized())  # type: ignore[arg-type]
        assert cache.get("a") is not None or key == "c"
    assert len(cache) == 2 and cache.get("b") is None and cache.nbytes == 80, "the least recently used goes first"


def test_what_stays_between_runs_is_saved(tmp_path: Path) -> None:
    """A program that draws, counts and feeds goes on where it was, bit for bit; in a process of its own too."""
    graph = rlx.Graph("kept")
    x, fed = graph.input("x", (3,)), graph.input("fed", (3,))
    state, at = graph.state("state", (4, 3)), graph.state("at", (), "i64")
    written = rlx.update_slice(state, (x + rlx.random_normal(graph.random_state(), shape=(3,))).reshape(1, 3), at)
    graph.set_next(state, written)
    graph.set_next(at, at + 1)
    graph.output(fed * 0.5 + x, name="fed_next")
    graph.output(rlx.reduce_sum(written, axes=(0,)), name="sum")
    program = rlx.Session("cpu").compile(graph)
    program.bind_handle("fed", np.ones(3, "f4"))
    program.set_feeds({"fed_next": "fed"})
    program.seed(7)
    for _ in range(2):
        program.run({"x": X[0, :3]})
    path = tmp_path / "program.rlxc"
    program.save(path)
    opened = rlx.load_compiled(path)
    script = (
        "import sys, numpy as np, rlx\n"
        "c = rlx.load_compiled(sys.argv[1])\n"
        "r = [a.tobytes().hex() for _ in range(2) for a in c.run({'x': np.arange(3, dtype='f4')})]\n"
        "print(*r, c.read_handle('state').tobytes().hex())\n"
    )
    completed = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    expected = [a.tobytes() for _ in range(2) for a in program.run({"x": X[0, :3]})]
    assert [bytes.fromhex(part) for part in completed.stdout.split()] == [
        *expected,
        program.read_handle("state").tobytes(),
    ]
    assert [a.tobytes() for _ in range(2) for a in opened.run({"x": X[0, :3]})] == expected
    assert opened.read_handle("at") == 4 and opened.handles() == ("fed", "state", "at")
    with pytest.raises(RlxError, match="starts"):
        opened.run({"x": X[0, :3]})


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda kept: kept["arrays"][0].__setitem__(0, "x"), "to go with it"),
        (lambda kept: kept["arrays"][0].__setitem__(2, [1 << 40]), "to go with it"),
        (lambda kept: kept["arrays"][0].__setitem__(1, "i64"), "to go with it"),
        (lambda kept: kept.update(feeds={"y": "nothing"}), "to go with it"),
        (lambda kept: kept.update(bytes=1 << 30), "bytes of states"),
        (lambda kept: kept.update(digest="00"), "damaged"),
    ],
)
def test_what_was_kept_is_checked(tmp_path: Path, change: Any, words: str) -> None:
    graph = rlx.Graph("kept")
    state = graph.state("state", (4,))
    graph.set_next(state, state + 1.0)
    graph.output(state * graph.input("x", ()), name="y")
    path = tmp_path / "program.rlxc"
    rlx.Session("cpu").compile(graph).save(path)
    rewrite(path, lambda header: change(header["kept"]))
    with pytest.raises(ModelError, match=words):
        rlx.load_compiled(path)


def test_clones_take_the_seed_over() -> None:
    graph = rlx.Graph("draws")
    graph.output(graph.input("x", (8,)) + rlx.random_normal(graph.random_state(), shape=(8,)), name="y")
    program = rlx.Session("cpu").compile(graph)
    zeros = np.zeros(8, "f4")
    assert not np.array_equal(program.clone().run([zeros])[0], program.run([zeros])[0]), "without a seed keys differ"
    program.seed(5)
    program.run([zeros])
    other = program.clone()
    assert np.array_equal(other.run([zeros])[0], program.run([zeros])[0])
