"""How often a run speaks to the device's queue, counted."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.backends.wgpu.executable import WgpuExecutable
from rlx.ir.graph import Graph

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
