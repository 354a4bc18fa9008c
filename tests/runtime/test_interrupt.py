"""Runs that take too long: a timeout, Ctrl-C, and loops that would never end."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.errors import InputError, RunTimeout
from rlx.ir.graph import Graph
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
    made = rlx.Session(device).compile(endless())
    assert made.run(STOP)[0] == 1
    return made


@pytest.mark.parametrize("device", DEVICES)
def test_loops_have_so_many_trips_and_no_more(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = program(device, monkeypatch, 50)
    with pytest.raises(InputError, match=r"\[while\] expected trips \(RLX_LOOP_TRIPS\) in \[0, 51\), got 51, at node"):
        made.run(GO)
    assert made.run(STOP)[0] == 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_timeout_ends_a_run(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = program(device, monkeypatch, 1 << 28 if device == "xla" else 1 << 50)
    with pytest.raises(RunTimeout, match=r"0.2 s"):
        made.run(GO, timeout=0.2)
    assert made.run(STOP, timeout=60)[0] == 1
    assert made(*STOP, timeout=60)["y"] == 1
    with pytest.raises(InputError, match="timeout"):
        made.run(STOP, timeout=0)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_ctrl_c_ends_a_run(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = program(device, monkeypatch, 1 << 50)
    # a shell gives its background jobs the signal ignored, and so nothing would end the run
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(3):
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                made.run(GO)
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert made.run(STOP)[0] == 1


def test_handlers_that_raise_nothing_do_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = program("cpu", monkeypatch, 1 << 50)
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(RunTimeout):
            made.run(GO, timeout=0.6)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]


def test_loops_in_loops_share_their_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("nested")
    count, x = graph.input("count", (), "i64"), graph.input("x", (), "f32")

    def loop(name: str, inner: bool) -> tuple[Graph, Graph]:
        test, body = Graph(f"{name}.test"), Graph(f"{name}.body")
        t = [test.input("i", (), "i64"), test.input("x", (), "f32"), test.input("count", (), "i64")]
        b = [body.input("i", (), "i64"), body.input("x", (), "f32"), body.input("count", (), "i64")]
        test.output(t[0] < t[2])
        made = b[1] + 1.0
        if inner:
            zero = body.constant(np.int64(0))
            made = ops.while_(zero, b[1], b[2], regions=loop("inner", False), carried=2)[1]
        body.output(b[0] + 1, made)
        return test, body

    zero = graph.constant(np.int64(0))
    graph.output(ops.while_(zero, x, count, regions=loop("outer", True), carried=2)[1])
    monkeypatch.setenv("RLX_LOOP_TRIPS", "110")
    for device in ("reference", "cpu"):
        made = rlx.Session(device).compile(graph)
        assert made.run([np.array(9), np.float32(0)])[0] == 81  # 9 trips, and 81 inside
        with pytest.raises(InputError, match="trips"):
            made.run([np.array(11), np.float32(0)])
