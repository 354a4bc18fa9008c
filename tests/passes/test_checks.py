"""Which indices are looked at, what a run says of them, and that a run which fails changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.errors import GraphError, InputError
from rlx.ir.graph import Graph, Value, call
from rlx.ir.verify import verify
from rlx.passes.checks import add_checks
from rlx.passes.intervals import Intervals
from support import isa_of, kind_of

X = np.arange(12, dtype="f4").reshape(4, 3)


def taking(index: Callable[[Graph, Value], Value], rows: object = "n") -> Graph:
    graph = Graph("taking")
    x = graph.input("x", (rows, 3))
    graph.output(ops.gather(x, index(graph, x), axis=0), name="y")
    return graph


PROVEN: dict[str, Callable[[Graph, Value], Value]] = {
    "iota": lambda g, x: ops.iota(g, shape=(x.shape[0],), dtype="i64"),
    "iota from the back": lambda g, x: ops.iota(g, shape=(x.shape[0],), dtype="i64") - 1,
    "argmax": lambda g, x: ops.argmax(x, axis=0),
    "argsort": lambda g, x: ops.argsort(x, axis=0),
    "top_k": lambda g, x: call("top_k", x, axis=0, k=1)[1],  # type: ignore[index]
    "clamp": lambda g, x: ops.clamp(g.input("i", (5,), "i64"), 0, 3),
    "mod": lambda g, x: ops.mod(g.input("i", (5,), "i64"), 4) - 4,
    "of a wide table": lambda g, x: ops.iota(g, shape=(x.shape[0],), dtype="i32").cast("i64").reshape(1, -1).T,
}  # fmt: skip


@pytest.mark.parametrize("name", PROVEN)
def test_what_is_surely_in_range_costs_nothing(name: str) -> None:
    graph = taking(PROVEN[name], rows=4 if name in ("clamp", "mod") else "n")
    checked = add_checks(graph, True, 100)
    assert checked.graph is graph or not checked.checks


def test_what_may_be_out_of_range_is_looked_at() -> None:
    unsure: list[Callable[[Graph, Value], Value]] = [
        lambda g, x: g.input("i", (5,), "i64"),
        lambda g, x: ops.iota(g, shape=(x.shape[0],), dtype="i64") + 1,
        lambda g, x: ops.iota(g, shape=("m",), dtype="i64") if "m" in g.symbols else g.input("m", ("m",), "i64"),
        lambda g, x: ops.abs(g.input("i", (5,), "i64")),  # the least integer has no absolute value
        lambda g, x: ops.clamp(g.input("i", (5,), "i64") + (1 << 62), 0, 0) + 1,
        lambda g, x: ops.cast(g.input("i", (5,), "i64"), to="i8"),
    ]
    for index in unsure:
        checked = add_checks(taking(index), True, 100)
        assert len(checked.checks) == 1
        verify(checked.graph)


def test_narrow_indices_into_a_table_for_all_of_them() -> None:
    graph = Graph("bytes")
    graph.output(ops.gather(graph.input("x", (256, 3)), graph.input("i", ("n",), "u8"), axis=0))
    assert not add_checks(graph, True, 100).checks


def test_what_is_surely_the_same_is_looked_at_once() -> None:
    """Every layer of a decoder writes to its caches where the tokens so far end."""
    graph = Graph("caches")
    rows = graph.input("rows", ("seq", 3))
    past = graph.input("cached", ("past",), "u8").shape[0]
    for number in range(3):
        start = ops.dims_tensor(graph, values=(past,)).reshape(())
        state = graph.state(f"cache.{number}", ("capacity", 3))
        graph.set_next(state, ops.update_slice(state, rows, start))
    graph.output(rows)
    assert len(add_checks(graph, True, 1).checks) == 1
    session = rlx.Session("cpu")
    compiled = session.compile(graph)
    for number in range(3):
        compiled.bind_handle(f"cache.{number}", np.zeros((4, 3), np.float32))
    with pytest.raises(InputError, match=r"\[update_slice\] expected starts in \[0, 4\), got 4"):
        compiled.run({"rows": np.ones((1, 3), np.float32), "cached": np.zeros(4, np.uint8)})


def test_sums_that_wrap_prove_nothing() -> None:
    graph = Graph("wraps")
    i = graph.input("i", (), "i64")
    known = Intervals({})
    assert known.of(ops.maximum(i, 0) + 1).low == -(1 << 63)
    assert known.of(ops.mod(i, 7)).high == 6 and known.of(ops.mod(i, 7)).low == 0
    assert known.of(-ops.clamp(i, -3, 5)).low == -5


def test_constants_out_of_range_are_refused_when_compiled() -> None:
    graph = taking(lambda g, x: g.constant(np.array([0, 9])), rows=4)
    with pytest.raises(GraphError, match=r"\[gather\] expected indices in \[-4, 4\), got 9, at node 'gather_"):
        rlx.Session("reference").compile(graph)


def test_indices_are_looked_at_on_every_device(device: str) -> None:
    session = rlx.Session(*[kind_of(device)], isa=isa_of(device))
    program = session.compile(taking(lambda g, x: g.input("i", ("m",), "i64")))
    np.testing.assert_array_equal(program.run([X, np.array([0, -4, 3])])[0], X[[0, 0, 3]])
    for index in (4, -5, 1 << 40, -(1 << 63), (1 << 63) - 1):
        with pytest.raises(InputError, match=rf"\[gather\] expected indices in \[-4, 4\), got {index}, at node"):
            program.run([X, np.array([0, index])])
    assert program.run([X, np.array([1])])[0].tolist() == [X[1].tolist()]


def test_unchecked_indices_are_clamped() -> None:
    graph = taking(lambda g, x: g.input("i", ("m",), "i64"))
    for device in ("reference", "cpu"):
        program = rlx.Session(device, check_indices=False).compile(graph)
        np.testing.assert_array_equal(program.run([X, np.array([99, -99])])[0], X[[3, 0]])


def test_a_run_that_fails_feeds_nothing() -> None:
    graph = Graph("state")
    state, i = graph.input("held", (3,)), graph.input("i", (), "i64")
    graph.output(state + ops.gather(graph.input("x", (4, 3)), i, axis=0), name="next")
    program = rlx.Session("cpu").compile(graph)
    program.bind_handle("held", np.zeros(3, "f4"))
    program.set_feeds({"next": "held"})
    program.run({"i": np.array(1), "x": X})
    before = program.read_handle("held").copy()
    with pytest.raises(InputError, match="indices"):
        program.run({"i": np.array(4), "x": X})
    np.testing.assert_array_equal(program.read_handle("held"), before)
    program.run({"i": np.array(0), "x": X})
    np.testing.assert_array_equal(program.read_handle("held"), X[1] + X[0])


def test_slots_selections_and_saved_programs_look_too(tmp_path: object) -> None:
    program = rlx.Session("cpu").compile(taking(lambda g, x: g.input("i", ("m",), "i64")))
    bad = [X, np.array([7, 0])]
    out = np.zeros((2, 3), "f4")
    with pytest.raises(InputError, match="got 7"):
        program.run_slots(bad, [out])
    assert program.run_slots([X, np.array([1, 0])], [out])[0] is out
    np.testing.assert_array_equal(out, X[[1, 0]])
    program.save(f"{tmp_path}/made.rlxc")
    opened = rlx.load_compiled(f"{tmp_path}/made.rlxc")
    with pytest.raises(InputError, match="got 7"):
        opened.run(bad)
    np.testing.assert_array_equal(opened.run([X, np.array([1, -1])])[0], X[[1, 3]])


def test_experts_are_looked_at() -> None:
    graph = Graph("experts")
    x, w, e = graph.input("x", (2, 3)), graph.input("w", (4, 3, 5)), graph.input("e", (2,), "i64")
    graph.output(ops.grouped_matmul(x, w, e))
    for device in ("reference", "cpu"):
        program = rlx.Session(device).compile(graph)
        arrays = [np.ones((2, 3), "f4"), np.ones((4, 3, 5), "f4")]
        assert program.run([*arrays, np.array([-4, 3])])[0].tolist() == [[3.0] * 5] * 2
        with pytest.raises(InputError, match=r"expected indices in \[-4, 4\), got 4"):
            program.run([*arrays, np.array([0, 4])])
