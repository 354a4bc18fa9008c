"""Values that are only copied into a part of another lie there from the start."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import isa
from rlx.backends.cpu.build import program_of
from rlx.ir.graph import Graph, Value
from rlx.ir.interpreter import evaluate
from rlx.ir.rewriting import Context
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.verify import verify
from rlx.kernel.ir.work import Work
from rlx.kernel.passes.placement import Placement
from support import run_on

FORM = {"strides": (1, 1), "dilations": (1, 1), "low": (1, 1), "high": (1, 1)}


def weight(g: Graph, name: str, *shape: int) -> Value:
    return g.param(name, shape, data=np.random.default_rng(len(name)).standard_normal(shape, np.float32) / 4)


def padded(g: Graph, x: Value) -> Value:
    """A convolution whose pad holds what the one before made."""
    first = ops.relu(ops.conv(x, weight(g, "a", 8, 3, 3, 3), **FORM))
    return ops.conv(first, weight(g, "bb", 5, 8, 3, 3), **FORM)  # type: ignore[no-any-return]


def joined(g: Graph, x: Value) -> Value:
    parts = [ops.conv(x, weight(g, "c" * (i + 3), 6 + i, 3, 3, 3), **FORM) for i in range(2)]
    return ops.exp(ops.concat(*parts, axis=1)) * 0.5


def read_elsewhere(g: Graph, x: Value) -> Value:
    """What else is read stays where it is."""
    one = ops.conv(x, weight(g, "dddd", 6, 3, 3, 3), **FORM)
    both = ops.concat(one, ops.conv(x, weight(g, "eeeee", 4, 3, 3, 3), **FORM), axis=1)
    return ops.conv(both, weight(g, "ffffff", 6, 10, 3, 3), **FORM) + one


def twice(g: Graph, x: Value) -> Value:
    one = ops.conv(x, weight(g, "ggggggg", 6, 3, 3, 3), **FORM)
    return ops.exp(ops.concat(one, one, axis=1))  # type: ignore[no-any-return]


@pytest.mark.devices("cpu", "cpu-*")
@pytest.mark.parametrize("build", [padded, joined, read_elsewhere, twice], ids=lambda f: f.__name__)
@pytest.mark.parametrize("symbolic", [False, True])
def test_results_are_the_same(build: Callable[[Graph, Value], Value], symbolic: bool, device: str) -> None:
    g = Graph()
    x = g.input("x", ("n", 3, "h", "w") if symbolic else (2, 3, 9, 11))
    g.output(build(g, x), name="y")
    for height in (9, 1) if symbolic else (9,):
        inputs = {"x": np.random.default_rng(0).standard_normal((2, 3, height, 11)).astype(np.float32)}
        (expected,) = evaluate(g, inputs, g.data, {"n": 2, "h": height, "w": 11})
        np.testing.assert_allclose(run_on(device, g, inputs)["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("symbolic", [False, True])
def test_copies_are_gone(symbolic: bool) -> None:
    def copies(build: Callable[[Graph, Value], Value]) -> list[str]:
        g = Graph()
        g.output(ops.exp(build(g, g.input("x", ("n", 3, "h", "w") if symbolic else (2, 3, 9, 11)))))
        program, _ = program_of(g, isa.detect(), Options())
        verify(program)
        return [k.name for k in program.main if k.name in ("pad", "concat")]

    assert copies(padded) == ["pad"]  # that of the input
    assert copies(joined) == ["pad"]
    assert copies(twice) == ["pad", "concat", "concat"]


def test_kernels_are_looked_at_as_often_as_their_buffers_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a copy can go is asked of the kernels that touch its buffers, not of all."""

    def looks(count: int) -> int:
        g = Graph()
        x = g.input("x", (2, 3, 9, 11))
        w = [weight(g, "c" * (i + 3), 6 + i, 3, 3, 3) for i in range(2)]
        for number in range(count):
            parts = [ops.conv(x * number, each, **FORM) for each in w]
            g.output(ops.exp(ops.concat(*parts, axis=1)), name=f"y{number}")
        program, _ = program_of(g, isa.detect(), Options(disable=frozenset(["placement"])))
        asked = 0

        def owns_kernels(self: Work) -> bool:
            nonlocal asked
            asked += 1
            return False

        with monkeypatch.context() as patch:
            patch.setattr(LoopNest, "owns_kernels", property(owns_kernels), raising=False)
            patch.setattr(Contraction, "owns_kernels", property(owns_kernels), raising=False)
            context = Context()
            Placement().run(program, context)
        assert context.report.rewrites["placement/copy"] >= 2 * count
        return asked

    assert looks(16) <= 5 * looks(4)
