"""Runs before the code of a program is there: in NumPy, and then in the code that another process has written."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx import disk
from rlx.backends.base import Options
from rlx.backends.cpu import arrival, build, first_runs, tiers
from rlx.backends.cpu.first_runs import InterpretedBound, InterpretedExecutable
from rlx.backends.cpu.isa import widest
from rlx.backends.executable import Bound
from rlx.backends.stored_weights import LateWeights, Opening, Source, request_key
from rlx.errors import InputError, ModelError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.compiler import CODE
from rlx.runtime.session import Session

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((7, 40)).astype(np.float32)
ROWS = RANDOM.integers(0, 33, (7, 1))


@pytest.fixture(autouse=True)
def first_runs_in_numpy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However small a graph is; a cache folder of the test's own."""
    monkeypatch.setattr(first_runs, "LEAST_WORK", 0)
    monkeypatch.setattr(tiers, "LEAST_CHARACTERS", 0)
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_TIERS", "1")
    monkeypatch.setattr(arrival, "START_S", 0.0)
    monkeypatch.setattr(tiers, "give_way", lambda: None)  # of the process of the tests
    CODE.clear()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No code arrives before this is set."""
    event = threading.Event()
    take = arrival.Arrival._take

    def later(self: arrival.Arrival, folder: Path, key: str) -> None:
        event.wait(60)
        take(self, folder, key)

    monkeypatch.setattr(arrival.Arrival, "_take", later)
    return event


def net() -> Graph:
    graph = Graph("net")
    w = graph.param("w", (40, 33), "f32", data=np.random.default_rng(1).standard_normal((40, 33)).astype(np.float32))
    graph.output(rlx.softmax(rlx.gelu(graph.input("x", ("n", 40), "f32") @ w)), name="y")
    return graph


def checked() -> Graph:
    """A program with an index that a run may get wrong."""
    graph = Graph("checked")
    table = graph.param("table", (33, 5), "f32", data=np.arange(165, dtype=np.float32).reshape(33, 5))
    rows = graph.input("rows", ("n", 1), "i64")
    graph.output(rlx.gather(table, rows, axis=0), name="y")
    return graph


def pending(compiled: CompiledGraph) -> InterpretedExecutable:
    executable = compiled.program.executable
    assert isinstance(executable, InterpretedExecutable) and executable.is_pending
    return executable


@pytest.mark.parametrize("cached", [False, True])
def test_a_run_does_not_wait_for_its_code(held: threading.Event, tmp_path: Path, cached: bool) -> None:
    expected = Session("cpu", compile="before", cache=False).compile(net()).run([X])[0]
    CODE.clear()
    compiled = Session("cpu", cache=cached).compile(net())
    executable = pending(compiled)
    first = compiled.run([X])[0]
    assert executable.is_pending
    np.testing.assert_allclose(first, expected, rtol=2e-5)
    held.set()
    compiled.finish()
    assert not executable.is_pending and compiled.describe()["tier"] == "full"
    np.testing.assert_array_equal(compiled.run([X])[0], expected)
    np.testing.assert_allclose(compiled.run([X[:3]])[0], expected[:3], rtol=2e-5)
    names = [path.name for path in tmp_path.glob(f"*{disk.SUFFIX}") if not path.name.startswith(("pool-", "kernel-"))]
    assert len(names) == (1 if cached else 0) and not any("-" in name for name in names)


def source_of(graph: Graph) -> Source:
    return Source([], {"w": [-1, 0, "f32", [40, 33]]}, graph.data["w"].tobytes())


def test_the_process_that_compiles_packs_weights_too(tmp_path: Path) -> None:
    graph, isa, options = net(), widest(), Options(tiered=True)
    source = source_of(graph)
    disk.write(request_key("key"), source.to_bytes())
    arrival._compile(arrival.pack_graph(graph, isa, options), tmp_path, "key")
    assert disk.read(request_key("key")) is None
    executable = build.stored("key", asdict(isa), options)
    assert executable is not None and executable.take_stored(LateWeights(source, Opening(source, "key")))
    result = executable.bind({"n": 7})([X])[0]
    np.testing.assert_array_equal(result, Session("cpu", compile="before", cache=False).compile(graph).run([X])[0])


def test_it_is_told_which(held: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Session("cpu").compile(net())
    executable = pending(compiled)
    written: dict[str, bytes] = {}
    monkeypatch.setattr(disk, "write", lambda key, body: written.update({key: body}))
    compiled.program.keep_packed(source_of(compiled.graph))
    assert written == {request_key(str(executable._key)): source_of(compiled.graph).to_bytes()}
    compiled.set_param("w", compiled.params["w"] + 1)
    written.clear()
    compiled.program.keep_packed(source_of(compiled.graph))
    assert not written, "other weights than those of the source"
    held.set()


def packed_in(seconds: float, monkeypatch: pytest.MonkeyPatch) -> tuple[CompiledGraph, InterpretedExecutable]:
    """A net whose weights are taken to be packed in so many seconds."""
    compiled = Session("cpu").compile(net())
    executable = pending(compiled)
    weight_bytes = sum(array.nbytes for array in executable.params.values())
    monkeypatch.setattr(first_runs, "PACKED_BYTES_A_SECOND", weight_bytes / seconds if seconds else math.inf)
    return compiled, executable


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["at once", "slowly"])
def test_a_run_that_ends_before_weights_are_packed_does_not_start_again(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    compiled, executable = packed_in(seconds, monkeypatch)
    reference, starts = rlx.ops.activation.Gelu.reference, []

    def once(self: rlx.ops.activation.Gelu, x: Array) -> Array:
        held.set()
        executable._arrival.wait()
        starts.append(x)
        return reference(self, x)

    ends: list[bool] = []
    go_on = InterpretedBound._code

    def starts_again(self: InterpretedBound) -> Bound:
        ends.append(False)
        return go_on(self)

    monkeypatch.setattr(InterpretedBound, "_code", starts_again)
    monkeypatch.setattr(rlx.ops.activation.Gelu, "reference", once)
    result = compiled.run([X])[0]
    assert starts and bool(ends) is (not seconds) and not executable.is_pending
    np.testing.assert_allclose(result, compiled.run([X])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["at once", "slowly"])
@pytest.mark.parametrize("late", [False, True], ids=["bound before", "bound behind"])
def test_a_first_run_behind_the_code_does_not_wait_for_weights(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch, late: bool, seconds: float
) -> None:
    """Where packing takes longer than NumPy. The next run packs them."""
    compiled, executable = packed_in(seconds, monkeypatch)
    early = None if late else compiled.program.ready([X])[0]
    held.set()
    executable._arrival.wait()
    bound = early or compiled.program.ready([X])[0]
    first = bound([X])[0]
    assert bool(executable.weight_bytes) is (not seconds) and not executable.is_pending
    np.testing.assert_allclose(bound([X])[0], first, rtol=2e-5)
    assert executable.weight_bytes


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No weights arrive before this is set."""
    event = threading.Event()
    hear = arrival.Arrival._hear

    def later(self: arrival.Arrival, said: str, folder: Path, key: str) -> None:
        if said == arrival.PACKED:
            event.wait(60)
        hear(self, said, folder, key)

    monkeypatch.setattr(arrival.Arrival, "_hear", later)
    return event


