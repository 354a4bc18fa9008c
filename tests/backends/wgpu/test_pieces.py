"""Arenas in several pieces, forced by a limit that is much smaller than any device's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.wgpu import build
from rlx.backends.wgpu.executable import WgpuBound, WgpuExecutable
from rlx.errors import OutOfMemory, UnsupportedOp
from rlx.ir.graph import Graph
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from support import assert_close

from .conftest import compiled

LIMIT = 4096
RANDOM = np.random.default_rng(2)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.fixture
def small(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A kind of driver whose device binds LIMIT bytes at once."""
    graph = Graph("any")
    graph.output(graph.input("x", (1,)) + 1.0)
    monkeypatch.setattr(compiled(kind, graph).device, "max_binding", LIMIT)
    yield kind


def run(executable: WgpuExecutable, graph: Graph, binding: dict[str, int], inputs: dict[str, Array]) -> WgpuBound:
    """Compares with the reference, twice, because a second run finds what the first left."""
    bound = executable.bind(binding)
    assert isinstance(bound, WgpuBound)
    expected = evaluate(graph, inputs, executable._params, binding)
    for _ in range(2):
        for actual, reference in zip(bound([inputs[v.name] for v in graph.inputs]), expected, strict=True):
            assert_close(actual, reference, Tolerance(64, scale=1))
    assert bound.arena.largest <= LIMIT
    return bound


def test_pieces_as_dims_demand(small: str) -> None:
    """One program: in one piece at small sizes, in several at larger ones, and back."""
    graph = Graph("pieces")
    x, y = graph.input("x", ("n", 24)), graph.input("y", ("n", 5), "i64")
    hidden = ops.softmax(ops.gelu(x @ graph.param("w", (24, 24))), axis=-1)
    graph.output(hidden, hidden @ graph.param("v", (24, 8)), y * 3, ops.reduce_sum(hidden, axes=(0,)))
    executable = compiled(small, graph, {"w": floats(24, 24), "v": floats(24, 8)})
    pieces = []
    for n in (3, 40, 20, 3, 40):
        inputs = {"x": floats(n, 24), "y": RANDOM.integers(-9, 9, (n, 5))}
        pieces.append(len(run(executable, graph, {"n": n}, inputs).arena.pieces))
    assert pieces[0] == pieces[3] == 1 and pieces[1] == pieces[4] > pieces[2] > 1


def test_sizes_that_the_graph_knows(small: str) -> None:
    """Its shaders are written for pieces at once."""
    graph = Graph("known")
    x = graph.input("x", (30, 30))
    for number in range(4):
        x = ops.transpose(x, permutation=(1, 0)) @ graph.param(f"w{number}", (30, 30))
    graph.output(x, ops.tanh(x))
    executable = compiled(small, graph, {f"w{n}": floats(30, 30) / 6 for n in range(4)})
    bound = run(executable, graph, {}, {"x": floats(30, 30)})
    assert bound.plan is executable.plan and len(bound.arena.pieces) >= 3


def test_scatters_and_rankings(small: str) -> None:
    graph = Graph("special")
    x, at = graph.input("x", ("n",), "i32"), graph.input("at", ("n", 1), "i32")
    graph.output(ops.scatter_nd(x, at, x, combine="add"), ops.sort(x, axis=0))
    graph.output(ops.scatter_nd(x.cast("f32"), at, x.cast("f32"), combine="add"))
    inputs = {"x": RANDOM.integers(-99, 99, 450).astype(np.int32), "at": RANDOM.integers(0, 450, (450, 1))}
    inputs["at"] = inputs["at"].astype(np.int32)
    assert len(run(compiled(small, graph), graph, {"n": 450}, inputs).arena.pieces) > 4


def test_loops_and_branches(small: str) -> None:
    """What takes turns from trip to trip lies in one piece; so does what a branch may give."""
    graph = Graph("regions")
    x = graph.input("x", ("n", 1, 8))
    shapes = {"w": (1, 8, 8), "r": (1, 8, 8), "b": (1, 16), "h": (1, 1, 8)}
    rows, last = ops.rnn(x, *(graph.param(name, shape) for name, shape in shapes.items()))
    sides = []
    for factor in (2.0, 3.0):
        side = Graph("side")
        a = side.input("a", rows.shape)
        side.output(ops.cumsum(a * factor, axis=0))
        sides.append(side)
    (chosen,) = ops.if_(graph.input("p", (), "bool"), rows, regions=tuple(sides))
    graph.output(chosen, last, chosen + rows)
    executable = compiled(small, graph, {name: floats(*shape) * 0.3 for name, shape in shapes.items()})
    for n, chosen_side in ((4, True), (40, True), (40, False)):
        bound = run(executable, graph, {"n": n}, {"x": floats(n, 1, 8), "p": np.array(chosen_side)})
        assert (len(bound.arena.pieces) > 1) == (n > 4)


def test_what_no_pieces_hold(small: str) -> None:
    graph = Graph("large")
    graph.output(graph.input("x", ("n",)) + 1.0)
    executable = compiled(small, graph)
    with pytest.raises(OutOfMemory, match="buffers of at most 4096 bytes"):
        executable.bind({"n": 1025})
    assert executable.bind({"n": 1024})([np.zeros(1024, np.float32)])[0].sum() == 1024


def test_a_kernel_with_too_many_pieces() -> None:
    """No device is needed: a shader binds eight buffers."""
    graph = Graph("many")
    total = graph.input("x0", (64,))
    for number in range(1, 9):
        total = total + graph.input(f"x{number}", (64,))
    graph.output(total)
    assert len(build.build(graph, Options(), 1 << 20).main[0].heaps) == 1
    assert len(build.build(graph, Options(), 512).main[0].heaps) == 5
    with pytest.raises(UnsupportedOp, match="at most 8 pieces of memory, got 10"):
        build.build(graph, Options(), 256)
