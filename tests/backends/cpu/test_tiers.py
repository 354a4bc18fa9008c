"""Code in two tiers: quick code runs at once, better code takes its place, and both give the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx import disk
from rlx.backends.cpu import jit, tiers
from rlx.backends.cpu.artifact import from_bytes
from rlx.backends.cpu.isa import detect
from rlx.backends.cpu.kernel_store import Pieces
from rlx.errors import ModelError, OptionError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.runtime.compiler import CODE
from rlx.runtime.session import Session

X = np.random.default_rng(0).standard_normal((7, 40)).astype(np.float32)


@pytest.fixture(autouse=True)
def two_tiers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However short a program is; a cache folder of the test's own."""
    monkeypatch.setattr(tiers, "LEAST_CHARACTERS", 0)
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RLX_TIERS", "1")
    CODE.clear()


def net() -> Graph:
    graph = Graph("net")
    random = np.random.default_rng(1)
    w = graph.param("w", (40, 33), "f32", data=random.standard_normal((40, 33)).astype(np.float32))
    graph.output(rlx.softmax(rlx.gelu(graph.input("x", ("n", 40), "f32") @ w)), name="y")
    return graph


def entries(folder: Path) -> list[str]:
    names = [path.name for path in folder.glob(f"*{disk.SUFFIX}") if not path.name.startswith(("pool-", "kernel-"))]
    return sorted("quick" if "quick" in name else "full" for name in names)


@pytest.mark.parametrize("cached", ["0", "1"])
def test_better_code_takes_the_place_of_quick_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cached: str
) -> None:
    monkeypatch.setenv("RLX_CACHE", cached)
    compiled = Session("cpu").compile(net())
    before = compiled.program.executable.code_in_use  # type: ignore[attr-defined]
    quick = compiled.run([X])[0]
    compiled.finish()
    assert compiled.program.executable.code_in_use != before  # type: ignore[attr-defined]
    np.testing.assert_array_equal(compiled.run([X])[0], quick)
    assert compiled.describe()["tier"] == "full"
    assert entries(tmp_path) == (["full"] if cached == "1" else [])
    if cached == "1":
        again = Session("cpu").with_options(compiled.program.compiler.options)  # type: ignore[union-attr]
        assert again.compile(net()).describe()["tier"] == "full"


def test_a_process_that_ends_early_leaves_its_quick_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setattr(tiers.Promotion, "_work", lambda self: None)
    quick = Session("cpu").compile(net())
    expected = quick.run([X])[0]
    promotion = quick.program.executable.loaded.promotion  # type: ignore[attr-defined]
    key = promotion._key
    disk.write(tiers.quick_key(key), tiers.pack(promotion._artifact, promotion._pieces, promotion._isa))
    monkeypatch.undo()
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_TIERS", "1")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    program = "import rlx, numpy as np, sys; sys.path.insert(0, sys.argv[1]); from test_tiers import X, net; " \
              "c = rlx.Session('cpu').compile(net()); c.finish(); print(c.describe()['from_cache']); " \
              "np.save(sys.argv[2], c.run([X])[0])"  # fmt: skip
    completed = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path / "y.npy")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.stdout.strip() == "True", completed.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected)
    assert entries(tmp_path) == ["full"]


@pytest.mark.parametrize("executable", ["/bin/false", "/nowhere/python"])
def test_without_another_process_the_better_code_is_written_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, executable: str
) -> None:
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setattr(sys, "executable", executable)
    compiled = Session("cpu").compile(net())
    quick = compiled.run([X])[0]
    compiled.finish()
    np.testing.assert_array_equal(compiled.run([X])[0], quick)
    assert compiled.describe()["tier"] == "full" and entries(tmp_path) == ["full"]


def test_a_compile_before_the_first_run_has_one_tier() -> None:
    compiled = Session("cpu", compile="before").compile(net())
    assert compiled.program.executable.loaded.promotion is None  # type: ignore[attr-defined]
    assert not Session("cpu", compile="before").options.tiered and Session("cpu").options.tiered
    with pytest.raises(OptionError, match="'before', got 'never'"):
        Session("cpu", compile="never")  # type: ignore[arg-type]


def test_a_saved_program_holds_the_better_code(tmp_path: Path) -> None:
    compiled = Session("cpu").compile(net())
    compiled.save(tmp_path / "program.rlx")
    assert compiled.describe()["tier"] == "full"
    np.testing.assert_array_equal(rlx.load_compiled(tmp_path / "program.rlx").run([X])[0], compiled.run([X])[0])


def test_runs_in_many_threads_see_one_tier_or_the_other() -> None:
    from concurrent.futures import ThreadPoolExecutor

    compiled = Session("cpu").compile(net())
    expected = compiled.run([X])[0]

    def work(_: int) -> list[Array]:
        return [compiled.run([X])[0] for _ in range(200)]

    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(work, range(4)):
            for actual in results:
                np.testing.assert_array_equal(actual, expected)
    compiled.finish()


def test_damaged_jobs_are_told() -> None:
    for data in (b"", b"\xff" * 40, (2).to_bytes(8, "little") + b"{}"):
        with pytest.raises(ModelError, match="first tier"):
            tiers.unpack(data)


def test_parts_of_a_module_are_written_beside_each_other() -> None:
    """The same objects, whether one thread writes them or several."""
    text = "define i64 @f{0}(i64 %a) {{\n  %b = mul i64 %a, {0}\n  ret i64 %b\n}}\n"
    texts = [text.format(i) for i in range(2, 8)]
    one = jit.emit_objects(texts, detect(), threads=1)
    assert jit.emit_objects(texts, detect(), threads=4) == one and len(set(one)) == 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_waits_for_threads_that_write_code() -> None:
    from threading import Thread

    text = "define i64 @f(i64 %a) {\n" + "".join(
        f"  %v{i} = mul i64 {'%a' if i == 0 else f'%v{i - 1}'}, {i + 3}\n" for i in range(3000)
    ) + "  ret i64 %v2999\n}\n"  # fmt: skip
    threads = [Thread(target=jit.emit_objects, args=([text], detect())) for _ in range(3)]
    for thread in threads:
        thread.start()
    child = os.fork()
    if child == 0:
        objects = jit.emit_objects(["define i64 @g() {\n  ret i64 1\n}\n"], detect())
        os._exit(0 if objects else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for thread in threads:
        thread.join()


def test_code_that_another_start_had_written_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its process removes the job when it is done, and ours finds none."""
    monkeypatch.setenv("RLX_CACHE", "1")
    program = Session("cpu").compile(net())
    program.finish()
    key = program.program.executable.loaded.key  # type: ignore[attr-defined]
    assert key is not None
    artifact = from_bytes(disk.read(key) or b"")
    monkeypatch.setattr(tiers.Worker, "progress", lambda worker: iter(()))
    monkeypatch.setattr(jit, "emit_objects", None)  # nothing is compiled here
    taken: list[list[bytes]] = []
    promotion = tiers.Promotion(artifact, Pieces(("text",), {}), detect(), key, taken.append)
    promotion.wait()
    assert taken == [artifact.code]
