"""Handles, feeds and active extents: what stays between runs, and that an error changes none of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import InputError
from rlx.ir.graph import Value
from rlx.ir.literal import Array
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.mode import PLAIN
from rlx.runtime.run import run_once
from rlx.runtime.state import State

DEVICES = ["reference", "cpu"]


def counter(device: str) -> CompiledGraph:
    graph = rlx.Graph("counter")
    state, x = graph.input("state", (4,)), graph.input("x", (4,))
    graph.output(state + x, name="next")
    graph.output(state * 2.0, name="double")
    return rlx.Session(device).compile(graph)


def cache(device: str) -> CompiledGraph:
    """Grows: [past] and [new] become [past+new]."""
    graph = rlx.Graph("cache")
    past, new = graph.input("past", ("past", 3)), graph.input("new", ("new", 3))
    graph.output(rlx.concat(past, new, axis=0), name="present")
    return rlx.Session(device).compile(graph)


ONES = np.ones(4, "f4")


@pytest.mark.parametrize("device", DEVICES)
def test_handles_stand_in_for_inputs(device: str) -> None:
    program = counter(device)
    start = ONES * 5
    program.bind_handle("state", start)
    start[:] = 0
    assert program.run({"x": ONES})[0].tolist() == [6] * 4
    assert program.run([ONES])[0].tolist() == [6] * 4
    assert program(x=ONES)["next"].tolist() == [6] * 4
    assert program.run({"x": ONES, "state": ONES})[0].tolist() == [2] * 4, "what a run brings comes first"
    assert program.run([ONES, ONES])[0].tolist() == [2] * 4
    assert program.read_handle("state").tolist() == [5] * 4
    program.unbind_handle("state")
    with pytest.raises(InputError, match="missing 'state'"):
        program.run({"x": ONES})
    assert program.run([ONES, ONES])[0].tolist() == [2] * 4


@pytest.mark.parametrize("device", DEVICES)
def test_feeds_write_results_back(device: str) -> None:
    program = counter(device)
    program.bind_handle("state", np.zeros(4, "f4"))
    program.set_feeds({"next": "state"})
    results = [program.run({"x": ONES})[0] for _ in range(5)]
    assert [r[0] for r in results] == [1, 2, 3, 4, 5], "results of earlier runs stay"
    assert program.read_handle("state") is results[-1], "no copy"
    assert not results[-1].flags.writeable
    before = program.read_handle("state")
    program.run([ONES])
    assert before.tolist() == [5] * 4
    slots = [np.empty(4, "f4"), np.empty(4, "f4")]
    program.run_slots([ONES], slots)
    slots[0][:] = 0
    assert program.read_handle("state").tolist() == [7] * 4, "arrays of the caller are no state"
    program.set_feeds({})
    program.run([ONES])
    assert program.read_handle("state").tolist() == [7] * 4


@pytest.mark.parametrize("device", DEVICES)
def test_a_fed_dim_grows(device: str) -> None:
    program = cache(device)
    program.bind_handle("past", np.zeros((0, 3), "f4"))
    program.set_feeds({"present": "past"})
    for i in range(4):
        program.run({"new": np.full((i % 2 + 1, 3), i, "f4")})
    assert program.read_handle("past")[:, 0].tolist() == [0, 1, 1, 2, 3, 3]


def test_a_run_that_fails_leaves_handles() -> None:
    program = counter("cpu")
    program.bind_handle("state", ONES)
    program.set_feeds({"next": "state"})
    program.run([ONES])
    for wrong in ([np.ones(5, "f4")], {"y": ONES}, [ONES.astype("f8")], {"x": ONES, "state": ONES[:2]}):
        with pytest.raises(InputError):
            program.run(wrong)
        assert program.read_handle("state").tolist() == [2] * 4
    assert program.run([ONES])[0].tolist() == [3] * 4


def test_declarations_are_checked_and_change_nothing_when_refused() -> None:
    program = counter("cpu")
    for name, array, words in (
        ("z", ONES, "'z'"),
        ("state", np.ones(5, "f4"), r"f32\[4\]"),
        ("state", np.ones(4), "float64"),
        ("state", np.ones((1, 4), "f4"), "1, 4"),
    ):
        with pytest.raises(InputError, match=words):
            program.bind_handle(name, array)
    with pytest.raises(InputError, match="expected a handle"):
        program.set_feeds({"next": "state"})
    program.bind_handle("state", ONES)
    for feeds in ({"nope": "state"}, {"next": "nope"}, {"next": "x"}, {"next": "state", "double": "state"}):
        with pytest.raises(InputError):
            program.set_feeds(feeds)
    program.set_feeds({"next": "state"})
    with pytest.raises(InputError, match="feeds"):
        program.unbind_handle("state")
    with pytest.raises(InputError, match="'x'"):
        program.read_handle("x")
    growing = cache("cpu")
    growing.bind_handle("past", np.zeros((0, 3), "f4"))
    graph = rlx.Graph()
    fixed, n = graph.input("fixed", (4,)), graph.input("n", ("n",))
    graph.output(n + 1.0, name="y")
    graph.output(fixed, name="same")
    other = rlx.Session("cpu").compile(graph)
    other.bind_handle("fixed", ONES)
    with pytest.raises(InputError, match=r"f32\[4\].*f32\[n\]"):
        other.set_feeds({"y": "fixed"})


def test_feeds_from_many_threads_lose_no_run() -> None:
    program = counter("cpu")
    program.bind_handle("state", np.zeros(4, "f4"))
    program.set_feeds({"next": "state"})

    def work() -> None:
        for _ in range(50):
            program.run([ONES])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert program.read_handle("state").tolist() == [400] * 4


def tokens(device: str) -> CompiledGraph:
    """Rows of [batch, seq, 4] through products and a softmax along seq: what lies behind the extent would show."""
    graph = rlx.Graph("tokens")
    x, w = graph.input("x", ("batch", "seq", 4)), graph.param("w", (4, 4))
    mask = graph.input("mask", ("batch", "seq"))
    graph.output(rlx.softmax(x @ w, axis=1), name="y")
    graph.output(rlx.reduce_sum(mask, axes=(1,)), name="total")
    graph.output(mask * 2.0, name="twice")
    program = rlx.Session(device).compile(graph)
    program.set_param("w", np.random.default_rng(0).standard_normal((4, 4)).astype("f4"))
    return program


@pytest.mark.devices("reference", "cpu", "xla", "mlx")
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", [0, 1, 5, 8])
def test_active_extent_is_a_run_at_that_size(device: str, batch: int, n: int) -> None:
    program = tokens(device)
    random = np.random.default_rng(1)
    x = random.standard_normal((batch, 8, 4)).astype("f4")
    mask = random.standard_normal((batch, 8)).astype("f4")
    x[:, n:], mask[:, n:] = np.nan, np.nan
    y, total, twice = program.run([x[:, :n], mask[:, :n]])
    program.set_active_extent("seq", n)
    for actual in (
        program.run([x, mask]),
        program.run_slots([x, mask], [np.full(s, 7, "f4") for s in ((batch, 8, 4), (batch,), (batch, 8))]),
    ):
        assert [r.shape for r in actual] == [(batch, 8, 4), (batch,), (batch, 8)]
        np.testing.assert_array_equal(actual[0][:, :n], y)
        np.testing.assert_array_equal(actual[1], total)
        np.testing.assert_array_equal(actual[2][:, :n], twice)
        assert not actual[0][:, n:].any() and not actual[2][:, n:].any()
    program.set_active_extent("seq", None)
    assert np.isnan(program.run([x, mask])[2]).any() == (n < 8)


def test_active_extents_that_cannot_be_are_refused() -> None:
    graph = rlx.Graph()
    x, pair = graph.input("x", ("n", "m")), graph.input("pair", ("2*k",))
    graph.output(x.reshape(("n*m",)), name="flat")
    graph.output(pair * 1.0, name="same")
    program = rlx.Session("reference").compile(graph)
    for dim, n, words in (
        ("n", 2, "'n'.*'flat'"),
        ("k", 2, r"'k'.*2\*k.*'pair'"),
        ("z", 2, "'z'"),
        ("n", -1, "-1"),
        ("n", True, "True"),
        ("n", 1.5, "1.5"),
    ):
        with pytest.raises(InputError, match=words):
            program.set_active_extent(dim, n)  # type: ignore[arg-type]
    token = tokens("cpu")
    token.set_active_extent("seq", 9)
    with pytest.raises(InputError, match="seq = 9 of 8"):
        token.run([np.ones((1, 8, 4), "f4"), np.ones((1, 8), "f4")])
    token.set_active_extent("seq", 8)
    token.run([np.ones((1, 8, 4), "f4"), np.ones((1, 8), "f4")])
    weighted = rlx.Graph()
    weighted.output(weighted.input("x", ("n",)) + weighted.param("w", ("n",)), name="y")
    with pytest.raises(InputError, match="param"):
        rlx.Session("reference").compile(weighted).set_active_extent("n", 1)


def test_active_extent_skips_the_work() -> None:
    import time

    graph = rlx.Graph()
    graph.output(graph.input("x", ("n", 256)) @ graph.param("w", (256, 256)), name="y")
    program = rlx.Session("cpu", threads=1).compile(graph)
    program.set_param("w", np.ones((256, 256), "f4"))
    x = np.ones((2048, 256), "f4")

    def quickest() -> float:
        times = []
        for _ in range(7):
            start = time.perf_counter()
            program.run([x])
            times.append(time.perf_counter() - start)
        return min(times)

    whole = quickest()
    program.set_active_extent("n", 32)
    assert quickest() < whole / 3


def test_extents_and_feeds_go_together() -> None:
    graph = rlx.Graph()
    state, x = graph.input("state", ("n", 2)), graph.input("x", ("n", 2))
    graph.output(state + x, name="next")
    program = rlx.Session("cpu").compile(graph)
    program.bind_handle("state", np.zeros((4, 2), "f4"))
    program.set_feeds({"next": "state"})
    program.set_active_extent("n", 3)
    one: Any = np.ones((4, 2), "f4")
    program.run([one])
    program.run([one])
    assert program.read_handle("state")[:, 0].tolist() == [2, 2, 2, 0]


class Watching:
    """Keeps what it sees of some values."""

    budget = None

    def __init__(self, **watched: Value) -> None:
        self.watched = watched
        self.seen: list[list[Any]] = []

    def see(self, arrays: Sequence[Array]) -> None:
        self.seen.append([array.tolist() for array in arrays])


@pytest.mark.parametrize("device", DEVICES)
def test_observers_see_values_that_are_no_results(device: str) -> None:
    graph = rlx.Graph("inside")
    x = graph.input("x", (2,))
    inner, more = x + 1.0, x * 3.0
    graph.output(inner * more, name="y")
    program = rlx.Session(device).compile(graph).program
    state = State(program, lambda: None)
    one, two = Watching(a=inner), Watching(b=more, c=x)
    state.observe(one)
    state.observe(two)

    def run(out_arrays: list[Array] | None = None) -> Array:
        inputs = [np.array([1, 2], "f4")]
        return state.run(
            lambda mode, where: run_once(program, mode, inputs, out_arrays, where), out_arrays is not None
        )[0]

    out = np.empty(2, "f4")
    assert run().tolist() == run([out]).tolist() == out.tolist() == [6, 18]
    assert one.seen == [[[2, 3]]] * 2 and two.seen == [[[3, 6], [1, 2]]] * 2
    state.unobserve(one)
    run()
    assert len(one.seen) == 2 and len(two.seen) == 3
    state.unobserve(two)
    assert state.mode is PLAIN, "what keeps nothing is told by identity"


def test_too_few_inputs_by_position_are_told_what_has_a_handle() -> None:
    program = counter("cpu")
    with pytest.raises(InputError, match=r"expected 2 inputs \['state', 'x'\], got 0(\n|$)"):
        program.run([])
    program.bind_handle("state", ONES)
    pattern = r"expected 1 inputs \['x'\] \(a handle stands for \['state'\]\), or all 2 \['state', 'x'\], got "
    for inputs in ([], [ONES, ONES, ONES]):
        with pytest.raises(InputError, match=pattern + str(len(inputs))):
            program.run(inputs)
    assert program.run([ONES])[0].tolist() == program.run([ONES, ONES])[0].tolist() == [2, 2, 2, 2]
