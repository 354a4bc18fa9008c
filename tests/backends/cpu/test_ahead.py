"""Processes that are started before it is known what they compile."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx.backends.cpu import ahead, arrival, first_runs, topology
from rlx.runtime.compiler import CODE

ARRIVAL = arrival.__name__
X, W = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(topology, "usable", lambda: 2)
    yield
    ahead.drop()


def waiting() -> subprocess.Popen[str]:
    (found,) = ahead._waiting
    return found.process


def test_one_waits_at_a_time() -> None:
    ahead.start(ARRIVAL)
    first = waiting()
    ahead.start(ARRIVAL)
    assert waiting() is first
    first.kill()
    first.wait()
    ahead.start(ARRIVAL)
    assert waiting() is not first


def test_none_waits_where_it_would_take_the_only_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "usable", lambda: 1)
    ahead.start(ARRIVAL)
    assert not ahead._waiting


def test_it_ends_when_nobody_wants_it() -> None:
    ahead.start(ARRIVAL)
    process = waiting()
    ahead.drop()
    assert process.wait(60) == 0 and not ahead._waiting
    assert ahead.given(ARRIVAL, []) is None


def test_it_is_for_one_program_folder_and_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ahead.start(ARRIVAL)
    process = waiting()
    assert ahead.given("rlx.backends.cpu.tiers", []) is None and process.wait(60) == 0
    ahead.start(ARRIVAL)
    process = waiting()
    monkeypatch.setenv("RLX_DISABLE", "cse")
    assert ahead.given(ARRIVAL, []) is None and process.wait(60) == 0
    ahead.start(ARRIVAL)
    process = waiting()
    monkeypatch.chdir(tmp_path)  # names of folders may begin there
    assert ahead.given(ARRIVAL, []) is None and process.wait(60) == 0


def test_one_that_has_ended_gets_no_job() -> None:
    ahead.start(ARRIVAL)
    process = waiting()
    process.kill()
    process.wait()
    assert ahead.given(ARRIVAL, ["folder", "job", "key"]) is None


def test_a_fork_leaves_it_to_the_process_that_has_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead.start(ARRIVAL)
    process = waiting()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert ahead.given(ARRIVAL, []) is None and process.poll() is None
    process.kill()


def test_a_job_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(data: bytes, ends: bool) -> list[str]:
        reading, writing = os.pipe()
        os.write(writing, data)
        if ends:
            os.close(writing)
        with os.fdopen(reading) as stdin:
            monkeypatch.setattr(ahead.sys, "stdin", stdin)
            try:
                return ahead.job()
            finally:
                if not ends:
                    os.close(writing)

    assert read(b'["a folder", "job", "key"]\n', ends=False) == ["a folder", "job", "key"]
    with pytest.raises(SystemExit):
        read(b"", ends=True)
    monkeypatch.setattr(ahead, "WAIT_S", 0.0)
    with pytest.raises(SystemExit):
        read(b"", ends=False)


def test_loading_a_model_starts_the_process_that_compiles_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("RLX_CACHE_DIR", str(tmp_path / "cache")), ("RLX_CACHE", "1"), ("RLX_TIERS", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(first_runs, "LEAST_WORK", 0)
    monkeypatch.setattr(arrival, "START_S", 0.0)
    CODE.clear()
    begun: list[Sequence[str]] = []
    spawned = ahead.spawned

    def counted(module: str, arguments: Sequence[str], waits: bool = False) -> subprocess.Popen[str]:
        begun.append([module, *arguments])
        return spawned(module, arguments, waits)

    monkeypatch.setattr(ahead, "spawned", counted)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(W, "w")],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    model = rlx.load(path, device="cpu")
    process = waiting()
    np.testing.assert_allclose(model(x=X)["y"], np.maximum(X @ W, 0), rtol=1e-6)
    assert begun == [[ARRIVAL]] and not ahead._waiting, "no other one was started"
    model.compiled.finish()
    assert process.wait(60) == 0
    np.testing.assert_allclose(model(x=X)["y"], np.maximum(X @ W, 0), rtol=1e-6)
    rlx.load(path, device="cpu")(x=X)
    assert begun == [[ARRIVAL]], "a start from the cache compiles nothing"
