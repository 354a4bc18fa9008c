"""The collector of garbage rests while graphs are compiled, and only then."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import rlx
from rlx import collector


@pytest.fixture(autouse=True)
def enabled() -> object:
    gc.enable()
    yield
    gc.enable()


def test_pauses_nest_and_end_with_the_last() -> None:
    with collector.paused():
        with collector.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_pause_of_another_thread_outlives_ours() -> None:
    begun, end = threading.Event(), threading.Event()

    def pause() -> None:
        with collector.paused():
            begun.set()
            end.wait()

    thread = threading.Thread(target=pause)
    thread.start()
    try:
        begun.wait()
        with collector.paused():
            pass
        assert not gc.isenabled()
    finally:
        end.set()
        thread.join()
    assert gc.isenabled()


def test_who_turned_it_off_keeps_it_off() -> None:
    gc.disable()
    with collector.paused():
        pass
    assert not gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(ValueError), collector.paused():
        raise ValueError
    assert gc.isenabled()


def test_compiling_does_not_collect() -> None:
    session = rlx.Session(device="cpu", cache=False)
    session.compile(chain())  # imports are not the program's
    graph = chain()
    before = gc.get_stats()[0]["collections"]
    compiled = session.compile(graph)
    assert gc.get_stats()[0]["collections"] <= before + 2, "of the youngest, before and after the compile"
    assert gc.isenabled()
    np.testing.assert_array_less(compiled.run({"x": np.ones(3, np.float32)})[0], 1)


def chain() -> rlx.Graph:
    graph = rlx.Graph("chain")
    x = graph.input("x", ("n",))
    for _ in range(1000):
        x = rlx.tanh(x)
    graph.output(x, name="y")
    return graph
