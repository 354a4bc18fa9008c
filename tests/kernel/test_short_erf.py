"""1 + erf in 16 bits: how far it is from the exact one, what is beyond all numbers, and where it is left alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlx import ops
from rlx.backends.cuda.build import program_of
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import leaves
from rlx.kernel.passes import short_erf


def factor(x: Array) -> Array:
    """What stands for 1 + erf x, in f32."""
    leaf = Expr("axis", dtypes.f32, (), 0)
    made = short_erf._of_erfc((ex.apply("erf", leaf), ex.const(1.0, dtypes.f32)))
    assert made is not None
    with np.errstate(all="ignore"):
        return np.asarray(ex.evaluate(made, lambda node: x))


def test_it_is_near_one_plus_erf() -> None:
    x = np.linspace(-6, 6, 4001).astype(np.float32)
    exact = np.array([1 + math.erf(value) for value in x.astype(float)])
    made = factor(x).astype(np.float64)
    assert np.abs(made - exact).max() < 2e-6
    there = x > -2
    assert np.abs(made[there] / exact[there] - 1).max() < 1e-5


def test_ends_are_exact() -> None:
    x = np.array([-np.inf, -4.0, 4.0, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(factor(x), np.array([0, 0, 2, 2, np.nan], np.float32))


def has_erf(graph: Graph) -> bool:
    nests = [kernel.work for kernel in leaves(program_of(graph).main)]
    statements = [s for nest in nests if isinstance(nest, LoopNest) for s in nest.statements]
    return any(node.kind == "erf" for node in ex.walk([s.body for s in statements if isinstance(s, Store)]))


@pytest.mark.parametrize(("dtype", "kept"), [("f16", False), ("bf16", False), ("f32", True)])
def test_what_has_more_bits_keeps_erf(dtype: str, kept: bool) -> None:
    graph = Graph("active")
    graph.output(ops.gelu(graph.input("x", (64,), "f32")).cast(dtype))
    assert has_erf(graph) == kept


def test_sums_keep_erf() -> None:
    """Where 1 + erf is no factor, errors may be far larger than the result's."""
    graph = Graph("difference")
    x = graph.input("x", (64,), "f32")
    graph.output((ops.erf(x) + 1.0 - x).cast("f16"))
    assert has_erf(graph)
