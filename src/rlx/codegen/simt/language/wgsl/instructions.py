"""One instruction of the expression language on registers, as WGSL."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.codegen.simt.code import ZERO, Code
from rlx.codegen.simt.language.base import boolean
from rlx.codegen.simt.language.wgsl.types import is_narrow_float, is_wide
from rlx.codegen.simt.registers import Reg
from rlx.errors import CompileError
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr


def write(code: Code, node: Expr, args: Sequence[Reg], fits: bool) -> Reg:
    """Writes an instruction; `fits` tells that an i64 result fits in 32 bits."""
    operand = args[-1].dtype
    match node.kind:
        case "select":
            return _select(code, node, args, fits)
        case "cast":
            return _cast(code, args[0], node.dtype)
        case "bitcast":
            return _bitcast(code, args[0], node.dtype)
    if is_wide(operand):
        return _write_64(code, node, args, fits)
    names = [a.name for a in args]
    if operand.is_float:
        text = _float(node, names)
    elif operand is dtypes.bool_:
        text = boolean(node.kind, names)
    else:
        text = _int(node, operand, names)
    if text is None:
        raise CompileError(f"[{node.kind}] no WGSL for {operand}")
    if node.dtype is not dtypes.bool_:
        inexact = node.kind in _INEXACT or node.dtype.bits < 16
        text = wrapped(node.dtype, text) if not operand.is_float else rounded(node.dtype, text) if inexact else text
    return Reg(code.let(text), node.dtype, False)


def rounded(dtype: DType, text: str) -> str:
    """An f32 rounded to what a float dtype can hold."""
    return f"round_{dtype}({text})" if is_narrow_float(dtype) else text


def wrapped(dtype: DType, text: str) -> str:
    """A 32-bit integer cut to the width of an integer dtype."""
    if dtype.bits >= 32:
        return text
    text = text if text.isidentifier() else f"({text})"
    if dtype.kind == "uint":
        return f"{text} & {(1 << dtype.bits) - 1}u"
    return f"({text} << {32 - dtype.bits}u) >> {32 - dtype.bits}u"


# of the narrowest formats, which lack zeros, signs or fractions, no instruction is sure to give what they can hold
_INEXACT = ("add", "sub", "mul", "div", "fma", "sqrt")
_SUMS = ("add", "sub", "fma")
_PRODUCTS = ("mul", "div")
_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "eq": "==", "lt": "<", "le": "<="}


def _float(node: Expr, names: Sequence[str]) -> str | None:
    """Floats. Compilers for shaders reassociate, and take NaN and infinities not to be there: what they would break is
    kept from their sight."""
    a, same = names[0], len(node.args) > 1 and node.args[0] == node.args[1]
    alike = len(node.args) > 1 and not _may_be(node.args[0]).isdisjoint(_may_be(node.args[1]))
    match node.kind:
        case "add" | "sub":
            left, right = (opaque(n) if e.kind in _SUMS else n for e, n in zip(node.args, names))
            return f"{left} {_INFIX[node.kind]} {_apart(names[1]) if alike else right}"
        case "mul":
            left, right = (_factor(e, n) for e, n in zip(node.args, names))
            return f"{left} * {right}"
        case "fma":
            left, right = (_factor(e, n) for e, n in zip(node.args[:2], names))
            return f"fma({left}, {right}, {opaque(names[2]) if node.args[2].kind in _SUMS else names[2]})"
        case "div":
            known = node.args[1].kind == "const" and ex.value_of(node.args[1]) != 0
            return f"{a} / {names[1] if known else _apart(names[1])}"
        case "eq" | "le" if same:
            return f"!is_nan({a})"
        case "ne" if same:
            return f"is_nan({a})"
        case "eq" | "lt" | "le":
            left, right = _compared(node.args, names, alike)
            return f"{left} {_INFIX[node.kind]} {right}"
        case "ne":  # not `!=`, which some make of it what is false for NaN
            left, right = _compared(node.args, names, alike)
            return f"!({left} == {right})"
        case "rem":
            return f"float_rem({a}, {names[1]})"
        case "neg":
            return f"bitcast<f32>(bitcast<u32>({a}) ^ 0x80000000u)"
        case "min" | "max":
            # a choice between two by their order alone looks like a minimum, which loses NaN: the first one's is tested
            first, second = (1, 0) if _is_number(node.args[0]) else (0, 1)
            return f"float_{node.kind}({names[first]}, {names[second]})"
        case "copysign":
            return f"copy_sign({a}, {names[1]})"
        case "abs" | "sqrt" | "floor" | "ceil" | "trunc" | "round":
            return f"{node.kind}({a})"
    return None


def _may_be(node: Expr, depth: int = 3) -> set[Expr]:
    """The values of which a value is one: a driver that takes NaN not to be there sees that x - max(x, x) is 0."""
    if depth == 0 or node.kind not in ("min", "max", "select"):
        return {node}
    chosen = node.args[1:] if node.kind == "select" else node.args
    return {node}.union(*(_may_be(e, depth - 1) for e in chosen))


def _is_number(node: Expr) -> bool:
    """Whether a float is known to be no NaN."""
    if node.kind == "const":
        return not math.isnan(ex.value_of(node))
    return node.kind == "cast" and not node.args[0].dtype.is_float


def opaque(name: str) -> str:
    """A float of which the compiler does not know where it comes from."""
    return f"bitcast<f32>(bitcast<i32>({name}) ^ {ZERO})"


def _apart(name: str) -> str:
    """A float that no compiler takes for another: a quotient or difference of two opaque values that were both 0 is one
    of a value by itself, as they are hidden in the same way."""
    return f"bitcast<f32>(bitcast<i32>({name}) ^ ({ZERO} & record[0].y))"


def _compared(args: Sequence[Expr], names: Sequence[str], alike: bool) -> tuple[str, str]:
    """The sides of a comparison; sums and quotients are kept from the compiler, which makes x == x of x - x == 0, and
    may of x / x == 1."""
    left, right = (opaque(n) if e.kind in (*_SUMS, "div") else n for e, n in zip(args, names))
    return left, _apart(names[1]) if alike else right


def _factor(node: Expr, name: str) -> str:
    """A factor; 0 is kept from the compiler, which would make 0 of a product with NaN or an infinity, and so is a
    quotient: `x * (1 / x)` would be 1 for them."""
    return opaque(name) if node.kind == "div" or (node.kind == "const" and ex.value_of(node) == 0) else name


def _int(node: Expr, dtype: DType, names: Sequence[str]) -> str | None:
    """Integers of up to 32 bits. Results that leave their dtype are wrapped by the caller."""
    a, b = names[0], names[-1]
    is_signed = dtype.kind == "int"
    match node.kind:
        case "add" | "sub" | "mul" | "and" | "or" | "xor" | "eq" | "lt" | "le":
            return f"{a} {_INFIX[node.kind]} {b}"
        case "ne":
            return f"{a} != {b}"
        case "div" | "rem":
            return _division(node, is_signed, a, b)
        case "neg":
            return f"-{a}" if a.isidentifier() else f"-({a})"
        case "not":
            return f"~{a}"
        case "abs":
            return f"(abs({a}) ^ {ZERO})" if is_signed else a  # that of the least is negative
        case "min" | "max":
            return f"{node.kind}({a}, {b})"
        case "shl" | "shr":
            return _shift(node, dtype, a, b)
    return None


def _division(node: Expr, is_signed: bool, a: str, b: str) -> str:
    divisor = ex.value_of(node.args[1]) if node.args[1].kind == "const" else 0
    if divisor > 0 and (node.kind == "div" or not is_signed):
        return f"{a} {'/' if node.kind == 'div' else '%'} {b}"
    return f"{'int' if is_signed else 'uint'}_{node.kind}({a}, {b})"


def _shift(node: Expr, dtype: DType, a: str, b: str) -> str:
    sign = "<<" if node.kind == "shl" else ">>"
    fills = node.kind == "shr" and dtype.kind == "int"
    if node.args[1].kind == "const":
        count = ex.value_of(node.args[1])
        if 0 <= count < dtype.bits:
            return f"{a} {sign} {count}u"
        return f"{a} >> 31u" if fills else ("0i" if dtype.kind == "int" else "0u")
    count_bits = f"u32({b})" if dtype.kind == "int" else b
    if fills:
        return f"{a} >> min({count_bits}, 31u)"
    zero = "0i" if dtype.kind == "int" else "0u"
    return f"select({a} {sign} ({count_bits} & 31u), {zero}, {count_bits} >= {dtype.bits}u)"


def _select(code: Code, node: Expr, args: Sequence[Reg], fits: bool) -> Reg:
    condition, yes, no = args
    if yes.wide or no.wide:
        text = f"select({no.widened().name}, {yes.widened().name}, {condition.name})"
        return _as_fits(code, Reg(code.let(text), node.dtype, True), fits)
    # a choice between what the condition compares is kept from looking like a minimum, which would lose NaN
    compares = node.dtype.is_float and set(node.args[0].args) == set(node.args[1:])
    chosen = opaque(yes.name) if compares else yes.name
    return Reg(code.let(f"select({no.name}, {chosen}, {condition.name})"), node.dtype, False)


# 64-bit integers


def _as_fits(code: Code, reg: Reg, fits: bool) -> Reg:
    """A whole register cut to an i32 where the value is known to fit."""
    return Reg(code.let(reg.low()), reg.dtype, False) if reg.wide and fits else reg


_CALL_64 = {"add": "add64", "sub": "sub64", "mul": "mul64", "neg": "neg64", "shl": "shl64"}
_SIGNED_64 = {"div": "div64", "rem": "rem64", "shr": "shr64"}


def _write_64(code: Code, node: Expr, args: Sequence[Reg], fits: bool) -> Reg:
    is_test = node.dtype is dtypes.bool_
    if not any(a.wide for a in args) and (fits or is_test):
        text = _int(node, dtypes.i32, [a.name for a in args])
        if text is None:
            raise CompileError(f"[{node.kind}] no WGSL for {args[0].dtype}")
        return Reg(code.let(text), node.dtype, False)
    whole = [a.widened().name for a in args]
    text = _call_64(node.kind, args[0].dtype.kind == "int", whole)
    result = Reg(code.let(text), node.dtype, not is_test)
    return result if is_test else _as_fits(code, result, fits)


def _call_64(kind: str, is_signed: bool, names: Sequence[str]) -> str:
    a, b = names[0], names[-1]
    sign = "s" if is_signed else "u"
    if kind in _CALL_64:
        return f"{_CALL_64[kind]}({', '.join(names)})"
    if kind in _SIGNED_64:
        return f"{sign}{_SIGNED_64[kind]}({a}, {b})"
    match kind:
        case "and" | "or" | "xor":
            return f"{a} {_INFIX[kind]} {b}"
        case "not":
            return f"~{a}"
        case "abs":
            return f"abs64({a})" if is_signed else a
        case "min":
            return f"select({b}, {a}, {sign}lt64({a}, {b}))"
        case "max":
            return f"select({b}, {a}, {sign}lt64({b}, {a}))"
        case "eq":
            return f"eq64({a}, {b})"
        case "ne":
            return f"!eq64({a}, {b})"
        case "lt":
            return f"{sign}lt64({a}, {b})"
        case "le":
            return f"!{sign}lt64({b}, {a})"
    raise CompileError(f"[{kind}] no WGSL for 64-bit integers")


# conversions


def _cast(code: Code, x: Reg, to: DType) -> Reg:
    source = x.dtype
    if to is dtypes.bool_:
        return Reg(code.let(_truth(x)), to, False)
    if source is dtypes.bool_:
        one, zero = ("1.0f", "0.0f") if to.is_float else ("1u", "0u") if to.kind == "uint" else ("1i", "0i")
        if to is dtypes.u64:
            return Reg(code.let(f"vec2<u32>(select(0u, 1u, {x.name}), 0u)"), to, True)
        return Reg(code.let(f"select({zero}, {one}, {x.name})"), to, False)
    if source.is_float:
        return _from_float(code, x, to)
    if to.is_float:
        return Reg(code.let(rounded(to, _to_float(x))), to, False)
    return _between_integers(code, x, to)


def _truth(x: Reg) -> str:
    if x.dtype is dtypes.bool_:
        return x.name
    if x.wide:
        return f"!eq64({x.name}, vec2<u32>(0u, 0u))"
    if x.dtype.is_float:
        return f"(bitcast<u32>({x.name}) & 0x7fffffffu) != 0u"  # a comparison may take a subnormal for 0
    return f"{x.name} != {'0u' if x.dtype.kind == 'uint' else '0i'}"


def _to_float(x: Reg) -> str:
    if x.wide:
        return f"{'i64' if x.dtype.kind == 'int' else 'u64'}_to_float({x.name})"
    return f"f32({x.name})"


def _from_float(code: Code, x: Reg, to: DType) -> Reg:
    if to.is_float:
        return Reg(code.let(rounded(to, x.name)) if is_narrow_float(to) else x.name, to, False)
    if is_wide(to):
        return Reg(code.let(f"float_to_{to}({x.name})"), to, True)
    if to.bits == 32:
        return Reg(code.let(f"float_to_{to}({x.name})"), to, False)
    if to.kind == "uint":
        return Reg(code.let(f"min(float_to_u32({x.name}), {(1 << to.bits) - 1}u)"), to, False)
    most = (1 << (to.bits - 1)) - 1
    return Reg(code.let(f"clamp(float_to_i32({x.name}), i32({-most - 1}), {most}i)"), to, False)


def _between_integers(code: Code, x: Reg, to: DType) -> Reg:
    if is_wide(to):
        if is_wide(x.dtype):
            return Reg(x.name, to, True) if x.wide else _widen_to(code, x, to)
        if x.dtype.kind == "int":
            return _widen_to(code, x, to)
        if to is dtypes.i64 and x.dtype.bits < 32:
            return Reg(code.let(f"bitcast<i32>({x.name})"), to, False)
        return Reg(code.let(f"vec2<u32>({x.name}, 0u)"), to, True)
    low = x.low()
    is_signed = x.dtype.kind == "int" or x.wide  # `low` gives an i32 of a whole register
    if (to.kind == "int") != is_signed:
        low = f"bitcast<{'i32' if to.kind == 'int' else 'u32'}>({low})"
    return Reg(code.let(wrapped(to, low)), to, False)


def _widen_to(code: Code, x: Reg, to: DType) -> Reg:
    """An i32 as a 64-bit integer; an i64 may stay as it is."""
    return Reg(x.name, to, False) if to is dtypes.i64 else Reg(code.let(f"widen_i32({x.name})"), to, True)


def _bitcast(code: Code, x: Reg, to: DType) -> Reg:
    if is_wide(to):
        return Reg(x.name, to, True) if x.wide else _widen_to(code, x, to)
    if x.dtype.bits == to.bits == 32:
        kind = {"float": "f32", "int": "i32", "uint": "u32"}[to.kind]
        return Reg(x.name if x.dtype is to else code.let(f"bitcast<{kind}>({x.name})"), to, False)
    bits = _bits_of(x)
    if is_narrow_float(to):
        return Reg(code.let(f"decode_{to}({bits})"), to, False)
    if to.kind == "uint":
        return Reg(code.let(bits), to, False)
    return Reg(code.let(wrapped(to, f"bitcast<i32>({bits})")), to, False)


def _bits_of(x: Reg) -> str:
    """The bits of a register as a u32, zeros above its dtype's width."""
    if is_narrow_float(x.dtype):
        return f"encode_{x.dtype}({x.name})"
    if x.dtype.kind == "uint":
        return x.name
    bits = f"bitcast<u32>({x.name})"
    return bits if x.dtype.bits == 32 else f"{bits} & {(1 << x.dtype.bits) - 1}u"
