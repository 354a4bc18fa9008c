"""Instructions of the expression language as LLVM IR, on registers of one width.

What LLVM leaves undefined is defined here: division by zero, shifts beyond a dtype's bits, floats that no integer is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.codegen.scalar import small_floats as narrow
from rlx.codegen.simd.function import register_type
from rlx.codegen.simd.registers import Reg, literal, suffix
from rlx.errors import CompileError
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import INSTRUCTIONS, Expr

if TYPE_CHECKING:
    from rlx.codegen.simd.body import Body


class InstructionWriter:
    """One instruction on registers of one width."""

    def __init__(self, body: Body, vector: bool) -> None:
        self.body = body
        self.f = body.f
        self.vector = vector

    def instruction(self, node: Expr, args: list[Reg], names: list[str]) -> Reg:
        """Writes an instruction of the expression language."""
        dtype = args[-1].dtype if node.kind == "select" else args[0].dtype
        kind = self.kind(dtype)
        name = getattr(self, f"_{node.kind}", None)
        if name is not None:
            result = name(node, dtype, kind, names)
        elif node.kind in _SIMPLE:
            result = self.f.value(f"{_simple(node.kind, dtype)} {kind} {', '.join(names)}")
        elif node.kind in _COMPARE:
            result = self.f.value(f"{_compare(node.kind, dtype)} {kind} {', '.join(names)}")
        elif node.kind in _INTRINSIC and register_type(dtype) in ("float", "double"):
            result = self.call(f"llvm.{_INTRINSIC[node.kind]}", kind, [kind] * len(names), names)
        elif INSTRUCTIONS[node.kind].transcendental and dtype is dtypes.f64:
            result = self._libm(_LIBM.get(node.kind, node.kind), kind, names)
        else:
            raise CompileError(f"[{node.kind}] no LLVM code for {dtype}")
        register = Reg(result, node.dtype, self.vector)
        rounds = node.dtype in narrow.DTYPES and node.kind in _ROUNDED
        return self.body.round_narrow(register) if rounds else register

    def kind(self, dtype: DType) -> str:
        return self.body.kind(register_type(dtype), self.vector)

    def call(self, intrinsic: str, result: str, kinds: list[str], names: list[str], extra: str = "") -> str:
        """A call of an overloaded intrinsic, declared on the way."""
        full = f"@{intrinsic}.{self._overload(result)}{extra}"
        self.f.module.declare(f"declare {result} {full}({', '.join(kinds)})")
        return self.f.value(f"call {result} {full}({', '.join(f'{k} {n}' for k, n in zip(kinds, names))})")

    def _overload(self, kind: str) -> str:
        if not kind.startswith("<"):
            return suffix(kind)
        count, _, scalar = kind[1:-1].partition(" x ")
        return f"v{count}{suffix(scalar)}"

    def _libm(self, name: str, kind: str, names: list[str]) -> str:
        parameters = ", ".join(["double"] * len(names))
        self.f.module.declare(f"declare double @{name}({parameters})")
        if not self.vector:
            return self.f.value(f"call double @{name}({', '.join(f'double {n}' for n in names)})")
        result = "poison"
        for lane in range(self.body.lanes):
            parts = [self.f.value(f"extractelement {kind} {n}, i64 {lane}") for n in names]
            one = self.f.value(f"call double @{name}({', '.join(f'double {p}' for p in parts)})")
            result = self.f.value(f"insertelement {kind} {result}, double {one}, i64 {lane}")
        return result

    def _constant(self, dtype: DType, value: float) -> str:
        reg = Reg(literal(ex.const(value, dtype)), dtype, False)
        return self.body.splat(reg).name if self.vector else reg.name

    def _neg(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        if dtype.is_float:
            return self.f.value(f"fneg {kind} {names[0]}")
        return self.f.value(f"sub {kind} {self._constant(dtype, 0)}, {names[0]}")

    def _abs(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        if dtype.is_float:
            return self.call("llvm.fabs", kind, [kind], names)
        if dtype.kind == "uint":
            return names[0]
        return self.call("llvm.abs", kind, [kind, "i1"], [names[0], "false"])

    def _copysign(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        """By bits. LLVM would take the sign from where it was computed, f64 perhaps, and call a function that nobody
        has to bring it to f16."""
        bits = 64 if register_type(dtype) == "double" else 32
        whole = self.body.kind(f"i{bits}", self.vector)
        size, sign = (self.f.value(f"bitcast {kind} {name} to {whole}") for name in names)
        mask = self._all_lanes(f"i{bits}", str((1 << (bits - 1)) - 1))
        top = self._all_lanes(f"i{bits}", str(-(1 << (bits - 1))))
        size, sign = self.f.value(f"and {whole} {size}, {mask}"), self.f.value(f"and {whole} {sign}, {top}")
        return self.f.value(f"bitcast {whole} {self.f.value(f'or {whole} {size}, {sign}')} to {kind}")

    def _all_lanes(self, scalar: str, value: str) -> str:
        return "<" + ", ".join([f"{scalar} {value}"] * self.body.lanes) + ">" if self.vector else value

    def _div(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        if dtype.is_float:
            return self.f.value(f"fdiv {kind} {names[0]}, {names[1]}")
        return self._whole_division(dtype, kind, names, "div", names[0])

    def _rem(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        if dtype.is_float:
            return self._float_remainder(dtype, kind, names)
        return self._whole_division(dtype, kind, names, "rem", self._constant(dtype, 0))

    def _float_remainder(self, dtype: DType, kind: str, names: list[str]) -> str:
        """fmod of the C library, lane by lane: it is exact for every pair."""
        wide = self.body.kind("double", self.vector)
        if kind != wide:
            names = [self.f.value(f"fpext {kind} {n} to {wide}") for n in names]
        result = self._libm("fmod", wide, names)
        return result if kind == wide else self.f.value(f"fptrunc {wide} {result} to {kind}")

    def _whole_division(self, dtype: DType, kind: str, names: list[str], what: str, minus_one: str) -> str:
        """Integer division with the cases that trap or are undefined taken out: by 0 gives 0, by -1 is a negation."""
        zero, one = self._constant(dtype, 0), self._constant(dtype, 1)
        mask = self.body.kind("i1", self.vector)
        by_zero = self.f.value(f"icmp eq {kind} {names[1]}, {zero}")
        unsafe = by_zero
        if dtype.kind == "int":
            by_minus = self.f.value(f"icmp eq {kind} {names[1]}, {self._constant(dtype, -1)}")
            unsafe = self.f.value(f"or {mask} {by_zero}, {by_minus}")
        divisor = self.f.value(f"select {mask} {unsafe}, {kind} {one}, {kind} {names[1]}")
        sign = "u" if dtype.kind == "uint" else "s"
        result = self.f.value(f"{sign}{what} {kind} {names[0]}, {divisor}")
        if dtype.kind == "int":
            negated = self.f.value(f"sub {kind} {zero}, {names[0]}") if what == "div" else minus_one
            result = self.f.value(f"select {mask} {by_minus}, {kind} {negated}, {kind} {result}")
        return self.f.value(f"select {mask} {by_zero}, {kind} {zero}, {kind} {result}")

    def _min(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        return self._extremum("minimum", "min", dtype, kind, names)

    def _max(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        return self._extremum("maximum", "max", dtype, kind, names)

    def _extremum(self, floats: str, ints: str, dtype: DType, kind: str, names: list[str]) -> str:
        if dtype.is_float:
            return self.call(f"llvm.{floats}", kind, [kind, kind], names)
        if dtype is dtypes.bool_:
            return self.f.value(f"{'and' if ints == 'min' else 'or'} {kind} {names[0]}, {names[1]}")
        return self.call(f"llvm.{'u' if dtype.kind == 'uint' else 's'}{ints}", kind, [kind, kind], names)

    def _fma(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        name = "llvm.fma" if self.f.module.target.has_fma else "llvm.fmuladd"
        return self.call(name, kind, [kind] * 3, names)

    def _not(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        ones = self._constant(dtype, True) if dtype is dtypes.bool_ else self._constant(dtype, _all_ones(dtype))
        return self.f.value(f"xor {kind} {names[0]}, {ones}")

    def _shl(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        return self._shift("shl", dtype, kind, names)

    def _shr(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        return self._shift("lshr" if dtype.kind == "uint" else "ashr", dtype, kind, names)

    def _shift(self, what: str, dtype: DType, kind: str, names: list[str]) -> str:
        count = node_constant(names[1])
        if count is not None and 0 <= count < dtype.bits:
            return self.f.value(f"{what} {kind} {names[0]}, {names[1]}")
        mask = self.body.kind("i1", self.vector)
        over = self.f.value(f"icmp uge {kind} {names[1]}, {self._constant(dtype, dtype.bits)}")
        last = self._constant(dtype, dtype.bits - 1)
        safe = self.f.value(f"select {mask} {over}, {kind} {last}, {kind} {names[1]}")
        shifted = self.f.value(f"{what} {kind} {names[0]}, {safe}")
        if what == "ashr":
            return shifted
        return self.f.value(f"select {mask} {over}, {kind} {self._constant(dtype, 0)}, {kind} {shifted}")

    def _select(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        condition = f"{self.body.kind('i1', self.vector)} {names[0]}"
        return self.f.value(f"select {condition}, {kind} {names[1]}, {kind} {names[2]}")

    def _bitcast(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        for side in (dtype, node.dtype):
            if side in narrow.DTYPES or side.bits < 8:
                return self._bitcast_narrow(node, dtype, names)
        target = self.kind(node.dtype)
        return names[0] if target == kind else self.f.value(f"bitcast {kind} {names[0]} to {target}")

    def _bitcast_narrow(self, node: Expr, dtype: DType, names: list[str]) -> str:
        raw = self.body.encode(Reg(names[0], dtype, self.vector)).name
        return self.body.decode(Reg(raw, node.dtype, self.vector)).name

    def _cast(self, node: Expr, dtype: DType, kind: str, names: list[str]) -> str:
        to, x = node.dtype, names[0]
        target = self.kind(to)
        if to is dtypes.bool_:
            test = "fcmp une" if dtype.is_float else "icmp ne"
            return self.f.value(f"{test} {kind} {x}, {self._constant(dtype, 0)}")
        if dtype is dtypes.bool_ or dtype.is_integer:
            unsigned = dtype is dtypes.bool_ or dtype.kind == "uint"
            if not to.is_float:
                return self._resize(dtype, to, kind, target, x, unsigned)
            converted = self.f.value(f"{'uitofp' if unsigned else 'sitofp'} {kind} {x} to {target}")
        elif to.is_float:
            converted = self._float_width(kind, target, x)
        else:
            return self._to_integer(dtype, to, kind, x)
        if to in narrow.DTYPES:
            return self.body.round_narrow(Reg(converted, to, self.vector)).name
        return converted

    def _to_integer(self, dtype: DType, to: DType, kind: str, x: str) -> str:
        """Truncates and saturates; NaN gives 0. LLVM's own saturating conversion goes element by element on x86."""
        f, target = self.f, self.kind(to)
        if to.bits > 32 or to is dtypes.u32:
            sign = "u" if to.kind == "uint" else "s"
            name = f"@llvm.fpto{sign}i.sat.{self._overload(target)}.{self._overload(kind)}"
            f.module.declare(f"declare {target} {name}({kind})")
            return f.value(f"call {target} {name}({kind} {x})")
        flags, wide = self.body.kind("i1", self.vector), self.body.kind("i32", self.vector)
        least, most = (-(1 << (to.bits - 1)), (1 << (to.bits - 1)) - 1) if to.kind == "int" else (0, (1 << to.bits) - 1)
        carrier = dtypes.accumulator(dtype)

        def kept(test: str, limit: int) -> tuple[str, str]:
            """x where the test against a limit holds, else the limit (a NaN fails every test); and the test."""
            bound = self._constant(carrier, limit)
            holds = f.value(f"fcmp {test} {kind} {x}, {bound}")
            return f.value(f"select {flags} {holds}, {kind} {x}, {kind} {bound}"), holds

        if least:
            x, _ = kept("ord", 0)
        x, _ = kept("ogt", least)
        if to.bits < 32:
            x, _ = kept("olt", most)
            return f.value(f"trunc {wide} {f.value(f'fptosi {kind} {x} to {wide}')} to {target}")
        _, inside = kept("olt", most + 1)  # no f32 is 2³¹ - 1
        x = f.value(f"select {flags} {inside}, {kind} {x}, {kind} {self._constant(carrier, 0)}")
        whole = f.value(f"fptosi {kind} {x} to {wide}")
        return f.value(f"select {flags} {inside}, {wide} {whole}, {wide} {self._constant(dtypes.i32, most)}")

    def _float_width(self, kind: str, target: str, x: str) -> str:
        if kind == target:
            return x
        return self.f.value(f"{'fpext' if 'double' in target else 'fptrunc'} {kind} {x} to {target}")

    def _resize(self, dtype: DType, to: DType, kind: str, target: str, x: str, unsigned: bool) -> str:
        bits = 1 if dtype is dtypes.bool_ else dtype.bits
        if bits == to.bits:
            return x
        instruction = "trunc" if bits > to.bits else "zext" if unsigned else "sext"
        return self.f.value(f"{instruction} {kind} {x} to {target}")


