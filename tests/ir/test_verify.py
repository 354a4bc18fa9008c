"""The verifier finds what breaks a rule, and names the node."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.type import TensorType
from rlx.ir.verify import verify


def graph() -> Graph:
    g = Graph()
    x = g.input("x", (2, 3))
    w = g.param("w", (3,), data=np.zeros(3, np.float32))
    g.output(ops.exp(x * w), name="y")
    return g


def swap(g: Graph) -> None:
    g.nodes[2], g.nodes[3] = g.nodes[3], g.nodes[2]


def rename(g: Graph) -> None:
    g.nodes[3].name = "x"


def retype(g: Graph) -> None:
    g.nodes[2].types = (TensorType.of((2, 4), "f32"),)


def lose_operand(g: Graph) -> None:
    g.nodes[2].inputs = g.nodes[2].inputs[:1]


def rewire(g: Graph) -> None:
    g.nodes[3].inputs = (Value(g.nodes[0], 0),)


def foreign_output(g: Graph) -> None:
    g.outputs["z"] = Graph().input("z", (1,))


def bad_data(g: Graph) -> None:
    g.data["w"] = np.zeros(4, np.float32)


def stray_data(g: Graph) -> None:
    g.data["v"] = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (swap, r"\[exp\] expected operands of earlier nodes.*'exp_1'"),
        (rename, r"\[exp\] expected a name of its own.*'x'"),
        (retype, r"\[mul\] expected results of f32\[2, 3\], got f32\[2, 4\].*'mul_0'"),
        (lose_operand, r"\[mul\] expected 2 to 2 operands, got 1"),
        (rewire, r"the use list of"),
        (foreign_output, r"output 'z' is"),
        (bad_data, r"\[param\] expected data of f32\[3\], got f32\[4\]"),
        (stray_data, r"data 'v' belongs to no param"),
    ],
)
def test_broken_graphs_are_refused(harm: Callable[[Graph], None], what: str) -> None:
    g = graph()
    verify(g)
    harm(g)
    with pytest.raises(rlx.GraphError, match=what):
        verify(g)
