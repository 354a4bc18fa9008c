"""Other ways to run a program: into given arrays, some outputs, queued, as a copy, and many threads at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ArgumentError, CapabilityError, InputError, ProfileError
from rlx.ir.op import RANDOM_STATE
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.pipeline import MOST_QUEUED, Pipeline
from rlx.runtime.program import Program
from support import why_absent

DEVICES = ["reference", "cpu"]
W = np.arange(12, dtype="f4").reshape(4, 3)
X = np.arange(8, dtype="f4").reshape(2, 4)


def two_heads(device: str, cache: bool | None = None) -> CompiledGraph:
    graph = rlx.Graph("heads")
    x, w, v = graph.input("x", ("batch", 4)), graph.param("w", (4, 3)), graph.param("v", (4, 2))
    graph.output(x @ w, name="y")
    graph.output(rlx.tanh(x @ v), name="z")
    program = rlx.Session(device, cache=cache).compile(graph)
    program.set_params({"w": W, "v": np.ones((4, 2), "f4")})
    return program


@pytest.mark.parametrize("device", DEVICES)
def test_slots_take_the_results(device: str) -> None:
    program = two_heads(device)
    y, z = program.run([X])
    slots = [np.full((2, 3), 9, "f4"), np.full((2, 2), 9, "f4")]
    results = program.run_slots([X], slots)
    assert all(a is b for a, b in zip(results, slots))
    np.testing.assert_array_equal(slots[0], y)
    np.testing.assert_array_equal(slots[1], z)


def test_a_device_that_runs_nothing_says_so_of_slots_too() -> None:
    program = two_heads("null")
    with pytest.raises(ProfileError, match="tells times only"):
        program.run_slots([X], [np.empty((2, 3), "f4"), np.empty((2, 2), "f4")])
    with pytest.raises(InputError, match=r"'y'.*\[1, 3\]"):
        program.run_slots([X], [np.empty((1, 3), "f4"), np.empty((2, 2), "f4")])


def test_slots_that_do_not_fit_are_refused_before_the_run() -> None:
    program = two_heads("cpu")
    good_y, good_z = np.full((2, 3), 9, "f4"), np.full((2, 2), 9, "f4")
    locked = good_y.copy()
    locked.flags.writeable = False
    block = np.zeros(64, "f4")
    x = block[:8].reshape(2, 4)
    wrong: list[tuple[Any, str]] = [
        ([good_y], "2 arrays"),
        ("yz", "list of 2"),
        ([good_y, good_z, good_z], "got 3"),
        ([good_y.astype("f8"), good_z], "'y', got float64"),
        ([good_y[:1], good_z], r"\[1, 3\]"),
        ([good_y.T.copy().T, good_z], "contiguous"),
        ([locked, good_z], "writeable"),
        ([good_y.tolist(), good_z], "got list"),
        ([block[8:14].reshape(2, 3), block[12:16].reshape(2, 2)], "memory of its own"),
        ([block[4:10].reshape(2, 3), good_z], "memory of its own for output 'y'"),
        ([np.frombuffer(bytes(24), "f4").reshape(2, 3), good_z], "writeable"),
        ([np.zeros(25, np.uint8)[1:].view("f4").reshape(2, 3), good_z], "aligned"),
        ([good_y.view(np.recarray), good_z], "recarray"),
    ]
    for outputs, words in wrong:
        with pytest.raises(InputError, match=words):
            program.run_slots([x], outputs)
        assert (good_y == 9).all() and (good_z == 9).all() and not block.any()
    program.run_slots([x], [block[8:14].reshape(2, 3), block[14:18].reshape(2, 2)])
    assert program.run_slots([np.ones((0, 4), "f4")], [np.empty((0, 3), "f4"), np.empty((0, 2), "f4")])[0].size == 0


@pytest.mark.parametrize("device", DEVICES)
def test_select_is_pruned_and_has_the_weights_of_the_whole(device: str) -> None:
    program = two_heads(device)
    part = program.select(["z"])
    assert part.select(["z"]) is part and program.select("z") is part and program.select(["y", "z"]) is program
    assert part.output_names == ("z",) and part.input_names == program.input_names
    np.testing.assert_array_equal(part.run([X])[0], program.run([X])[1])
    program.set_param("v", np.zeros((4, 2), "f4"))
    assert not part.run([X])[0].any()
    part.set_param("v", np.ones((4, 2), "f4"))
    assert program.run([X])[1].all()
    assert program.select(["y"]).run([X])[0].tolist() == program.run([X])[0].tolist()
    if device == "cpu":
        assert len(part.describe()["kernels"]) < len(program.describe()["kernels"])
    for wrong in ([], ["q"], ["z", "z"]):
        with pytest.raises(InputError):
            program.select(wrong)


def test_select_of_unset_weights_still_asks_for_them() -> None:
    graph = rlx.Graph()
    x, w, v = graph.input("x", (4,)), graph.param("w", (4,)), graph.param("v", (4,))
    graph.output(x * w, name="y")
    graph.output(x * v, name="z")
    part = rlx.Session("cpu").compile(graph).select("y")
    with pytest.raises(InputError, match="'w'"):
        part.run([np.ones(4, "f4")])


def test_rows_of_outputs() -> None:
    program = two_heads("cpu")
    y = program.run([X])[0]
    assert program.read_output_row("y", -1, [X]).tolist() == y[-1].tolist()
    assert program.read_output_row("y", (1, 2), [X]) == y[1, 2]
    assert program.read_output_row("y", 0, [X]).base is None
    for row in (2, -3, (0, 0, 0), (0, 3), True, "0", 0.0):
        with pytest.raises((InputError, ArgumentError), match="row"):
            program.read_output_row("y", row, [X])  # type: ignore[arg-type]
    with pytest.raises(InputError):
        program.read_output_row("q", 0, [X])
    program.bind_handle("x", X)
    assert program.read_output_row("y", 1).tolist() == y[1].tolist()


@pytest.mark.parametrize("device", [*DEVICES, "xla", "mlx", "vulkan"])
def test_clones_have_their_own_weights_and_state(device: str) -> None:
    reason = why_absent(device)
    if reason:
        pytest.skip(reason)
    program = two_heads(device)
    before = program.run([X])[0]
    other = program.clone()
    np.testing.assert_array_equal(other.run([X])[0], before)
    other.set_param("w", W * 2)
    np.testing.assert_array_equal(other.run([X])[0], before * 2)
    np.testing.assert_array_equal(program.run([X])[0], before)
    program.set_param("w", W * 3)
    np.testing.assert_array_equal(other.run([X])[0], before * 2)
    program.bind_handle("x", X)
    assert program.clone().run()[0].tolist() == program.run()[0].tolist()
    with pytest.raises(InputError):
        other.run()


@pytest.mark.parametrize("device", ["xla", "mlx"])
def test_clones_share_what_libraries_compiled(device: str) -> None:
    reason = why_absent(device)
    if reason:
        pytest.skip(reason)
    program = two_heads(device, cache=False)
    program.run([X])
    other = program.clone()
    other.set_param("w", W * 2)
    np.testing.assert_allclose(other.run([X])[0], X @ W * 2, rtol=1e-5)
    assert program.compile_count == other.compile_count == 1
    other.run([X[:1]])
    assert (program.compile_count, other.compile_count) == (1, 2)
    program.run([X[:1]])
    assert program.compile_count == 1, "the clone has that size already"


@pytest.mark.parametrize("device", [*DEVICES, "xla"])
def test_clones_draw_what_the_program_would(device: str) -> None:
    reason = why_absent(device)
    if reason:
        pytest.skip(reason)
    graph = rlx.Graph("draws")
    graph.output(rlx.random_uniform(graph.input(RANDOM_STATE, (4,), "u32"), shape=(8,)), name="y")
    program = rlx.Session(device).compile(graph)
    free = program.clone()
    assert program.run()[0].tolist() != free.run()[0].tolist(), "without a seed nobody draws what another does"
    program.seed(5)
    program.run()
    other = program.clone()
    drawn = [program.run()[0].tolist() for _ in range(3)]
    assert [other.run()[0].tolist() for _ in range(3)] == drawn
    assert drawn[0] != drawn[1]


def test_clones_share_packed_weights() -> None:
    program = two_heads("cpu")
    other = program.clone()
    program.run([X])
    assert other.executable.weights is program.executable.weights  # type: ignore[attr-defined]
    other.set_param("v", np.zeros((4, 2), "f4"))
    assert other.executable.weights is not program.executable.weights  # type: ignore[attr-defined]
    assert other.executable.loaded is program.executable.loaded  # type: ignore[attr-defined]


def test_queued_runs_come_in_order_with_their_errors() -> None:
    program = two_heads("cpu")
    good = [program.run_pipelined([X * i]) for i in range(5)]
    bad = program.run_pipelined([X[0]])
    late = program.run_pipelined([X])
    for i, pending in enumerate(good):
        np.testing.assert_allclose(pending.result()[0], X @ W * i, rtol=1e-5)
    with pytest.raises(InputError, match="rank"):
        program.sync()
    program.sync()
    assert late.done and program.commit() == 0
    with pytest.raises(InputError, match="rank"):
        bad.result()
    bad_run = program.run_pipelined([])
    with pytest.raises(InputError):
        bad_run.result()
    program.sync()
    np.testing.assert_array_equal(late.result()[0], program.run([X])[0])


def test_queued_runs_feed_in_order() -> None:
    graph = rlx.Graph()
    graph.output(graph.input("state", (2,)) * 2.0 + graph.input("x", (2,)), name="next")
    program = rlx.Session("cpu").compile(graph)
    program.bind_handle("state", np.zeros(2, "f4"))
    program.set_feeds({"next": "state"})
    expected = 0.0
    pending = []
    for i in range(3 * MOST_QUEUED):
        if i % 7 == 3:
            program.run_pipelined([np.ones(3, "f4")])
        pending.append(program.run_pipelined([np.full(2, i % 2, "f4")]))
    for i, each in enumerate(pending):
        expected = np.float32(expected) * np.float32(2) + np.float32(i % 2)
        assert each.result()[0][0] == expected
    program.run_pipelined([np.ones(2, "f4")])
    program.bind_handle("state", np.zeros(2, "f4"))
    assert program.read_handle("state").tolist() == [0, 0], "a change waits for what was queued before"
    with pytest.raises(InputError):
        program.sync()


def test_the_queue_is_bounded_and_its_thread_ends() -> None:
    pipeline: Pipeline[int] = Pipeline(2)
    gate = threading.Event()
    first = pipeline.put(lambda: int(gate.wait(10)))
    started = threading.Event()

    def fill() -> None:
        for i in range(4):
            pipeline.put(lambda i=i: i)  # type: ignore[misc]
        started.set()

    filler = threading.Thread(target=fill)
    filler.start()
    assert not started.wait(0.1) and pipeline.unfinished <= 4
    with pytest.raises(TimeoutError):
        first.result(0.01)
    gate.set()
    filler.join(10)
    pipeline.sync()
    assert pipeline.unfinished == 0
    deadline = time.monotonic() + 5
    while pipeline._thread is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert pipeline._thread is None
    assert pipeline.put(lambda: 3).result() == 3, "and starts again"


def test_capabilities_say_what_there_is() -> None:
    program = two_heads("cpu")
    assert (
        program.capabilities.zero_copy_outputs
        and program.capabilities.saved_code
        and not program.capabilities.profiling
    )
    assert not two_heads("reference").capabilities.saved_code
    with pytest.raises(CapabilityError, match=r"saved_code.*reference.*dynamic_dims"):
        two_heads("reference").save("/nowhere")
    with pytest.raises(CapabilityError, match="session"):
        CompiledGraph(Program(program.graph, "cpu", program.executable)).select("y")


def test_sixteen_threads_on_one_program_and_three_others() -> None:
    """Shapes, weights, handles and queues change while they run."""
    shared = two_heads("cpu")
    others = [two_heads("cpu"), shared.clone(), shared.select("y")]
    failures: list[str] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for i in range(60):
                x = random.standard_normal((int(random.integers(0, 20)), 4)).astype("f4")
                program = shared if i % 2 else others[(seed + i) % 3]
                match (seed + i) % 4:
                    case 0:
                        y = program.run_pipelined([x]).result()[0]
                    case 1:
                        out = [np.empty((len(x), n), "f4") for n in (3, 2)][: len(program.output_names)]
                        y = program.run_slots([x], out)[0]
                    case 2:
                        shared.set_params({"w": W.copy()})
                        y = program({"x": x}["x"])["y"]
                    case _:
                        y = program.run({"x": x})[0]
                if not np.allclose(y, x @ W, atol=1e-4):
                    failures.append(f"{seed} {i}")
        except Exception as error:
            failures.append(f"{seed}: {error!r}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_signs_that_torch_has_only_noted() -> None:
    """A tensor may be the negative, or the conjugate, of what lies in its memory."""
    torch = pytest.importorskip("torch")
    z = torch.complex(torch.arange(3.0), torch.arange(3.0) + 1)
    graph = rlx.Graph()
    graph.output(graph.input("x", (3,)) * 2.0, name="y")
    assert z.conj().imag.is_neg()
    assert rlx.Session("cpu").compile(graph).run([z.conj().imag])[0].tolist() == [-2, -4, -6]
    graph = rlx.Graph()
    graph.output(graph.input("z", (3,), "c64") * 2, name="y")
    assert rlx.Session("reference").compile(graph).run([z.conj()])[0].tolist() == [-2j, 2 - 4j, 4 - 6j]
