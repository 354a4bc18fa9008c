"""Pads as a kernel for what lies inside and short ones for their borders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import isa
from rlx.backends.cpu.build import program_of
from rlx.ir.graph import Graph
from rlx.ir.interpreter import evaluate
from support import run_on

PADS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1, 1, 0), (1, 1, 0)), ((0, 2, 1), (3, 0, 0)), ((0, 0, 5), (0, 0, 2)), ((2, -1, 0), (0, 2, 0)),
    ((0, 1, 0), (0, -1, 0)),
]  # fmt: skip


def body(x: Any, low: tuple[int, ...], high: tuple[int, ...], value: float) -> Any:
    return ops.pad(ops.exp(x) * 0.5, low=low, high=high, value=value)


@pytest.mark.devices("cpu", "cpu-*")
@pytest.mark.parametrize("low, high", PADS, ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
def test_pads(low: tuple[int, ...], high: tuple[int, ...], symbolic: bool, device: str) -> None:
    """Of numbers, infinities and NaN, on sizes of nothing too, of a transpose, and one in another. A pad that takes
    away as much as it adds may have no inside."""
    g = Graph()
    for name, shape in (("x", (3, 5, 4)), ("empty", (3, 0, 4)), ("long", (2, 17, 33))):
        x = g.input(name, tuple(f"{name}{i}" for i in range(3)) if symbolic else shape)
        if name == "empty" and min(low) < 0:  # it takes away what is not there
            continue
        for fill in (0.0, -np.inf, np.nan):
            g.output(body(x, low, high, fill), name=f"{name} {fill}")
        g.output(ops.pad(body(x, low, high, 1.0), low=low, high=high, value=2.0), name=f"{name} twice")
        transposed = ops.transpose(x, permutation=(2, 1, 0))
        g.output(body(transposed, low, high, 3.0), name=f"{name} turned")
    shapes = {"x": (3, 5, 4), "empty": (3, 0, 4), "long": (2, 17, 33)}
    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    dims = {f"{name}{i}": size for name, shape in shapes.items() for i, size in enumerate(shape)}
    actual = run_on(device, g, inputs)
    for name, expected in zip(g.outputs, evaluate(g, inputs, {}, dims)):
        np.testing.assert_allclose(actual[name], expected, rtol=1e-6, err_msg=name)


def test_the_inside_asks_nothing() -> None:
    g = Graph()
    g.output(body(g.input("x", ("n", 6, 8)), (0, 1, 1), (0, 1, 0), 0.0))
    program, _ = program_of(g, isa.detect(), Options())
    assert [k.name for k in program.main] == ["border", "border", "pad"]
    assert not any(node.attr.guarded for k in program.main for node in k.work.loads())
