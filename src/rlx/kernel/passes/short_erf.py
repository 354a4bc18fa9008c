"""1 + erf x, of which something rounded to 16 bits is a multiple, becomes a shorter polynomial.

Half of what gelu costs is erf, which is right to the last bits of f32 everywhere, by two polynomials of which lanes of
GPUs make both. Where 1 + erf x is a factor of what becomes an f16 or a bf16, a relative error of the factor is one of
the result. Down to x = -2 it is 8e-6 at most, a sixtieth of what rounding does; below, where 1 + erf x is a difference
of numbers near 1, it is that of f32 again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.ir.rewriting import Context
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import RowProduct
from rlx.kernel.ir.loops import LoopNest, Statement, Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.work import Work
from rlx.kernel.passes.driver import KernelPass

HALVES = (dtypes.f16, dtypes.bf16)
FARTHEST = 3.93
"""From where on 1 - erfc is 1 in f32."""
ROOT = (
    -5.262827016849769e-06, 9.27330765989609e-05, -0.0005239675519987941, 0.00019637947843875736, 0.006600251886993647,
    -0.0021166049409657717, -0.06961220502853394, -0.14105135202407837, 1.0000001192092896,
)  # fmt: skip
"""Coefficients of the eighth root of erfc from 0 to FARTHEST, the highest power first: fitted by weighted least squares
(C. L. Lawson 1961) to the relative error of erfc, of which more was allowed behind 2."""


class ShortErf(KernelPass):
    """Shortens erf in the bodies of stores."""

    name = "short-erf"

    def run(self, program: Program, context: Context) -> None:
        for number, kernel in enumerate(program.main):
            work = _shortened(kernel)
            if work is not kernel.work and self.spend(context, "short-erf", kernel):
                program.main[number] = dataclasses.replace(kernel, work=work)


def _shortened(kernel: Kernel) -> Work:
    match kernel.work:
        case Contraction() as work:
            epilogue = tuple(map(_store, work.epilogue))
            return work if epilogue == work.epilogue else dataclasses.replace(work, epilogue=epilogue)
        case LoopNest() as work:
            statements = tuple(map(_statement, work.statements))
            return work if statements == work.statements else dataclasses.replace(work, statements=statements)
        case RowProduct() as work:
            product = work.product
            epilogue = tuple(map(_store, product.epilogue))
            if epilogue == product.epilogue:
                return work
            return dataclasses.replace(work, product=dataclasses.replace(product, epilogue=epilogue))
    return kernel.work


def _statement(statement: Statement) -> Statement:
    return _store(statement) if isinstance(statement, Store) else statement


def _store(store: Store) -> Store:
    factors = set(_factors(store.body))
    if not factors:
        return store

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        return _of_erfc(args) if node in factors else None

    return dataclasses.replace(store, body=ex.rewrite(store.body, rule))


def _factors(body: Expr) -> Iterator[Expr]:
    """Sums 1 + erf x that are factors of a body of 16 bits."""
    if body.dtype not in HALVES:
        return
    pending = [body]
    while pending:
        node = pending.pop()
        if node.kind in ("mul", "cast") and node.dtype.is_float:
            pending += node.args
        elif node.kind == "add" and node.dtype is dtypes.f32 and _erf_of(node.args) is not None:
            yield node


def _erf_of(args: tuple[Expr, ...]) -> Expr | None:
    """The x of 1 + erf x, in either order."""
    for one, other in (args, args[::-1]):
        if one == _f32(1.0) and other.kind == "erf":
            return other.args[0]
    return None


def _of_erfc(args: tuple[Expr, ...]) -> Expr | None:
    """1 ± (1 - erfc), with the sign of x, and the eighth power of a polynomial for erfc of its size. It is exactly 0
    where erf is -1."""
    x = _erf_of(args)
    if x is None:
        return None
    size = ex.apply("min", ex.apply("abs", x), _f32(FARTHEST))
    root = _f32(ROOT[0])
    for coefficient in ROOT[1:]:
        root = ex.apply("fma", root, size, _f32(coefficient))
    for _ in range(3):
        root = ex.apply("mul", root, root)
    return ex.apply("add", ex.apply("copysign", ex.apply("sub", _f32(1.0), root), x), _f32(1.0))


def _f32(value: float) -> Expr:
    return ex.const(value, dtypes.f32)
