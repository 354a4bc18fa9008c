"""Loops that threads run whole, or some rows of: against the reference, on any number of threads, and ended early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import isa
from rlx.backends.cpu.build import program_of
from rlx.backends.cpu.pool import ThreadPool
from rlx.ir.graph import Graph, Value
from rlx.kernel.ir.control import Loop, LoopGroup
from rlx.kernel.ir.program import Program
from rlx.kernel.ir.verify import verify
from support import run_on

Array = np.ndarray[Any, Any]
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
HIDDEN = 40


@pytest.fixture(autouse=True)
def pool() -> Iterator[ThreadPool]:
    """The pool with four threads."""
    shared = ThreadPool.shared()
    before = shared.threads
    shared.set_threads(4)
    yield shared
    shared.set_threads(before)


def net(
    name: str, batch: int | str, both: bool, steps: int | str = 9, lengths: bool = False, **attributes: Any
) -> Graph:  # fmt: skip
    """A recurrent net; its results go into other nodes."""
    graph = Graph(name)
    directions, wide, random = 2 if both else 1, GATES[name] * HIDDEN, np.random.default_rng(0)
    x = graph.input("x", (steps, batch, 24))
    shapes = {"w": (directions, wide, 24), "r": (directions, wide, HIDDEN), "b": (directions, 2 * wide)}
    weights = [
        graph.param(of, shape, data=random.standard_normal(shape).astype("f4") / 6) for of, shape in shapes.items()
    ]
    states = [graph.input(f"s{i}", (directions, batch, HIDDEN)) for i in range(2 if name == "lstm" else 1)]
    more: list[Any] = []
    if lengths:
        peep = [graph.param("p", (directions, 3 * HIDDEN), data=np.full((directions, 3 * HIDDEN), 0.1, "f4"))]
        more = [*(peep if name == "lstm" else []), graph.input("lengths", (batch,), "i32")]
    direction = "bidirectional" if both else "forward"
    y, *last = getattr(ops, name)(x, *weights, *states, *more, direction=direction, **attributes)
    graph.output(y, name="y")
    for i, state in enumerate(last):
        graph.output(state * 2.0, name=f"last{i}")
    return graph


def inputs_of(graph: Graph, batch: int, steps: int = 9) -> dict[str, Array]:
    random = np.random.default_rng(batch)
    named: dict[str, Array] = {}
    for value in graph.inputs:
        shape = [{"b": batch, "n": steps}.get(d, d) if isinstance(d, str) else d for d in map(_named, value.shape)]
        if value.name == "lengths":
            named["lengths"] = random.integers(0, steps + 1, shape).astype(np.int32)
        else:
            named[str(value.name)] = random.standard_normal(shape).astype(np.float32)
    return named


def _named(dim: Any) -> Any:
    return dim if isinstance(dim, int) else str(dim)


def outputs(graph: Graph, inputs: dict[str, Array], threads: int) -> dict[str, Array]:
    compiled = rlx.Session("cpu", threads=threads, cache=False, compile="before").compile(graph)
    return {name: np.array(value) for name, value in zip(graph.outputs, compiled.run(inputs))}


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("both", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("batch", [1, 4, 9])
@pytest.mark.parametrize("lengths", [False, True], ids=["whole", "lengths"])
def test_threads_change_no_bit(name: str, both: bool, batch: int, lengths: bool) -> None:
    graph = net(name, batch, both, lengths=lengths)
    inputs = inputs_of(graph, batch)
    expected, one = run_on("reference", graph, inputs), outputs(graph, inputs, 1)
    for of, value in expected.items():
        np.testing.assert_allclose(one[of], value, atol=3e-6)
    for threads in (2, 4):
        several = outputs(graph, inputs, threads)
        for of, value in one.items():
            np.testing.assert_array_equal(several[of], value)


@pytest.mark.parametrize("both", [False, True], ids=["forward", "both"])
def test_open_batches_and_lengths(both: bool) -> None:
    """Those of no rows, and of no trips, leave the states where they began."""
    graph = net("gru", "b", both, steps="n", linear_before_reset=True)
    compiled = rlx.Session("cpu", threads=4, cache=False, compile="before").compile(graph)
    for batch, steps in ((1, 5), (2, 0), (0, 3), (3, 1), (8, 7), (17, 2)):
        inputs = inputs_of(graph, batch, steps)
        for actual, expected in zip(compiled.run(inputs), run_on("reference", graph, inputs).values()):
            np.testing.assert_allclose(actual, expected, atol=3e-6)


def test_layers_follow_one_another() -> None:
    """A loop that begins where another has ended, and reads what that has piled up."""
    graph = Graph("layers")
    y: Value = graph.input("x", (6, 8, HIDDEN))
    random, state = np.random.default_rng(0), graph.constant(np.zeros((1, 8, HIDDEN), "f4"))
    for layer in range(3):
        shapes = {"w": (1, HIDDEN, HIDDEN), "r": (1, HIDDEN, HIDDEN), "b": (1, 2 * HIDDEN)}
        weights = [
            graph.param(f"{of}{layer}", shape, data=random.standard_normal(shape).astype("f4") / 6)
            for of, shape in shapes.items()
        ]
        y, state = ops.rnn(y, *weights, state)
        y = y.reshape(6, 8, HIDDEN)
    graph.output(y, name="y")
    graph.output(state, name="state")
    inputs = inputs_of(graph, 8)
    expected = run_on("reference", graph, inputs)
    for of, value in outputs(graph, inputs, 2).items():
        np.testing.assert_allclose(value, expected[of], atol=3e-6)


def groups(graph: Graph) -> tuple[Program, list[LoopGroup]]:
    """The program, verified, and its groups."""
    program, _ = program_of(graph, isa.detect(), Options())
    verify(program)
    return program, [kernel.work for kernel in program.main if isinstance(kernel.work, LoopGroup)]


def test_directions_are_a_group_and_rows_come_apart() -> None:
    (group,) = groups(net("lstm", 8, both=True))[1]
    assert len(group.loops) == 2
    for cut in group.cuts:
        assert cut is not None and cut.rows == 8
        assert {step for _, step in cut.steps} == {HIDDEN, 4 * HIDDEN}
    (group,) = groups(net("lstm", "b", both=False, lengths=True))[1]
    (cut,) = group.cuts
    assert cut is not None and str(cut.rows) == "b" and {step for _, step in cut.steps} == {1, HIDDEN, 4 * HIDDEN}


@pytest.mark.parametrize("name", GATES)
def test_few_rows_stay_together(name: str) -> None:
    """Their kernels are those of a known number of rows."""
    assert groups(net(name, 3, both=False))[1] == []
    (group,) = groups(net(name, 1, both=True))[1]
    assert group.cuts == (None, None)


def scans(mixes: bool, follows: bool, shorter: int = 0) -> Graph:
    """Two scans over rows of 8. With `mixes` a trip adds to each row the one before; with `follows` the second starts
    where the first has ended. It has so many trips less."""
    graph = Graph("scans")
    x = graph.input("x", (5, 8, 6))
    w = graph.param("w", (6, 6), data=np.random.default_rng(0).standard_normal((6, 6)).astype("f4") / 4)

    def body() -> Graph:
        region = Graph("step")
        h, e, m = region.input("h", (8, 6)), region.input("e", (8, 6)), region.input("m", (6, 6))
        if mixes:
            h = ops.concat(h[1:], h[:1], axis=0)
        y = ops.tanh(h @ m + e)
        region.output(y, y * 0.5)
        return region

    start, total = x[0], x[1]
    for number in range(2):
        steps = 5 - shorter * number
        last, piled = ops.scan(start, x[:steps], w, carried=1, sequences=1, length=steps, regions=(body(),))
        start = last if follows else x[2]
        graph.output(piled, name=f"piled{number}")
        total = total + last
    graph.output(total, name="total")
    return graph


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("follows", [False, True])
def test_only_what_is_independent_is_apart(mixes: bool, follows: bool) -> None:
    graph = scans(mixes, follows)
    program, found = groups(graph)
    plain = [kernel for kernel in program.main if isinstance(kernel.work, Loop)]
    assert [len(group.loops) for group in found] == ([] if mixes and follows else [1, 1] if follows else [2])
    assert len(plain) == (2 if mixes and follows else 0)
    assert all((cut is None) == mixes for group in found for cut in group.cuts)
    inputs = inputs_of(graph, 8)
    expected = run_on("reference", graph, inputs)
    for threads in (1, 4):
        for of, value in outputs(graph, inputs, threads).items():
            np.testing.assert_allclose(value, expected[of], atol=3e-6)


def test_no_loop_waits_for_a_longer_one() -> None:
    _, found = groups(scans(mixes=False, follows=False, shorter=1))
    assert [len(group.loops) for group in found] == [1, 1]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_long_loop_of_a_group_is_ended(threads: int) -> None:
    graph = net("rnn", 8, both=True, steps="n")
    compiled = rlx.Session("cpu", threads=threads, cache=False, compile="before").compile(graph)
    short, long = inputs_of(graph, 8, 3), inputs_of(graph, 8, 3)
    long["x"] = np.broadcast_to(np.float32(0.5), (400_000, 8, 24))
    before = compiled.run(short)
    with pytest.raises(rlx.RunTimeout):
        compiled.run(long, timeout=0.05)
    for value, again in zip(before, compiled.run(short)):
        np.testing.assert_array_equal(again, value)


def test_a_loop_whose_condition_has_a_product() -> None:
    """Products of a condition are those of a loop too: they go to and fro through their panels."""
    graph = Graph("until")
    x = graph.input("x", (1, 64))
    data = np.random.default_rng(0).standard_normal((64, 64)).astype("f4") / 8
    w = graph.param("w", (64, 64), data=data)

    def region(make: Any) -> Graph:
        one = Graph("region")
        one.output(make(one.input("a", (1, 64)), one.input("m", (64, 64))))
        return one

    test = region(lambda a, m: ops.reduce_max(ops.abs(a @ m), axes=(0, 1)) < 30)
    body = region(lambda a, m: (a @ m) * 2.0 + a)
    graph.output(ops.while_(x, w, carried=1, limit=12, regions=(test, body))[0], name="y")
    inputs = inputs_of(graph, 1)
    expected = run_on("reference", graph, inputs)["y"]
    np.testing.assert_allclose(outputs(graph, inputs, 4)["y"], expected, rtol=2e-5, atol=2e-4)
