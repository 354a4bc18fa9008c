"""Padded graphs give what the graph gives, whatever lies behind what counts in their arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import rlx
from ops.cases import Case, cases_of_every_op
from rlx.errors import RlxError
from rlx.ir import dim as dims
from rlx.ir.graph import Graph, call
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.ir.op import REGISTRY, Composite
from rlx.ir.padding import grows
from rlx.ir.verify import verify
from rlx.passes.padding import padded, reasons_of
from support import assert_close, commit_number
from tools.fuzz import padded as garbage

WITHOUT_RULES = {
    "input": "the pass knows leaves",
    "state": "a state keeps its size from run to run",
    "param": "the pass knows leaves",
    "constant": "the pass knows leaves",
    "measured": "stages have none",
}


def test_every_primitive_has_a_rule() -> None:
    lacking = {name for name, cls in REGISTRY.items() if cls.padded is None and not issubclass(cls, Composite)}
    assert lacking == WITHOUT_RULES.keys()


def opened(case: Case) -> Iterator[tuple[Graph, dict[str, int]]]:
    """The case with n in the place of a dim: of all axes that are as long, and of one alone."""
    lengths = {d for a in case.arrays for d in a.shape if d > 1}
    axes = [(i, axis) for i, a in enumerate(case.arrays) for axis in range(a.ndim)]
    choices = [[(i, a) for i, a in axes if case.arrays[i].shape[a] == length] for length in lengths]
    choices += [[at] for at in axes if case.arrays[at[0]].shape[at[1]] > 1]
    for chosen in choices:
        graph = Graph(case.op.name, assumes_equal=True)
        shapes = [["n" if (i, axis) in chosen else d for axis, d in enumerate(a.shape)]
                  for i, a in enumerate(case.arrays)]  # fmt: skip
        binding = {"n": case.arrays[chosen[0][0]].shape[chosen[0][1]]}
        try:
            values = [graph.input(f"x{i}", s, a.dtype) for i, (s, a) in enumerate(zip(shapes, case.arrays))]
            results = graph.add(case.op, *values)
            graph.bind(binding)
        except (RlxError, OverflowError):
            continue  # its attributes, or its type rule, ask for a number
        for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
            graph.output(value, name=f"y{i}")
        yield graph, binding


CASES = [case for case in cases_of_every_op() if any(a.ndim for a in case.arrays)]
EVERY = 2
"""Of so many cases one is padded, others at each commit."""
ROWS = {"softmax", "layer_norm", "matmul", "attention", "gather", "concat", "slice", "reduce_mean", "cumsum", "top_k"}


@pytest.mark.parametrize("case", CASES[commit_number() % EVERY :: EVERY], ids=str)
def test_a_padded_op_gives_what_the_op_gives(case: Case) -> None:
    for graph, binding in opened(case):
        shapes = [tuple(dims.evaluate(d, binding) for d in v.shape) for v in graph.outputs.values()]
        wanted = case.reference()
        found = padded(graph, ["n"])
        if found is None or shapes != [a.shape for a in wanted]:
            continue
        verify(found.graph)
        for larger in (binding["n"], binding["n"] + 1, binding["n"] + 9):
            try:
                found.graph.bind({"n": larger})
            except RlxError:
                continue  # one size is all that it may have
            got = garbage.run(found, case.inputs(), {}, binding, {"n": larger})
            for i, array in enumerate(wanted):
                assert_close(got[f"y{i}"], array, case.op.tolerance)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_ops_of_nets_are_padded(name: str) -> None:
    """Some case of them is: others may not be, by their attributes."""
    mine = [case for case in CASES if case.op.name == name]
    assert any(padded(graph, ["n"]) is not None for case in mine for graph, _ in opened(case))


def both(graph: Graph, binding: dict[str, int], sizes: dict[str, int]) -> list[tuple[Array, Array]]:
    """Outputs of a graph at sizes, and of its padded form in larger arrays."""
    random = np.random.default_rng(0)
    inputs = {}
    for value in graph.inputs:
        shape = tuple(dims.evaluate(d, binding) for d in value.shape)
        whole = random.integers(-3, 4, shape) if value.dtype.is_integer else random.standard_normal(shape)
        inputs[value.name] = whole.astype(value.dtype.numpy)
    found = padded(graph, binding)
    assert found is not None and found.symbols == binding.keys(), reasons_of(graph, binding)
    got = garbage.run(found, inputs, graph.data, binding, sizes)
    return list(zip(evaluate(graph, inputs, graph.data, binding), got.values()))


def test_axes_that_a_reshape_joins_keep_their_parts() -> None:
    """A sum over all of [b·n], and products of rows [b·n, k] that become [b, n, k] again."""
    graph = Graph("joined")
    x = graph.input("x", ("b", "n", 4))
    w = graph.param("w", (4, 3), data=np.arange(12, dtype="f4").reshape(4, 3))
    rows = x.reshape("b*n", 4) @ w
    graph.output(rlx.softmax(rows.reshape("b", "n", 3), axis=1), name="y")
    graph.output(rlx.reduce_max(x.reshape("b*n*4"), axes=(0,)), name="most")
    graph.output(rows, name="rows")
    for wanted, got in both(graph, {"b": 3, "n": 5}, {"b": 4, "n": 8}):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_entries_that_lie_apart_are_gathered() -> None:
    """Of [b·n] in a row with others, sorted, and as [n, b]; of [4·n] as [4, n]."""
    graph = Graph("apart")
    x, y = graph.input("x", ("b", "n")), graph.input("y", ("4*n",))
    flat = x.reshape("b*n")
    graph.output(rlx.concat(y, flat, y, axis=0), name="row")
    graph.output(rlx.cumsum(flat, axis=0), name="sums")
    graph.output(flat * rlx.iota(graph, shape=("b*n",), dtype="f32"), name="numbered")
    graph.output(rlx.sort(flat, axis=0), name="sorted")
    graph.output(rlx.softmax(flat.reshape("n", "b"), axis=1), name="turned")
    graph.output(rlx.softmax(y.reshape(4, "n"), axis=1), name="columns")
    graph.output(rlx.reduce_sum(rlx.concat(flat[1:], flat[:1], axis=0).reshape("b", "n"), axes=(1,)), name="rolled")
    for wanted, got in both(graph, {"b": 3, "n": 5}, {"b": 4, "n": 8}):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    one = Graph("one")
    one.output(one.input("x", ("n",)).reshape(()) * 2.0, name="y")
    for wanted, got in both(one, {"n": 1}, {"n": 1}):
        assert wanted == got and got.shape == ()


def test_dims_as_numbers_are_those_of_the_run() -> None:
    graph = Graph("numbers")
    x = graph.input("x", ("n",))
    graph.output(rlx.reduce_mean(x, axes=(0,)), name="mean")
    graph.output(rlx.dims_tensor(graph, values=("2*n", "n//2", 7)), name="sizes")
    graph.output(x[-1:], name="last")
    graph.output(rlx.concat(x, x * 2.0, graph.input("y", ("m",)), axis=0), name="row")
    for wanted, got in both(graph, {"n": 5, "m": 3}, {"n": 8, "m": 4}):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_negative_indices_count_from_the_end_of_what_counts() -> None:
    graph = Graph("indices")
    x, at = graph.input("x", ("n", 2)), graph.input("at", ("k",), "i64")
    graph.output(rlx.gather(x, at, axis=0), name="taken")
    updates = graph.input("u", ("k", 2))
    graph.output(rlx.scatter_nd(x, at.reshape("k", 1), updates, combine="add"), name="put")
    for wanted, got in both(graph, {"n": 3, "k": 5}, {"n": 8, "k": 8}):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_dim_that_must_be_known_is_named_with_its_node() -> None:
    """The other dim is padded all the same."""
    graph = Graph("some")
    x, y = graph.input("x", ("b", "n")), graph.input("y", ("m",))
    graph.output(rlx.pad(x, low=(0, "m"), high=(0, 0)), name="y")
    found = padded(graph, ["b", "n", "m"])
    assert found is not None and found.symbols == {"b", "n"}
    assert "[pad] m elements in front" in found.reasons["m"] and "at node" in found.reasons["m"] and y.rank == 1
    weighted = Graph("weighted")
    weighted.output(weighted.input("x", ("b", "n")) + weighted.param("w", ("n",)), name="y")
    found = padded(weighted, ["b", "n"])
    assert found is not None and found.symbols == {"b"} and "[param]" in found.reasons["n"]


def summed(length: dims.Dim | str, reverse: bool = False) -> Graph:
    """Running sums of rows [n, b], and the last of them."""
    graph = Graph("loop")
    x = graph.input("x", (length, "b"))
    start = rlx.broadcast_to(graph.constant(np.float32(1)), shape=("b",))
    body = Graph("body")
    total, row = body.input("total", ("b",)), body.input("row", ("b",))
    share = row / rlx.reduce_sum(row * row, axes=(0,), keepdims=True)
    body.output(total + share, name="total")
    body.output(total * share, name="each")
    results = call("scan", start, x, carried=1, sequences=1, length=x.shape[0], reverse=reverse, regions=(body,))
    assert isinstance(results, tuple)
    graph.output(results[0], name="last")
    graph.output(results[1], name="each")
    return graph


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", ["n", 5])
def test_loops_keep_what_they_carry_in_trips_that_do_not_count(length: str | int, reverse: bool) -> None:
    graph = summed(length, reverse)
    found = {"n": 5, "b": 3} if length == "n" else {"b": 3}
    for wanted, got in both(graph, found, {name: size + 4 for name, size in found.items()}):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_conditionals_and_loops_that_data_end_see_what_counts() -> None:
    graph = Graph("control")
    x = graph.input("x", ("n",))
    sides = []
    for factor in (1.0, 2.0):
        side = Graph(f"side{factor}")
        side.output(rlx.reduce_sum(side.input("x", ("n",)) * factor, axes=(0,)), name="y")
        sides.append(side)
    (total,) = call("if", rlx.gt(rlx.reduce_max(x, axes=(0,)), 0.5), x, regions=tuple(sides))
    graph.output(total, name="chosen")
    going, body = Graph("going"), Graph("body")
    going.output(rlx.lt(rlx.reduce_sum(going.input("v", ("n",)), axes=(0,)), 50.0), name="go")
    body.output(rlx.abs(body.input("v", ("n",))) * 2.0, name="v")
    (grown,) = call("while", x, carried=1, regions=(going, body))
    graph.output(grown, name="grown")
    for wanted, got in both(graph, {"n": 5}, {"n": 9}):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "does"),
    [("n", True), ("2*n-1", True), ("n//2", True), ("max(n-3, 0)", True), ("min(n, m)", True), ("0-((0-n)//2)", True),
     ("n-max(0, n-1)", True), ("m-n", False), ("n%2", False), ("8//n", False), ("n*(n-1)", False),
     ("7", True), ("m", True)],
)  # fmt: skip
def test_dims_that_grow(text: str, does: bool) -> None:
    assert grows(dims.parse(text), frozenset({"n"})) is does
