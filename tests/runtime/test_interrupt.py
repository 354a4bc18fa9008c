"""Runs that take too long: a timeout, a token that cancels, Ctrl-C, and loops that would never end."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.errors import InputError, RunCancelled, RunTimeout
from rlx.ir.graph import Graph
from rlx.ir.op import RANDOM_STATE
from rlx.ir.serial import save_graph
from rlx.model import Model
from support import why_absent

DEVICES = ("reference", "cpu", "mlx", "xla", "vulkan")


def endless() -> Graph:
    """Counts for as long as `go` holds."""
    graph = Graph("endless")
    go, x = graph.input("go", (), "bool"), graph.input("x", (), "f32")
    test, body = Graph("test"), Graph("body")
    test.output([test.input("x", (), "f32"), test.input("go", (), "bool")][1])
    body.output(-[body.input("x", (), "f32"), body.input("go", (), "bool")][0])
    graph.output(*ops.while_(x, go, regions=(test, body), carried=1), name="y")
    return graph


GO, STOP = [np.array(True), np.float32(1)], [np.array(False), np.float32(1)]


def program(device: str, monkeypatch: pytest.MonkeyPatch, trips: int) -> rlx.CompiledGraph:
    reason = why_absent(device)
    if reason:
        pytest.skip(reason)
    monkeypatch.setenv("RLX_LOOP_TRIPS", str(trips))
    compiled = rlx.Session(device).compile(endless())
    assert compiled.run(STOP)[0] == 1
    return compiled


@pytest.mark.parametrize("device", DEVICES)
def test_loops_have_so_many_trips_and_no_more(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = program(device, monkeypatch, 50)
    with pytest.raises(InputError, match=r"\[while\] expected trips \(RLX_LOOP_TRIPS\) in \[0, 51\), got 51, at node"):
        compiled.run(GO)
    assert compiled.run(STOP)[0] == 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_timeout_ends_a_run(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = program(device, monkeypatch, 1 << 28 if device == "xla" else 1 << 50)
    with pytest.raises(RunTimeout, match=r"0.2 s"):
        compiled.run(GO, timeout=0.2)
    assert compiled.run(STOP, timeout=60)[0] == 1
    assert compiled(*STOP, timeout=60)["y"] == 1
    with pytest.raises(InputError, match="timeout"):
        compiled.run(STOP, timeout=0)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_ctrl_c_ends_a_run(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = program(device, monkeypatch, 1 << 50)
    # a shell gives its background jobs the signal ignored, and so nothing would end the run
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(3):
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                compiled.run(GO)
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert compiled.run(STOP)[0] == 1


def test_handlers_that_raise_nothing_do_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = program("cpu", monkeypatch, 1 << 50)
    signals: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: signals.append(number))
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(RunTimeout):
            compiled.run(GO, timeout=0.6)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert signals == [signal.SIGUSR1]


def test_loops_in_loops_share_their_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("nested")
    count, x = graph.input("count", (), "i64"), graph.input("x", (), "f32")

    def loop(name: str, inner: bool) -> tuple[Graph, Graph]:
        test, body = Graph(f"{name}.test"), Graph(f"{name}.body")
        t = [test.input("i", (), "i64"), test.input("x", (), "f32"), test.input("count", (), "i64")]
        b = [body.input("i", (), "i64"), body.input("x", (), "f32"), body.input("count", (), "i64")]
        test.output(t[0] < t[2])
        value = b[1] + 1.0
        if inner:
            zero = body.constant(np.int64(0))
            value = ops.while_(zero, b[1], b[2], regions=loop("inner", False), carried=2)[1]
        body.output(b[0] + 1, value)
        return test, body

    zero = graph.constant(np.int64(0))
    graph.output(ops.while_(zero, x, count, regions=loop("outer", True), carried=2)[1])
    monkeypatch.setenv("RLX_LOOP_TRIPS", "110")
    for device in ("reference", "cpu"):
        compiled = rlx.Session(device).compile(graph)
        assert compiled.run([np.array(9), np.float32(0)])[0] == 81  # 9 trips, and 81 inside
        with pytest.raises(InputError, match="trips"):
            compiled.run([np.array(11), np.float32(0)])


def cancelling(seconds: float) -> rlx.CancelToken:
    """A token that is cancelled by itself after so long."""
    token = rlx.CancelToken()
    timer = threading.Timer(seconds, token.cancel)
    timer.daemon = True
    timer.start()
    return token


def long(n: int, products: int) -> Graph:
    """A state and another one that is far away from it, without loops."""
    graph = Graph("long")
    x = y = graph.input("x", (n, n), "f32")
    for _ in range(products):
        y = rlx.tanh(y @ x)
    graph.output(y, name="y")
    graph.output(x + 1.0, name="next")
    return graph


def matrix(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, n)).astype(np.float32) / n**0.5


@pytest.mark.parametrize("device", DEVICES)
def test_a_token_ends_runs(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = program(device, monkeypatch, 1 << 28 if device == "xla" else 1 << 50)
    token = cancelling(0.2)
    for _ in range(2):
        with pytest.raises(RunCancelled):
            compiled.run(GO, cancel=token)
    assert token.cancelled
    assert compiled.run(STOP, timeout=60, cancel=rlx.CancelToken())[0] == 1
    assert compiled(*STOP, cancel=rlx.CancelToken())["y"] == 1
    with pytest.raises(InputError, match="CancelToken"):
        compiled.run(STOP, cancel=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "size", "products", "seconds"),
    [
        ("cpu", 2000, 40, 0.3),
        ("reference", 3000, 40, 0.3),
        ("xla", 2000, 8, 0.3),
        ("mlx", 1500, 12, 0.3),
        ("vulkan", 512, 10, 0.08),
    ],
)
def test_a_run_without_loops_is_ended_and_changes_nothing(
    device: str, size: int, products: int, seconds: float
) -> None:
    """Each would take many times as long. On Vulkan runs go on in the background, and the handle is read behind."""
    reason = why_absent(device)
    if reason:
        pytest.skip(reason)
    program = rlx.Session(device).compile(long(size, products))
    x = matrix(size)
    program.bind_handle("x", x)
    program.set_feeds({"next": "x"})
    with pytest.raises(RunTimeout):
        program.run(timeout=seconds)
    with pytest.raises(RunCancelled):
        program.run(cancel=cancelling(seconds / 3))
    np.testing.assert_array_equal(program.read_handle("x"), x)


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_that_may_be_ended_give_the_same_bits(threads: int) -> None:
    graph = long(300, 3)
    q = graph.outputs["y"].reshape((1, 4, 75, 300))[:, :, :, :32]
    graph.output(rlx.attention(q, q, q, causal=True), name="mixed")
    graph.output(rlx.sort(rlx.softmax(graph.outputs["y"], axis=-1), axis=1), name="sorted")
    graph.output(rlx.reduce_sum(graph.outputs["y"], axes=(0,)), name="sums")
    program = rlx.Session("cpu", threads=threads).compile(graph)
    expected = program.run([matrix(300)])
    for _ in range(3):
        for a, b in zip(expected, program.run([matrix(300)], timeout=600, cancel=rlx.CancelToken()), strict=True):
            assert a.tobytes() == b.tobytes()


def test_many_runs_are_cancelled_anywhere_and_the_next_is_right() -> None:
    program = rlx.Session("cpu").compile(long(400, 12))
    x = matrix(400)
    expected = program.run([x])[0].tobytes()
    ended = 0
    for step in range(60):
        try:
            program.run([x], timeout=1e-4 * (step + 1))
        except RunTimeout:
            ended += 1
        if step % 10 == 9:
            assert program.run([x])[0].tobytes() == expected
    assert ended


def test_threads_cancel_their_own_runs() -> None:
    program = rlx.Session("cpu").compile(long(300, 30))
    x = matrix(300)
    expected = program.run([x])[0].tobytes()
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(8):
            token = cancelling(0.001 * turn) if number % 2 else None
            try:
                if program.run([x], cancel=token)[0].tobytes() != expected:
                    wrong.append((number, turn))
            except RunCancelled:
                if token is None:
                    wrong.append((number, turn, "cancelled"))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_runs_into_given_arrays_have_limits(device: str) -> None:
    program = rlx.Session(device).compile(long(1500, 40))
    x = matrix(1500)
    out = [np.zeros_like(x), np.zeros_like(x)]
    with pytest.raises(RunTimeout):
        program.run_slots([x], out, timeout=0.1)
    for array in out:
        array[:] = 7
    with pytest.raises(RunCancelled):
        program.run_slots([x], [np.zeros_like(x), np.zeros_like(x)], cancel=cancelling(0.1))
    assert all((array == 7).all() for array in out), "whatever goes on behind does not write to them"


def test_padded_runs_have_limits() -> None:
    graph = Graph("rows")
    graph.output(graph.input("x", ("n", 4), "f32") * 2.0, name="y")
    buckets = rlx.BucketedCache(graph, rlx.Session("cpu"), {"n": (8, 16)})
    x = np.ones((3, 4), np.float32)
    assert buckets.run_padded([x], timeout=60, cancel=rlx.CancelToken())[0].shape == (3, 4)
    token = rlx.CancelToken()
    token.cancel()
    with pytest.raises(RunCancelled):
        buckets.run_padded([x], cancel=token)


def test_queued_runs_have_limits_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = program("cpu", monkeypatch, 1 << 50)
    token = rlx.CancelToken()
    stuck = compiled.run_pipelined(GO, cancel=token)
    late = compiled.run_pipelined(GO, timeout=0.2)
    fine = compiled.run_pipelined(STOP)
    token.cancel()
    with pytest.raises(RunCancelled):
        stuck.result(60)
    with pytest.raises(RunTimeout):
        late.result(60)
    assert fine.result(60)[0] == 1


def test_models_have_limits(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_LOOP_TRIPS", str(1 << 50))
    path = f"{tmp_path}/endless.rlx"
    save_graph(endless(), path)
    model: Model = rlx.load(path, device="cpu")
    assert model(*STOP, timeout=60)["y"] == 1
    with pytest.raises(RunTimeout):
        model(*GO, timeout=0.1)
    with pytest.raises(RunCancelled):
        model.run(GO, cancel=cancelling(0.1))


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_random_numbers_of_a_run_that_failed_are_the_next_ones(device: str) -> None:
    graph = Graph("draws")
    state, at = graph.input(RANDOM_STATE, (4,), "u32"), graph.input("at", (1,), "i64")
    graph.output(rlx.gather(rlx.random_uniform(state, shape=(64,)), at, axis=0), name="y")
    program = rlx.Session(device).compile(graph)
    fine, beyond = [np.zeros(1, np.int64)], [np.full(1, 64)]
    program.seed(3)
    expected = [float(program.run(fine)[0][0]) for _ in range(4)]
    assert len(set(expected)) == 4
    program.seed(3)
    drawn = []
    for _ in range(4):
        for wrong in (beyond, [np.zeros(1, np.int32)], [np.zeros((1, 1), np.int64)], [], {"to": fine[0]}):
            with pytest.raises(InputError):
                program.run(wrong)
        token = rlx.CancelToken()
        token.cancel()
        with pytest.raises(RunCancelled):
            program.run(fine, cancel=token)
        drawn.append(float(program.run(fine)[0][0]))
    assert drawn == expected
