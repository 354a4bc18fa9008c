"""Division by known numbers without the instruction, which takes as long as some sixteen others.

x / c is q = x · z with z = 1 / c rounded, and one step that corrects q by what is left of x (Markstein, "Computation of
elementary functions on the IBM RISC System/6000", 1990, theorem 7). The result is that of the division, bit for bit,
except for quotients near the least normal number, whose remainders are rounded. Where q is not finite nothing is
corrected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from rlx.codegen.scalar import maths
from rlx.ir import dtype as dtypes
from rlx.ir.expr import Expr, apply, const, fma, rewrite, select, value_of
from rlx.kernel.ir.loops import Store

MOST = 2.0**60
"""The largest divisor, whose reciprocal is far from the end of the dtype. The least is 1: below it q may overflow where
the quotient does not."""


def legalise(body: Expr, has_fma: bool) -> Expr:
    """A body in instructions that are written as they are."""
    return maths.legalise(rewrite(body, _quotient) if has_fma else body)


def _quotient(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
    if node.kind != "div" or node.dtype is not dtypes.f32 or args[1].kind != "const":
        return None
    divisor = float(value_of(args[1]))
    if not 1 < abs(divisor) < MOST:  # NaN is not either
        return None
    return by_reciprocal(args[0] if divisor > 0 else -args[0], abs(divisor))


def by_reciprocal(x: Expr, divisor: float) -> Expr:
    """x / divisor, which is positive. For a power of two the reciprocal is exact."""
    reciprocal = float(np.float32(1) / np.float32(divisor))
    quotient = x * reciprocal
    if math.frexp(divisor)[0] == 0.5:
        return quotient
    left = fma(quotient, divisor, -x)  # in this order zeros keep their sign
    is_finite = apply("lt", apply("abs", quotient), const(math.inf, dtypes.f32))
    return select(is_finite, fma(left, -reciprocal, quotient), quotient)


def legal_stores(stores: Iterable[Store], has_fma: bool) -> list[Store]:
    """What is stored behind the sums of a product, in such instructions."""
    return [Store(s.slot, s.offset, legalise(s.body, has_fma), False) for s in stores]
