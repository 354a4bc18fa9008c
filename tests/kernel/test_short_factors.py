"""Factors in 16 bits: how far they are from exact ones, what is beyond all numbers, and where they are left alone."""

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
from rlx.kernel.passes import short_factors

LEAF = Expr("axis", dtypes.f32, (), 0)


def number(value: float) -> Expr:
    return ex.const(value, dtypes.f32)


def shortened(rewrite: str, body: Expr, x: Array) -> Array:
    """What becomes of a body of f32 whose result is rounded to 16 bits."""
    made = short_factors.REWRITES[rewrite](ex.cast(body, dtypes.f16))
    assert made.args[0] != body
    with np.errstate(all="ignore"):
        return np.asarray(ex.evaluate(made.args[0], lambda node: x))


def factor(x: Array) -> Array:
    """What stands for 1 + erf x, in f32."""
    return shortened("short-erf", ex.apply("add", ex.apply("erf", LEAF), number(1.0)), x)


def gelu(scale: float = 0.5) -> Expr:
    inner = ex.apply("add", number(1.0), ex.apply("erf", ex.apply("mul", LEAF, number(math.sqrt(0.5)))))
    return ex.apply("mul", ex.apply("mul", LEAF, number(scale)), inner)


def logistic(power: Expr) -> Expr:
    return ex.apply("add", ex.apply("exp", power), number(1.0))


def exact_gelu(x: Array) -> Array:
    return np.array([value / 2 * math.erfc(-value * math.sqrt(0.5)) for value in x.astype(float)])


def test_it_is_near_one_plus_erf() -> None:
    x = np.linspace(-6, 6, 4001).astype(np.float32)
    exact = np.array([1 + math.erf(value) for value in x.astype(float)])
    made = factor(x).astype(np.float64)
    assert np.abs(made - exact).max() < 4e-5
    there = x > -2
    assert np.abs(made[there] / exact[there] - 1).max() < 4e-5


def test_ends_are_exact() -> None:
    x = np.array([-np.inf, -4.0, 4.0, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(factor(x), np.array([0, 0, 2, 2, np.nan], np.float32))


@pytest.mark.parametrize("scale", [0.5, 1.0, -3.0])
def test_gelu_is_near(scale: float) -> None:
    x = np.linspace(-8, 8, 4001).astype(np.float32)
    made, exact = shortened("short-gelu", gelu(scale), x).astype(float), 2 * scale * exact_gelu(x)
    assert np.abs(made - exact).max() < 4e-5 * abs(scale)
    there = (x > -2.8) & (x != 0)
    assert np.abs(made[there] / exact[there] - 1).max() < 4e-5


def test_ends_of_gelu() -> None:
    x = np.array([-np.inf, -1e30, 0.0, 6e4, 1e30, np.inf, np.nan], np.float32)
    made = shortened("short-gelu", gelu(), x)
    np.testing.assert_allclose(made, np.array([np.nan, 0, 0, 6e4, 1e30, np.inf, np.nan], np.float32), atol=1e-7)


def test_gelu_among_other_factors() -> None:
    """Others stay, and an x that is a factor twice stays once."""
    x = np.linspace(-3, 3, 101).astype(np.float32)
    made = shortened("short-gelu", ex.apply("mul", gelu(), ex.apply("mul", LEAF, number(2.0))), x)
    np.testing.assert_allclose(made, 2 * x * exact_gelu(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_logistic(sign: float) -> None:
    """In the numerator there is anything."""
    x = np.linspace(-100, 100, 4001).astype(np.float32)
    power = ex.apply("neg", LEAF) if sign < 0 else LEAF
    made = shortened("short-logistic", ex.apply("div", number(3.0), logistic(power)), x)
    there = np.abs(x) < 80
    np.testing.assert_allclose(made[there], 3 / (1 + np.exp(sign * x[there].astype(float))), rtol=2e-5)
    np.testing.assert_allclose(made, 3 / (1 + np.exp(sign * x.astype(float))), rtol=2e-5, atol=1e-30)


def test_ends_of_silu() -> None:
    x = np.array([-np.inf, -1e30, -0.0, 1e30, np.inf, np.nan], np.float32)
    made = shortened("short-logistic", ex.apply("div", LEAF, logistic(ex.apply("neg", LEAF))), x)
    np.testing.assert_array_equal(made, np.array([np.nan, 0, 0, 1e30, np.inf, np.nan], np.float32))


def test_tanh() -> None:
    x = np.array([*np.linspace(-20, 20, 401), -np.inf, np.inf, np.nan], np.float32)
    made = shortened("short-tanh", ex.apply("add", ex.apply("tanh", LEAF), number(1.0)), x)
    np.testing.assert_allclose(made, 2 / (1 + np.exp(-2 * x.astype(float))), rtol=1e-5)


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


@pytest.mark.parametrize("body", [ex.apply("add", gelu(), LEAF), logistic(LEAF), ex.apply("exp", gelu())], ids=str)
def test_what_is_no_factor_stays(body: Expr) -> None:
    result = ex.cast(body, dtypes.bf16)
    assert all(rewrite(result) is result for rewrite in short_factors.REWRITES.values())


@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_what_has_other_bits_stays(dtype: str) -> None:
    graph = Graph("gate")
    graph.output(ops.silu(graph.input("x", (64,), "f32")).cast(dtype))
    nests = [kernel.work for kernel in leaves(program_of(graph).main)]
    bodies = [s.body for nest in nests if isinstance(nest, LoopNest) for s in nest.statements]
    assert bodies
    assert not any(node.kind == "near_exp2" for node in ex.walk(bodies))


def test_powers_are_looked_through_once() -> None:
    """A number squared forty times has 2^40 factors."""
    power = gelu()
    for _ in range(40):
        power = ex.apply("mul", power, power)
    for rewrite in short_factors.REWRITES.values():
        rewrite(ex.cast(power, dtypes.f16))


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_what_powers_of_a_scale_are_no_numbers_of(scale: float) -> None:
    inner = ex.apply("add", number(1.0), ex.apply("erf", ex.apply("mul", LEAF, number(scale))))
    body = ex.cast(ex.apply("mul", LEAF, inner), dtypes.f16)
    assert short_factors.REWRITES["short-gelu"](body) is body


def test_a_factor_that_is_also_subtracted_stays_there() -> None:
    sum_of_both = ex.apply("add", ex.apply("erf", LEAF), number(1.0))
    rest = ex.apply("sub", sum_of_both, LEAF)
    made = short_factors.REWRITES["short-erf"](ex.cast(ex.apply("mul", sum_of_both, rest), dtypes.f16))
    assert rest in ex.walk([made]) and made.args[0].args[0] is not sum_of_both
