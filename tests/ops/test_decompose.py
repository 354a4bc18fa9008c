"""A composite's definition says what its reference says, down to primitives, on static and on symbolic shapes."""

from __future__ import annotations

import pytest

from ops.cases import Case, cases_of_every_op, decomposed
from rlx import ops
from rlx.ir.graph import Graph
from rlx.ir.verify import verify
from rlx.passes.decompose import decompose
from support import assert_close_on, run_on

CASES = [case for case in cases_of_every_op() if case.op.is_composite]


@pytest.mark.devices("reference")  # the op suite runs what is not claimed as this on every device
@pytest.mark.parametrize("case", CASES, ids=str)
def test_definition_matches_reference(case: Case, device: str) -> None:
    graph = decompose(decomposed(case))
    verify(graph)
    assert not any(node.op.is_composite for node in graph.nodes)
    actual = run_on(device, graph, case.inputs())
    for i, expected in enumerate(case.reference()):
        assert_close_on(device, actual[f"y{i}"], expected, case.op.tolerance)


@pytest.mark.parametrize("case", [c for c in CASES if c.arrays[0].ndim and c.arrays[0].shape[0] > 1], ids=str)
def test_definition_with_a_symbolic_batch(case: Case, device: str) -> None:
    """The first axis of every operand that has the first operand's extent and rank is a named dim."""
    lead = case.arrays[0]
    graph = Graph(case.op.name)
    values = []
    for i, a in enumerate(case.arrays):
        named = a.ndim == lead.ndim and a.shape[0] == lead.shape[0]
        values.append(graph.input(f"x{i}", ("n", *a.shape[1:]) if named else a.shape, a.dtype))
    results = graph.add(case.op, *values)
    graph.output(results[0] if isinstance(results, tuple) else results, name="y0")
    actual = run_on(device, decompose(graph), case.inputs())
    assert_close_on(device, actual["y0"], case.reference()[0], case.op.tolerance)


def test_bodies_of_definitions_come_from_the_composite() -> None:
    graph = Graph()
    sizes = {"x": (3, 1, 4), "w": (1, 4, 4), "r": (1, 4, 4), "b": (1, 8), "h": (1, 1, 4)}
    graph.output(ops.rnn(*(graph.input(name, shape) for name, shape in sizes.items()))[0])
    loop = next(node for node in decompose(graph).nodes if node.regions)
    assert {node.source for node in loop.regions[0].nodes} == {loop.source}