def node_constant(name: str) -> int | None:
    """The number of a literal operand, or of a splat literal."""
    text = name.split(" ")[-1].rstrip(">") if name.startswith("<") else name
    return int(text) if text.lstrip("-").isdigit() else None


def _all_ones(dtype: DType) -> int:
    return -1 if dtype.kind == "int" else (1 << dtype.bits) - 1


_SIMPLE = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_ROUNDED = ("add", "sub", "mul", "div", "sqrt")
"""What gives more digits than its operands have. Narrow floats are held in f32 and lose these at once, so that results
do not depend on what is fused."""
_COMPARE = ("eq", "ne", "lt", "le")
_INTRINSIC = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven",
}  # fmt: skip
_LIBM = (
    {"abs": "fabs"}
    | {
        n: n
        for n in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "erf")
    }
    | {n: n for n in ("asin", "acos", "atan", "asinh", "acosh", "atanh", "pow", "atan2")}
)


def _simple(kind: str, dtype: DType) -> str:
    return f"f{kind}" if dtype.is_float and kind in ("add", "sub", "mul") else kind


def _compare(kind: str, dtype: DType) -> str:
    if dtype.is_float:
        return {"eq": "fcmp oeq", "ne": "fcmp une", "lt": "fcmp olt", "le": "fcmp ole"}[kind]
    sign = "s" if dtype.kind == "int" else "u"
    return {"eq": "icmp eq", "ne": "icmp ne", "lt": f"icmp {sign}lt", "le": f"icmp {sign}le"}[kind]