def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[CompiledGraph, InterpretedExecutable]:
    """A net whose code is there, and whose weights another process packs."""
    compiled, executable = packed_in(60.0, monkeypatch)
    compiled.program.keep_packed(source_of(compiled.graph))
    executable._arrival.wait()
    return compiled, executable


def test_runs_end_in_numpy_while_another_process_packs(
    unpacked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, executable = asked(monkeypatch)
    expected = Session("cpu", compile="before", cache=False).compile(net()).run([X])[0]
    for _ in range(3):
        np.testing.assert_allclose(compiled.run([X])[0], expected, rtol=2e-5)
        assert not executable.weight_bytes and not executable.is_pending
    unpacked.set()
    executable._arrival._thread.join()
    np.testing.assert_array_equal(compiled.run([X])[0], expected)
    entry, packed = executable._arrival.packed, executable.compiled().weights.packed
    assert entry is not None and packed is not None
    assert all(any(array is mapped for mapped in entry.arrays.values()) for array in packed.arrays.values())


def test_nobody_waits_longer_for_weights_than_packing_takes(
    unpacked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, executable = asked(monkeypatch)
    bound, _ = compiled.program.ready([X])
    first = bound([X])[0]
    assert not executable.weight_bytes
    monkeypatch.setattr(bound, "_patience_ends", 0.0)
    np.testing.assert_allclose(bound([X])[0], first, rtol=2e-5)
    assert executable.weight_bytes
    unpacked.set()


def test_weights_that_were_set_since_are_not_those_that_arrive(
    unpacked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, executable = asked(monkeypatch)
    compiled.set_param("w", compiled.params["w"] + 1)
    others = compiled.run([X])[0]
    unpacked.set()
    executable._arrival._thread.join()
    np.testing.assert_allclose(compiled.run([X])[0], others, rtol=2e-5)
    expected = Session("cpu", compile="before", cache=False).compile(net())
    assert not np.allclose(others, expected.run([X])[0])


def test_the_process_that_compiles_waits_for_who_asks_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files are hashed first."""
    graph, source, said = net(), source_of(net()), []
    monkeypatch.setattr(arrival, "LARGE_BYTES", 0)
    monkeypatch.setattr(arrival, "REQUEST_S", 60.0)
    monkeypatch.setattr(arrival, "_say", said.append)
    job = arrival.pack_graph(graph, widest(), Options(tiered=True))
    compiling = threading.Thread(target=arrival._compile, args=(job, tmp_path, "key"))
    compiling.start()
    while arrival.WRITTEN not in said:
        time.sleep(0.01)
    disk.write(request_key("key"), source.to_bytes())
    compiling.join(60)
    assert said == [arrival.WRITTEN, arrival.PACKED] and disk.map_entry(source.key("key")) is not None


def test_weights_that_the_cache_would_not_keep_are_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, source, said = net(), source_of(net()), []
    disk.write(request_key("key"), source.to_bytes())
    monkeypatch.setenv("RLX_CACHE_BYTES", str(source.nbytes))
    monkeypatch.setattr(arrival, "_say", said.append)
    arrival._compile(arrival.pack_graph(graph, widest(), Options(tiered=True)), tmp_path, "key")
    assert said and arrival.PACKED not in said and disk.map_entry(source.key("key")) is None


def test_a_run_under_way_goes_on_in_the_code_that_arrives(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, executable = packed_in(0.0, monkeypatch)
    arrived = threading.Event()

    def slow(x: Array) -> Array:
        held.set()
        executable._arrival.wait()
        arrived.set()
        return x

    monkeypatch.setattr(rlx.ops.activation.Gelu, "reference", lambda self, x: slow(x))
    result = compiled.run([X])[0]
    assert arrived.is_set() and not executable.is_pending
    monkeypatch.undo()
    np.testing.assert_array_equal(result, compiled.run([X])[0])


def test_runs_of_much_work_wait_for_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_runs, "MOST_FLOPS", 0)
    monkeypatch.setattr(first_runs, "FLOPS_OF_WORK", 0)
    monkeypatch.setattr(InterpretedBound, "_in_numpy", lambda self, inputs: pytest.fail("in NumPy"))
    compiled = Session("cpu").compile(net())
    pending(compiled)
    first = compiled.run([X])[0]
    compiled.finish()
    np.testing.assert_array_equal(compiled.run([X])[0], first)


def test_without_another_process_the_code_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    compiled = Session("cpu", cache=False).compile(net())
    result = compiled.run([X])[0]
    compiled.finish()
    np.testing.assert_allclose(compiled.run([X])[0], result, rtol=2e-5)


def test_what_does_not_compile_is_told_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx.backends.cpu import build
    from rlx.errors import CompileError

    def fails(*_: object) -> None:
        raise CompileError("[llvm] no")

    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(build, "first_tier", fails)
    compiled = Session("cpu", cache=False).compile(net())
    for _ in range(2):
        with pytest.raises(CompileError, match="no"):
            compiled.finish()
        with pytest.raises(CompileError, match="no"):
            compiled.run([X])


def test_indices_are_checked_before_and_after(held: threading.Event) -> None:
    compiled = Session("cpu").compile(checked())
    wrong = ROWS.copy()
    wrong[3] = 40
    for ready in (False, True):
        if ready:
            held.set()
            compiled.finish()
        np.testing.assert_array_equal(compiled.run([ROWS])[0][:, 0, 0], ROWS[:, 0] * 5.0)
        with pytest.raises(InputError, match=r"\[-33, 33\), got 40"):
            compiled.run([wrong])


def test_clones_wait_for_one_code_and_have_weights_of_their_own(held: threading.Event) -> None:
    first = Session("cpu").compile(net())
    clone = first.clone()
    clone.set_param("w", np.zeros((40, 33), np.float32))
    before = [first.run([X])[0], clone.run([X])[0]]
    held.set()
    for compiled, expected in zip((first, clone), before):
        compiled.finish()
        np.testing.assert_allclose(compiled.run([X])[0], expected, rtol=2e-5)
    assert first.program.executable.loaded is clone.program.executable.loaded  # type: ignore[attr-defined]
    first.set_param("w", np.zeros((40, 33), np.float32))
    np.testing.assert_array_equal(first.run([X])[0], clone.run([X])[0])


def test_an_equal_graph_waits_for_the_same_code(held: threading.Event) -> None:
    first, second = Session("cpu").compile(net()), Session("cpu").compile(net())
    assert pending(first)._arrival is pending(second)._arrival
    held.set()
    second.finish()
    np.testing.assert_array_equal(first.run([X])[0], second.run([X])[0])


def test_results_go_where_the_caller_wants_them(held: threading.Event) -> None:
    compiled = Session("cpu").compile(net())
    out = np.empty((7, 33), np.float32)
    assert compiled.run_slots([X], [out])[0] is out
    np.testing.assert_array_equal(out, compiled.run([X])[0])
    held.set()


def test_saving_and_profiling_wait(tmp_path: Path) -> None:
    compiled = Session("cpu").compile(net())
    compiled.save(tmp_path / "program.rlx")
    np.testing.assert_array_equal(rlx.load_compiled(tmp_path / "program.rlx").run([X])[0], compiled.run([X])[0])
    assert {"kernels", "threads", "ms"} <= compiled.describe().keys()


def test_a_process_that_ends_before_its_code_is_there_leaves_it_for_the_next(tmp_path: Path) -> None:
    program = (
        "import os, rlx, sys; sys.path.insert(0, sys.argv[1]); import test_first_runs as t; "
        "t.first_runs.LEAST_WORK = 0; c = rlx.Session('cpu').compile(t.net()); c.run([t.X]); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(Path(__file__).parent)], check=True, timeout=120)
    for _ in range(600):
        if any("-" not in path.name for path in tmp_path.glob(f"*{disk.SUFFIX}")):
            break
        threading.Event().wait(0.1)
    second = Session("cpu").compile(net())
    assert second.describe()["from_cache"] and not list(tmp_path.glob("*-graph*"))


def test_states_and_other_dtypes_compile_before_the_first_run() -> None:
    graph = Graph("state")
    x = graph.input("x", (3,), "f32")
    total = graph.state("total", (3,), "f32")
    graph.set_next(total, total + x)
    graph.output(total * 2.0, name="y")
    assert not first_runs.worth(graph, Session("cpu").options)
    assert first_runs.worth(net(), Session("cpu").options)


def test_small_graphs_compile_before_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not first_runs.worth(net(), Session("cpu").options)


def test_damaged_jobs_are_told() -> None:
    for data in (arrival.GRAPH, arrival.GRAPH + b"\xff" * 40, arrival.GRAPH + (2).to_bytes(8, "little") + b"{}"):
        with pytest.raises(ModelError, match="a graph to compile"):
            arrival.unpack_graph(data)


def test_a_graph_survives_its_way_to_the_other_process() -> None:
    options = Session("cpu", disable=["winograd"], threads=1).options
    graph = checked()
    isa = rlx.backends.cpu.isa.detect()
    got, target, again = arrival.unpack_graph(arrival.pack_graph(graph, isa, options))
    assert target == isa and again == options and graph.data and not got.data
    assert [node.op for node in got.nodes] == [node.op for node in graph.nodes]


def test_runs_with_a_limit_end(held: threading.Event) -> None:
    compiled = Session("cpu").compile(net())
    np.testing.assert_array_equal(compiled.run([X], timeout=60.0)[0], compiled.run([X])[0])
    token = rlx.CancelToken()
    token.cancel()
    with pytest.raises(rlx.RunCancelled):
        compiled.run([X], cancel=token)
    held.set()
    compiled.finish()
    bound = compiled.program.ready([X])[0]
    assert isinstance(bound, InterpretedBound) and not bound.looks
    compiled.run([X], timeout=60.0)
    assert bound.looks  # its code is there


def test_many_threads_see_one_way_or_the_other(held: threading.Event) -> None:
    from concurrent.futures import ThreadPoolExecutor

    compiled = Session("cpu").compile(net())
    expected = compiled.run([X])[0]

    def work(number: int) -> list[Array]:
        if number == 3:
            held.set()
        return [compiled.run([X])[0] for _ in range(50)]

    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(work, range(4)):
            for actual in results:
                np.testing.assert_allclose(actual, expected, rtol=2e-5)


def test_a_process_that_ends_without_code_has_it_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(worker: tiers.Worker) -> Iterator[str]:
        worker.stop()
        return iter(())

    monkeypatch.setattr(tiers.Worker, "progress", ends)
    compiled = Session("cpu").compile(net())
    executable = pending(compiled)
    key = str(executable._key)
    compiled.finish()
    assert disk.read(key) and disk.read(arrival.graph_key(key)) is None
    expected = Session("cpu", compile="before", cache=False).compile(net()).run([X])[0]
    np.testing.assert_array_equal(compiled.run([X])[0], expected)


def test_the_other_process_has_one_tier(tmp_path: Path) -> None:
    """Its first would be no faster than NumPy, and keep LLVM from the usual code."""
    arrival._compile(arrival.pack_graph(net(), widest(), Options(tiered=True)), tmp_path, "key")
    assert disk.read("key") and disk.read(tiers.quick_key("key")) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_waits_for_nobody(held: threading.Event) -> None:
    """Its thread that would take the code is gone."""
    compiled = Session("cpu").compile(net())
    expected = compiled.run([X])[0]
    child = os.fork()
    if child == 0:
        compiled.finish()
        os._exit(0 if np.allclose(compiled.run([X])[0], expected, rtol=2e-5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.set()
    compiled.finish()


def test_who_wants_code_at_once_makes_it_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process would still have to start."""
    monkeypatch.setattr(arrival, "START_S", 60.0)
    compiled = Session("cpu").compile(net())
    executable = pending(compiled)
    arriving, key = executable._arrival, str(executable._key)
    compiled.finish()
    arriving._thread.join(60)
    assert not arriving._thread.is_alive() and disk.read(arrival.graph_key(key)) is None
    np.testing.assert_allclose(compiled.run([X])[0], Session("reference").compile(net()).run([X])[0], rtol=2e-5)
    assert disk.read(key)  # for the next start


def test_a_run_in_a_loop_goes_on_in_the_code_that_arrives(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the nodes of its body too: a loop is one node."""
    graph = Graph("loop")
    step = Graph("step")
    step.output(rlx.gelu(step.input("carried", (40,), "f32")))
    start = graph.input("x", (40,), "f32")
    graph.output(rlx.ops.scan(start, carried=1, sequences=0, length=1000, regions=(step,))[0], name="y")
    compiled = Session("cpu").compile(graph)
    executable = pending(compiled)
    trips: list[int] = []

    def slow(x: Array) -> Array:
        trips.append(1)
        held.set()
        executable._arrival.wait()
        return x

    monkeypatch.setattr(rlx.ops.activation.Gelu, "reference", lambda self, x: slow(x))
    compiled.run([X[0]])
    assert len(trips) == 1
