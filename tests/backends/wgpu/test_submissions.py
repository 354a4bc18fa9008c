"""How often a run speaks to the device's queue, counted."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.backends.wgpu.executable import WgpuExecutable
from rlx.errors import InputError
from rlx.ir.graph import Graph
from rlx.runtime.session import Session

from .conftest import compiled


def submissions(executable: WgpuExecutable, graph: Graph, monkeypatch: pytest.MonkeyPatch, runs: int = 3) -> float:
    """Calls of `submit` in a run, after a first one that makes everything ready."""
    queue = type(executable.device.raw.queue)
    counted: list[int] = []
    submit = queue.submit
    bound, inputs = executable.bind({}), [np.ones(v.shape, v.dtype.numpy) for v in graph.inputs]
    bound(inputs)
    monkeypatch.setattr(queue, "submit", lambda self, lists: (counted.append(len(lists)), submit(self, lists))[1])
    for _ in range(runs):
        bound(inputs)
    return len(counted) / runs


@pytest.mark.parametrize("length", [1, 120])
def test_a_run_is_submitted_once(length: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many kernels it has, and with its results read."""
    graph = Graph("chain")
    x = graph.input("x", (4, 16))
    for number in range(length):
        x = x @ graph.param(f"w{number}", (16, 16))
    graph.output(x)
    executable = compiled(kind, graph, {f"w{n}": np.eye(16, dtype=np.float32) for n in range(length)})
    assert len(executable.plan.main) == length
    assert submissions(executable, graph, monkeypatch) == 1


def test_a_loop_of_known_length_is_submitted_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("recurrent")
    shapes = {"w": (1, 8, 8), "r": (1, 8, 8), "b": (1, 16), "h": (1, 1, 8)}
    weights = [graph.param(name, shape) for name, shape in shapes.items()]
    graph.output(ops.rnn(graph.input("x", (60, 1, 8)), *weights)[0])
    executable = compiled(kind, graph, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    assert submissions(executable, graph, monkeypatch) == 1


def test_each_question_is_a_submission_more(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("branch")
    sides = []
    for number in (1.0, 2.0):
        side = Graph("side")
        side.output(side.input("x", (3,)) + number)
        sides.append(side)
    x = graph.input("x", (3,))
    for _ in range(2):
        (x,) = ops.if_(ops.lt(ops.reduce_max(x, axes=(0,)), 0.5), x, regions=tuple(sides))
    graph.output(x)
    assert submissions(compiled(kind, graph), graph, monkeypatch) == 3


def test_runs_overlap(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs are on the device before the results of the first are read; each has its own."""
    graph = Graph("sums")
    x = graph.input("x", (3, 5))
    graph.output(x + 1.0, name="more")
    graph.output(ops.reduce_sum(x, axes=(1,)), name="sum")
    executable = compiled(kind, graph, {})
    bound = executable.bind({})
    inputs = [np.full((3, 5), n, np.float32) for n in range(3)]
    for _ in range(2):  # the second time with buffers of the first
        ends = [bound.begin([x]) for x in inputs]
        bound([inputs[0]])
        for n, end in enumerate(ends):
            assert end is not None
            more, total = end()
            np.testing.assert_array_equal(more, inputs[n] + 1)
            np.testing.assert_array_equal(total, np.full(3, 5.0 * n))


def test_runs_with_questions_take_turns(kind: str) -> None:
    sides = []
    for number in (1.0, 2.0):
        side = Graph("side")
        side.output(side.input("x", (3,)) + number)
        sides.append(side)
    graph = Graph("branch")
    x = graph.input("x", (3,))
    (y,) = ops.if_(ops.lt(ops.reduce_max(x, axes=(0,)), 0.5), x, regions=tuple(sides))
    graph.output(y)
    bound = compiled(kind, graph, {}).bind({})
    assert bound.begin([np.zeros(3, np.float32)]) is None


def test_a_queued_run_that_fails_its_check_hinders_no_other(kind: str) -> None:
    graph = Graph("rows")
    graph.output(ops.gather(graph.input("x", (4, 2)), graph.input("i", (2,), "i64"), axis=0), name="y")
    program = Session(kind).compile(graph)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    places = [np.array(p) for p in ([0, 1], [1, 4], [3, 2])]
    pending = [program.run_pipelined([x, p]) for p in places]
    np.testing.assert_array_equal(pending[0].result()[0], x[[0, 1]])
    np.testing.assert_array_equal(pending[2].result()[0], x[[3, 2]])
    with pytest.raises(InputError, match="expected indices"):
        pending[1].result()
