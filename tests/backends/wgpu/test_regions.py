"""Conditionals and loops: what runs in one submission, where their buffers lie, and what they leave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlx import ops
from rlx.errors import InputError
from rlx.ir.graph import Graph, Value
from rlx.ir.op import EXACT

from .conftest import Check, compiled

Body = Callable[..., Value | tuple[Value, ...]]


def region(body: Body, *types: tuple[tuple[int | str, ...], str]) -> Graph:
    graph = Graph("region")
    results = body(*(graph.input(f"a{i}", shape, dtype) for i, (shape, dtype) in enumerate(types)))
    graph.output(*(results if isinstance(results, tuple) else (results,)))
    return graph


HALVES, BYTE, BIT, NUMBER = ((3,), "f16"), ((), "u8"), ((), "bool"), ((), "f32")


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_over_packed_sequences(reverse: bool, check: Check, kind: str) -> None:
    """Rows of halves and bytes that begin in the middle of a word, and carried values that begin as weights."""
    graph = Graph("scan")
    x, bits = graph.input("x", ("n", 3), "f16"), graph.input("bits", ("n",), "bool")
    start = graph.param("start", (3,), "f16")
    count = graph.constant(np.uint8(250))

    def step(total: Value, seen: Value, row: Value, bit: Value) -> tuple[Value, ...]:
        after = ops.select(bit, total + row, total)
        return after, seen + 3, after * 2.0, seen

    body = region(step, HALVES, BYTE, HALVES, BIT)
    graph.output(*ops.scan(start, count, x, bits, carried=2, sequences=2, length="n", reverse=reverse, regions=(body,)))
    calls = []
    random = np.random.default_rng(1)
    for n in (5, 1, 0):
        rows = random.integers(-8, 8, (n, 3)).astype(np.float16)
        calls.append(({"n": n}, {"x": rows, "bits": random.integers(0, 2, n).astype(np.bool_)}))
    params = {"start": np.arange(3, dtype=np.float16)}
    check(graph, calls, params, tolerance=EXACT)
    bound = compiled(kind, graph, params).bind({"n": 5})
    assert not bound.asks  # type: ignore[attr-defined]


def test_loops_in_loops_and_branches(check: Check) -> None:
    graph = Graph("nested")
    x, most = graph.input("x", (4,)), graph.input("most", ())
    vector = ((4,), "f32")

    def twice(c: Value, m: Value) -> Value:
        test = region(lambda a, n: ops.reduce_sum(a, axes=(0,)) < n, vector, NUMBER)
        return ops.while_(c, m, carried=1, regions=(test, region(lambda a, n: a * 2.0, vector, NUMBER)))[0]

    def step(c: Value, e: Value, m: Value) -> tuple[Value, ...]:
        sides = (region(twice, vector, NUMBER), region(lambda a, n: ops.abs(a - n), vector, NUMBER))
        after = ops.if_(ops.gt(e, 0.0), c, m, regions=sides)[0]
        return after + e, after

    body = region(step, vector, NUMBER, NUMBER)
    graph.output(*ops.scan(x, graph.input("s", ("n",)), most, carried=1, sequences=1, length="n", regions=(body,)))
    graph.output(x + 1.0)
    calls = []
    for signs in ((1, -1, 1, 1), (-1, -1), ()):
        inputs = {"x": np.ones(4, np.float32), "most": np.float32(20), "s": np.array(signs, np.float32)}
        calls.append(({"n": len(signs)}, {k: np.asarray(v) for k, v in inputs.items()}))
    check(graph, calls, tolerance=EXACT)


@pytest.mark.parametrize("trips", [0, 1, 2, 3])
def test_where_a_loop_leaves_its_values(trips: int, check: Check) -> None:
    """What follows reads the last value, which lies in other memory after each trip."""
    graph = Graph("last")
    n = graph.input("n", (), "i64")
    one = graph.constant(np.arange(3, dtype=np.int64))
    whole, number = ((3,), "i64"), ((), "i64")
    test = region(lambda i, a, m: i < m, number, whole, number)
    body = region(lambda i, a, m: (i + 1, a * 3), number, whole, number)
    zero = graph.constant(np.int64(0))
    results = ops.while_(zero, one, n, carried=2, regions=(test, body))
    graph.output(results[1] + 1, results[0])
    check(graph, [({}, {"n": np.array(t, np.int64)}) for t in (trips, 2, trips)], tolerance=EXACT)


@pytest.mark.parametrize("source", ["input", "param", "computed"])
def test_predicates_from_everywhere(source: str, check: Check) -> None:
    graph = Graph("if")
    x = graph.input("x", (3,))
    flag = graph.param("p", (), "bool") if source == "param" else graph.input("p", (), "bool")
    predicate = ops.logical_not(flag) if source == "computed" else flag
    vector = ((3,), "f32")
    sides = (region(lambda a: a * 2.0, vector), region(lambda a: ops.cumsum(a, axis=0), vector))
    graph.output(ops.if_(predicate, x, regions=sides)[0] - 1.0)
    for truth in (True, False):
        array = np.array(truth)
        inputs = {"x": np.arange(3, dtype=np.float32), **({} if source == "param" else {"p": array})}
        check(graph, [({}, inputs)], {"p": array} if source == "param" else None)


def test_dims_that_a_branch_needs_to_be_equal(kind: str) -> None:
    graph = Graph("checks")
    p, x, y = graph.input("p", (), "bool"), graph.input("x", ("n",)), graph.input("y", ("m",))
    types = ((("n",), "f32"), (("m",), "f32"))

    def total(a: Value) -> Value:
        return ops.reduce_sum(a, axes=(0,))

    sides = (region(lambda a, b: total(a + b), *types), region(lambda a, b: total(a), *types))
    graph.output(*ops.if_(p, x, y, regions=sides))
    bound = compiled(kind, graph).bind({"n": 2, "m": 3})
    two, three = np.ones(2, np.float32), np.ones(3, np.float32)
    assert bound([np.array(False), two, three])[0] == 2
    with pytest.raises(InputError, match="n = 2 against m = 3"):
        bound([np.array(True), two, three])
    assert bound([np.array(False), two, three])[0] == 2


def test_a_selected_weight_may_change(kind: str) -> None:
    """Pieces that were made ready read new weights."""
    graph = Graph("weights")
    p, x = graph.input("p", (), "bool"), graph.input("x", (2,))
    vector = ((2,), "f32")
    sides = (region(lambda a, w: a * w, vector, vector), region(lambda a, w: a, vector, vector))
    graph.output(*ops.if_(p, x, graph.param("w", (2,)), regions=sides))
    executable = compiled(kind, graph, {"w": np.full(2, 3, np.float32)})
    bound = executable.bind({})
    inputs = [np.array(True), np.ones(2, np.float32)]
    assert bound(inputs)[0].tolist() == [3, 3]
    executable.set_params({"w": np.full(2, 5, np.float32)})
    assert bound(inputs)[0].tolist() == [5, 5]
