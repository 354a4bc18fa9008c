"""Factors of what is rounded to 16 bits, made with fewer instructions: a relative error of a factor is one of the
result, of which rounding has 2^-11 or more.

- 1 + erf x, half of what gelu costs, is right to the last bits of f32 everywhere, by two polynomials of which lanes of
  GPUs make both. A power of one polynomial is off by 3.5e-5 at most down to x = -2; below, where 1 + erf x is a
  difference of numbers near 1, by as much as f32 is.
- Where x itself is another factor, x (1 + erf cx) is 2 (max(x, 0) - |x| erfc(c|x|) / 2), without that difference.
- x / (1 + exp y), which silu is, and 1 + tanh x, which is 2 / (1 + exp -2x), take the hardware's powers of two and
  reciprocals, right to one or two units in the last place of f32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

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
    7.145467415549272e-06, -0.00033314023492510796, 0.0030919774105571925, -0.004394573560914531,
    -0.036954731664677914, -0.07058852119371467, 1.0000020049974592,
)  # fmt: skip
"""Coefficients of the sixteenth root of erfc from 0 to FARTHEST, the highest power first: fitted by weighted least
squares (C. L. Lawson 1961) to the relative error of erfc, of which more was allowed behind 2."""
HALF_ROOT = 0.5 ** (1 / 16)
LOG2E = 1 / math.log(2)
MOST_FACTORS, MOST_SCALED = 16, 256.0
"""Of products that are looked through, and of arguments of erf."""

Rewrite = Callable[[Expr], Expr]
"""Of a body of 16 bits; the same where there is nothing to do."""


class ShortFactors(KernelPass):
    """Shortens factors of the bodies of stores."""

    name = "short-factors"

    def run(self, program: Program, context: Context) -> None:
        for rewrite, shorter in REWRITES.items():
            for number, kernel in enumerate(program.main):
                work = _changed(kernel, shorter)
                if work is not kernel.work and self.spend(context, rewrite, kernel):
                    program.main[number] = dataclasses.replace(kernel, work=work)


def _changed(kernel: Kernel, shorter: Rewrite) -> Work:
    def of(store: Store) -> Store:
        body = shorter(store.body) if store.body.dtype in HALVES else store.body
        return store if body is store.body else dataclasses.replace(store, body=body)

    def of_statement(statement: Statement) -> Statement:
        return of(statement) if isinstance(statement, Store) else statement

    def of_product(work: Contraction) -> Contraction:
        epilogue = tuple(map(of, work.epilogue))
        return work if epilogue == work.epilogue else dataclasses.replace(work, epilogue=epilogue)

    match kernel.work:
        case Contraction() as work:
            return of_product(work)
        case LoopNest() as work:
            statements = tuple(map(of_statement, work.statements))
            return work if statements == work.statements else dataclasses.replace(work, statements=statements)
        case RowProduct() as work:
            product = of_product(work.product)
            return work if product is work.product else dataclasses.replace(work, product=product)
    return kernel.work


def _factors(body: Expr) -> dict[Expr, None]:
    """All factors of a body, itself and products among them, and quotients, whose numerators are factors too."""
    found = {body: None}
    pending = [body]
    while pending:
        node = pending.pop()
        inner = [arg for arg in _inner(node) if arg.dtype.is_float and arg not in found]
        found.update(dict.fromkeys(inner))
        pending += inner
    return found


def _inner(node: Expr) -> tuple[Expr, ...]:
    """Arguments of which a factor is a multiple."""
    return node.args if node.kind in ("mul", "cast") else node.args[:1] if node.kind == "div" else ()


def _with_factors(body: Expr, made: Callable[[Expr, tuple[Expr, ...]], Expr | None]) -> Expr:
    """The body with other factors in the place of some, made of one and of its arguments; None leaves it as it is. What
    is also something else than a factor stays there."""
    path, new = _factors(body), dict[Expr, Expr]()
    for node in ex.walk([body]):
        if node not in path:
            continue
        inner = len(_inner(node))
        args = (*(new.get(arg, arg) for arg in node.args[:inner]), *node.args[inner:])
        same = all(a is b for a, b in zip(args, node.args))
        instead = made(node, args) if node.dtype is dtypes.f32 else None
        if instead is None:
            instead = node if same else Expr(node.kind, node.dtype, args, node.attr)
        new[node] = instead
    return new[body]


# 1 + erf


def _short_gelu(body: Expr) -> Expr:
    products = (node for node in _factors(body) if node.dtype is dtypes.f32 and _gelu_of(node) is not None)
    outermost = next(products, None)  # those within it have fewer factors
    return _with_factors(body, lambda node, args: _gelu_of(node) if node is outermost else None)


def _gelu_of(node: Expr) -> Expr | None:
    """A product with the factors x and 1 + erf cx, without the latter."""
    if node.kind != "mul":
        return None
    factors = _multiplied(node)
    for at, factor in enumerate(factors):
        argument = _erf_of(factor.args) if factor.kind == "add" else None
        scaled = None if argument is None else _scaled(argument)
        if scaled is None or scaled[0] not in factors:
            continue
        x, scale = scaled
        rest = factors[:at] + factors[at + 1 :]
        rest.remove(x)
        numbers = [ex.value_of(each) for each in rest if each.kind == "const"]
        product = _scaled_positive_part(x, scale)
        if (number := 2 * math.prod(numbers)) != 1:
            product = ex.apply("mul", product, _f32(number))
        for each in rest:
            if each.kind != "const":
                product = ex.apply("mul", product, each)
        return product
    return None


def _multiplied(node: Expr) -> list[Expr]:
    """What a product multiplies; nothing of more than a few factors, which powers have without end."""
    factors, pending = list[Expr](), [node]
    while pending and len(factors) + len(pending) <= MOST_FACTORS:
        each = pending.pop()
        if each.kind == "mul":
            pending += each.args
        else:
            factors.append(each)
    return [] if pending else factors


def _scaled(argument: Expr) -> tuple[Expr, float] | None:
    """x and c > 0, where the argument is cx, and powers of c are numbers of f32."""
    if argument.kind not in ("mul", "div"):
        return argument, 1.0
    x, number = argument.args
    if argument.kind == "mul" and x.kind == "const":
        x, number = number, x
    if number.kind != "const" or not 1 / MOST_SCALED < ex.value_of(number) < MOST_SCALED:
        return None
    return x, ex.value_of(number) if argument.kind == "mul" else 1 / ex.value_of(number)


def _scaled_positive_part(x: Expr, scale: float) -> Expr:
    """x (1 + erf(scale x)) / 2: NaN of -inf, which is 0 times infinity to the long form too."""
    size = ex.apply("min", ex.apply("abs", x), _f32(FARTHEST / scale))
    highest = len(ROOT) - 1
    roots = [HALF_ROOT * number * scale ** (highest - at) for at, number in enumerate(ROOT)]
    positive = ex.apply("sub", x, ex.apply("min", x, _f32(0.0)))
    return ex.apply("fma", ex.apply("neg", size), _sixteenth_power(roots, size), positive)


def _erf_of(args: tuple[Expr, ...]) -> Expr | None:
    """The x of 1 + erf x, in either order."""
    return _beside_one(args, "erf")


def _beside_one(args: tuple[Expr, ...], kind: str) -> Expr | None:
    """The argument of a function of such a kind, of two arguments of which the other one is 1."""
    for one, other in (args, args[::-1]):
        if one == _f32(1.0) and other.kind == kind:
            return other.args[0]
    return None


def _is_sum_with(kind: str) -> Callable[[Expr], bool]:
    return lambda node: node.kind == "add" and _beside_one(node.args, kind) is not None


def _of_erfc(args: tuple[Expr, ...]) -> Expr:
    """1 ± (1 - erfc), with the sign of x, and the sixteenth power of a polynomial for erfc of its size. It is exactly 0
    where erf is -1."""
    x = _erf_of(args)
    assert x is not None  # asked before
    power = _sixteenth_power(ROOT, ex.apply("min", ex.apply("abs", x), _f32(FARTHEST)))
    return ex.apply("add", ex.apply("copysign", ex.apply("sub", _f32(1.0), power), x), _f32(1.0))


def _sixteenth_power(coefficients: Sequence[float], size: Expr) -> Expr:
    root = _f32(coefficients[0])
    for coefficient in coefficients[1:]:
        root = ex.apply("fma", root, size, _f32(coefficient))
    for _ in range(4):
        root = ex.apply("mul", root, root)
    return root


def _short_erf(body: Expr) -> Expr:
    return _with_factors(body, lambda node, args: _of_erfc(args) if _is_sum_with("erf")(node) else None)


# 1 / (1 + exp)


def _short_logistic(body: Expr) -> Expr:
    def quotient(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        power = _beside_one(args[1].args, "exp") if node.kind == "div" and args[1].kind == "add" else None
        return None if power is None else ex.apply("mul", args[0], _over_one_and_power(power, LOG2E))

    return _with_factors(body, quotient)


def _short_tanh(body: Expr) -> Expr:
    def doubled(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        x = _beside_one(args, "tanh") if node.kind == "add" else None
        return None if x is None else ex.apply("mul", _f32(2.0), _over_one_and_power(x, -2 * LOG2E))

    return _with_factors(body, doubled)


def _over_one_and_power(x: Expr, scale: float) -> Expr:
    """1 / (1 + 2^(scale x))."""
    if x.kind == "neg":
        x, scale = x.args[0], -scale
    power = ex.apply("near_exp2", ex.apply("mul", x, _f32(scale)))
    return ex.apply("near_reciprocal", ex.apply("add", _f32(1.0), power))


def _f32(value: float) -> Expr:
    return ex.const(value, dtypes.f32)


REWRITES: dict[str, Rewrite] = {
    "short-gelu": _short_gelu,
    "short-erf": _short_erf,
    "short-logistic": _short_logistic,
    "short-tanh": _short_tanh,
}
