"""What services do with programs: send them to other processes, close them, and read what they log."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import rlx
from rlx import disk
from rlx.errors import CapabilityError, ClosedError, ModelError
from rlx.ir.graph import Graph
from rlx.ir.op import RANDOM_STATE
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.program import Program
from support import why_absent

SOURCE = Path(__file__).parents[2] / "src"
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def net() -> Graph:
    """Counts in a state, and draws."""
    graph = Graph("net")
    state, x = graph.input("state", (4,), "f32"), graph.input("x", ("n", 4), "f32")
    random = graph.input(RANDOM_STATE, (4,), "u32")
    graph.output(x @ graph.param("w", (4, 4), "f32") + state, name="y")
    graph.output(state + 1.0, name="next")
    graph.output(rlx.random_uniform(random, shape=(3,)), name="drawn")
    graph.data = {"w": np.eye(4, dtype=np.float32)}
    return graph


def running(device: str = "cpu") -> CompiledGraph:
    program = rlx.Session(device, disable=["cse"]).compile(net())
    program.set_param("w", 3 * np.eye(4, dtype=np.float32))
    program.bind_handle("state", np.zeros(4, np.float32))
    program.set_feeds({"next": "state"})
    program.seed(7)
    program.run([X])
    return program


def sums() -> onnx.ModelProto:
    """The sum of two inputs whose dims broadcast, with a weight."""
    f = onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(name, f, [dim, 4]) for name, dim in (("x", "n"), ("y", "m"))]
    weight = helper.make_tensor("w", f, [4, 512], np.arange(2048, dtype=np.float32).tobytes(), raw=True)
    nodes = [helper.make_node("Add", ["x", "y"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["r"])]
    outputs = [helper.make_tensor_value_info("r", f, None)]
    return helper.make_model(helper.make_graph(nodes, "sums", inputs, outputs, [weight]))


@pytest.mark.parametrize("device", ["cpu", "reference", "xla", "vulkan"])
def test_a_pickled_program_goes_on_where_it_was(device: str) -> None:
    reason = why_absent(device)
    if reason:
        pytest.skip(reason)
    program = running(device)
    again = pickle.loads(pickle.dumps(program))
    assert again.device == device and again.program.compiler.options == program.program.compiler.options
    for _ in range(2):
        for a, b in zip(program.run([X]), again.run([X]), strict=True):
            np.testing.assert_array_equal(a, b)
    again.set_param("w", np.eye(4, dtype=np.float32))
    assert (program.params["w"] == 3 * np.eye(4)).all(), "they have weights of their own"
    part = pickle.loads(pickle.dumps(program.select(["y"])))
    np.testing.assert_array_equal(part.run({"x": X, "state": np.zeros(4, np.float32)})[0], 3 * X)


def test_extents_and_attempts_go_along() -> None:
    graph = Graph("rows")
    graph.output(graph.input("x", ("n", 4), "f32") * 2.0, name="y")
    program = rlx.Session("cpu").compile(graph)
    program.set_active_extent("n", 1)
    program.attempts = {"cuda": "not here"}
    again = pickle.loads(pickle.dumps(program))
    np.testing.assert_array_equal(again.run([X])[0], np.vstack([2 * X[:1], 0 * X[1:]]))
    assert again.attempts == {"cuda": "not here"}


def test_a_program_made_by_hand_cannot_be_pickled() -> None:
    program = running()
    with pytest.raises(CapabilityError, match="made by hand"):
        pickle.dumps(CompiledGraph(Program(program.graph, "cpu", program.executable)))


@pytest.mark.parametrize("compiled", [False, True])
def test_models_go_to_processes_that_are_spawned(compiled: bool, tmp_path: Path) -> None:
    """Their dims of 1 too, which take another graph of the same file."""
    onnx.save(sums(), tmp_path / "m.onnx")
    (tmp_path / "work.py").write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, pickle, sys
            import numpy as np
            import rlx

            def work(model, x, y):
                return model(x, y)["r"], model.device, model.compiled.compile_count

            if __name__ == "__main__":
                model = rlx.load({str(tmp_path / "m.onnx")!r}, device="cpu")
                graph = rlx.Graph()
                graph.output(graph.input("x", ("n", 4)) + 1.0, name="r")
                plain = rlx.Session("cpu").compile(graph)
                x, one = np.ones((3, 4), "f4"), np.ones((1, 4), "f4")
                if {compiled}:
                    model(x, x)
                with multiprocessing.get_context("spawn").Pool(2) as pool:
                    for y in (x, one):
                        made, device, _ = pool.apply(work, (model, x, y))
                        assert device == "cpu"
                        np.testing.assert_array_equal(made, model(x, y)["r"])
                    assert pool.map(plain.run, [[x], [one]])[1][0].tolist() == [[2, 2, 2, 2]]
                print("done")
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "RLX_CACHE_DIR": str(tmp_path / "cache")}
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "work.py")], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.stdout == "done\n", ran.stderr


def test_a_pickled_model_knows_its_file_again(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(sums(), path)
    x, one = np.ones((3, 4), np.float32), np.ones((1, 4), np.float32)
    model = rlx.load(path, device="cpu")
    pickled = pickle.dumps(model)
    again = pickle.loads(pickled)
    np.testing.assert_array_equal(again(x, one)["r"], model(x, x)["r"])
    from_bytes = pickle.loads(pickle.dumps(rlx.load(path.read_bytes(), device="cpu")))
    np.testing.assert_array_equal(from_bytes(one, x)["r"], again(x, one)["r"])
    with open(path, "r+b") as file:
        file.write(b"\0")
    os.utime(path, (1, 1))
    other = pickle.loads(pickled)
    np.testing.assert_array_equal(other(x, x)["r"], again(x, x)["r"])  # its weights are in the pickle
    with pytest.raises(ModelError, match="as it was when a program of it was pickled"):
        other(x, one)
    with pytest.raises(ModelError, match="written to since"):
        pickle.dumps(model)


def test_a_closed_program_lets_go_and_says_so() -> None:
    with running() as program:
        executable = weakref.ref(program.executable)
        weights = weakref.ref(program.params["w"])
        queued = [program.run_pipelined([X]) for _ in range(5)]
        part = program.select(["y"])
        assert not program.closed
    assert program.closed and part.closed
    assert [pending.result(60)[1][0] for pending in queued] == [2, 3, 4, 5, 6], "those that were queued are done"
    gc.collect()
    assert executable() is None and weights() is None
    assert "net" in repr(program) and "closed" in repr(program)
    calls: list[Any] = [
        lambda: program.run([X]), lambda: program(x=X), lambda: program.run_slots([X], []),
        lambda: program.run([X], timeout=1), lambda: program.set_param("w", X),
        lambda: program.bind_handle("state", X[0]), program.clone, program.describe, lambda: program.select(["y"]),
        lambda: program.seed(1), lambda: program.save("nowhere.rlx"), lambda: pickle.dumps(program),
        lambda: part.run([X]), lambda: program.run_pipelined([X]).result(60),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ClosedError, match="expected a program that is open, got 'net', which was closed"):
            call()
    program.close()


def test_runs_under_way_come_to_their_end_when_a_program_is_closed() -> None:
    graph = Graph("long")
    x = y = graph.input("x", (400, 400), "f32")
    for _ in range(30):
        y = rlx.tanh(y @ x)
    graph.output(y, name="y")
    program = rlx.Session("cpu").compile(graph)
    data = np.full((400, 400), 0.01, np.float32)
    expected = program.run([data])[0]
    pending = program.run_pipelined([data])
    program.close()
    np.testing.assert_array_equal(pending.result(60)[0], expected)


def test_devices_compile_again_what_was_closed() -> None:
    devices = rlx.GraphDevices(net(), rlx.DevicePolicy().only("cpu"))
    inputs = {"x": X, "state": X[0]}
    first = devices.compile("cpu")
    before = devices.run("cpu", inputs)[0]
    first.close()
    devices.set_param("w", 2 * np.eye(4, dtype=np.float32))
    devices.sync_params_to_all()
    np.testing.assert_array_equal(devices.run("cpu", inputs)[0], before + X)
    assert devices.compile("cpu") is not first


def test_a_closed_model_says_so() -> None:
    for use in (False, True):
        with rlx.load(sums().SerializeToString(), device="cpu") as model:
            if use:
                model(np.ones((3, 4), np.float32), np.ones((3, 4), np.float32))
        with pytest.raises(ClosedError, match="which was closed"):
            model(np.ones((3, 4), np.float32), np.ones((3, 4), np.float32))
        with pytest.raises(ClosedError):
            model.run([np.ones((3, 4), np.float32), np.ones((3, 4), np.float32)])
        model.close()
        assert "Model" in repr(model)


def test_a_fork_behind_queued_runs_does_not_hang() -> None:
    """On every device that runs in threads of its own too."""
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    script = """
        import os
        import numpy as np
        import rlx

        graph = rlx.Graph()
        graph.output(rlx.tanh(graph.input("x", (64, 64)) @ graph.input("y", (64, 64))), name="z")
        made = rlx.Session("cpu").compile(graph)
        x = np.ones((64, 64), "f4")
        for _ in range(40):
            queued = [made.run_pipelined([x, x], timeout=60) for _ in range(3)]
            child = os.fork()
            if child == 0:
                made.sync()
                made.run([x, x], timeout=30)
                made.run_pipelined([x, x]).result(30)
                made.close()
                os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
            made.sync()
        print("done")
        """
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "RLX_CACHE": "0"}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert ran.stdout == "done\n", ran.stderr


def logged(code: str, **environment: str) -> tuple[str, str]:
    """What a script prints, that compiles a graph after `code`, and what it says on stderr."""
    script = (
        "import logging, sys\nimport rlx\n" + code + "\ngraph = rlx.Graph('net')\n"
        "graph.output(rlx.softmax(graph.input('x', (2, 4)) * 1.0, axis=1))\n"
        "rlx.Session('cpu', cache=False).compile(graph)\n"
    )
    env = {**{k: v for k, v in os.environ.items() if k != "RLX_DEBUG"}, "PYTHONPATH": str(SOURCE), **environment}
    ran = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, ran.stderr


def test_what_happens_is_logged() -> None:
    assert logged("") == ("", "")
    out, err = logged("", RLX_DEBUG="1")
    assert not out and err.startswith("rlx: compiled in ") and err.endswith(" ms: 'net' for cpu\n")
    _, err = logged("", RLX_DEBUG="2")
    assert "rlx: pass decompose: " in err and "rlx: pass collapse: " in err and "rewrite 1 " not in err
    _, err = logged("", RLX_DEBUG="4")
    assert "rlx: rewrite 1 simplify/multiply-by-one at " in err
    set_up = "logging.basicConfig(stream=sys.stdout, format='%(name)s %(levelname)s %(message)s')\n"
    assert logged(set_up) == ("", "")
    out, err = logged(f"{set_up}logging.getLogger('rlx').setLevel('INFO')")
    assert out.startswith("rlx.compile INFO compiled in ") and out.count("\n") == 1 and not err
    out, err = logged(f"{set_up}logging.getLogger('rlx.passes').setLevel('DEBUG')")
    assert "rlx.passes DEBUG pass decompose: " in out and "rlx.compile" not in out and not err
    out, err = logged(set_up, RLX_DEBUG="1")
    assert out.startswith("rlx.compile INFO ") and not err


def test_a_chain_that_goes_on_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    devices = rlx.GraphDevices(net(), rlx.DevicePolicy().only("cpu", "rocm"))
    with caplog.at_level("WARNING", logger="rlx"):
        devices.run_chain({"x": X, "state": X[0]}, ["rocm", "cpu"])
    (record,) = caplog.records
    assert record.name == "rlx.devices" and record.getMessage().startswith(
        "rocm failed, the next of the chain is tried"
    )


def test_a_cache_that_cannot_be_written_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "file" / "folder"))
    monkeypatch.setenv("RLX_CACHE", "1")
    for key in ("a", "b"):
        disk.write(key, b"code")
    messages = [record.getMessage() for record in caplog.records if record.name == "rlx.cache"]
    assert len(messages) == 1 and str(tmp_path / "file") in messages[0] and "RLX_CACHE_DIR" in messages[0]


def test_a_session_tells_its_device() -> None:
    assert repr(rlx.Session("cpu")) == "<Session on cpu>"
