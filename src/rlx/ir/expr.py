"""Scalar expressions: the bodies of loops. An elementwise op defines in this language what it does to one element.

`Expr` is an immutable DAG over a small instruction set (`INSTRUCTIONS`), typed by `DType`. Renderers implement the
instructions; instructions that a renderer lacks are rewritten into simpler ones first (`codegen/scalar/maths.py`).
Integer arithmetic wraps. Comparisons give bool. Loop-level leaves (`axis`, `load`, `row`, …) are created in `kernel/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from rlx.errors import DTypeError
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.locks import rlock
from rlx.records import dataclass


@dataclass(frozen=True)
class Instruction:
    """`result` is "same" (dtype of the first argument), "bool", or "attr" (the dtype in the expression's attribute).

    `kinds` are the dtype kinds that the arguments may have; `transcendental` instructions cost a polynomial.
    """

    name: str
    arity: int
    kinds: str
    result: str
    numpy: Callable[..., Any]
    transcendental: bool = False


INSTRUCTIONS: dict[str, Instruction] = {}


def _ins(
    name: str, arity: int, kinds: str, numpy: Callable[..., Any], result: str = "same", hard: bool = False
) -> None:
    function = in_bytes(numpy) if result != "attr" and ("i" in kinds or "u" in kinds) else numpy
    INSTRUCTIONS[name] = Instruction(name, arity, kinds, result, function, hard)


def in_bytes(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of arrays with integers below 8 bits widened, as NumPy has no functions for them; results wrap."""

    def run(*arrays: Any) -> Any:
        small = next((d for d in map(_small, arrays) if d is not None), None)
        if small is None:
            return function(*arrays)
        wide = np.int8 if small.kind == "int" else np.uint8
        y = np.asarray(function(*(a.astype(wide) if _small(a) else a for a in arrays)))
        return y if y.dtype == np.bool_ else y.astype(small.numpy)

    return run


def _small(array: Any) -> DType | None:
    """The dtype of integers that share a byte; those of ml_dtypes call themselves void."""
    numpy_dtype = getattr(array, "dtype", None)
    dtype = dtypes.of(numpy_dtype) if numpy_dtype is not None and numpy_dtype.kind == "V" else None
    return dtype if dtype is not None and dtype.is_integer and dtype.bits < 8 else None


def _truncated_divide(a: Any, b: Any) -> Any:
    """Integer division towards zero; by zero gives 0, and the least integer by -1 wraps to itself."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return a / b
    safe = np.where(b == 0, np.ones_like(b), b)
    if a.dtype.kind == "u":
        quotient = a // safe
    else:
        minus_one = safe == -1
        divided = np.where(minus_one, np.ones_like(safe), safe)
        floor = a // divided
        floor = floor + ((floor < 0) & (floor * divided != a)).astype(a.dtype)
        quotient = np.where(minus_one, np.zeros_like(a) - a, floor)
    return np.where(b == 0, np.zeros_like(a), quotient).astype(a.dtype)


def _truncated_remainder(a: Any, b: Any) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return np.fmod(a, b)
    return np.where(b == 0, np.zeros_like(a), a - _truncated_divide(a, b) * b).astype(a.dtype)


def _cast(a: Any, to: DType) -> Any:
    """C-like conversion with every case defined: floats to integers truncate, saturate, and take NaN to 0."""
    a = np.asarray(a)
    source = dtypes.of(a.dtype)
    if to.is_integer and source.is_float:
        limits = (-(1 << (to.bits - 1)), (1 << (to.bits - 1)) - 1) if to.kind == "int" else (0, (1 << to.bits) - 1)
        wide = np.trunc(np.nan_to_num(a.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
        low, high = wide <= float(limits[0]), wide >= float(limits[1])
        inside = np.where(low | high, 0.0, wide)
        whole = inside.astype(np.uint64 if to is dtypes.u64 else np.int64)
        least, greatest = (np.array(limit, whole.dtype) for limit in limits)
        result = np.where(high, greatest, np.where(low, least, whole))
        return result.astype(to.numpy)
    if to is dtypes.bool_:
        return a != 0
    if source.is_complex and not to.is_complex:
        a = a.real
    if source.bits < 16 and to.bits < 16 and source is not to:  # ml_dtypes converts few of its dtypes to one another
        a = a.astype(np.float32 if source.is_float else np.int16)
    narrowing = to.is_float and to.bits < 32
    if narrowing and (a.dtype == np.float64 or (to.bits < 16 and not source.is_float)):
        a = a.astype(np.float32)
    return a.astype(to.numpy)


def _shift(numpy: Callable[..., Any]) -> Callable[..., Any]:
    """Shifts by the type's width or more give 0 (or the sign, shifting right)."""

    def run(a: Any, b: Any) -> Any:
        a, b = np.asarray(a), np.asarray(b)
        width = a.dtype.itemsize * 8
        over = (b >= width) | (b < 0)
        shifted = numpy(a, np.where(over, 0, b).astype(a.dtype))
        fill = np.where(a < 0, -1, 0) if numpy is np.right_shift and a.dtype.kind == "i" else np.zeros_like(a)
        return np.where(over, fill, shifted).astype(a.dtype)

    return run


# arithmetic
_ins("add", 2, "iufc", np.add)
_ins("sub", 2, "iufc", np.subtract)
_ins("mul", 2, "iufc", np.multiply)
_ins("div", 2, "iufc", _truncated_divide)
_ins("rem", 2, "iuf", _truncated_remainder)
_ins("neg", 1, "ifc", np.negative)
_ins("abs", 1, "iuf", np.abs)
_ins("min", 2, "biuf", np.minimum)  # a NaN operand gives NaN
_ins("max", 2, "biuf", np.maximum)
_ins("fma", 3, "f", lambda a, b, c: a * b + c)  # may round once or twice
_ins("sqrt", 1, "fc", np.sqrt)
_ins("floor", 1, "f", np.floor)
_ins("ceil", 1, "f", np.ceil)
_ins("trunc", 1, "f", np.trunc)
_ins("round", 1, "f", np.rint)  # ties to even
_ins("copysign", 2, "f", np.copysign)
# bits
_ins("and", 2, "biu", lambda a, b: np.bitwise_and(a, b))
_ins("or", 2, "biu", lambda a, b: np.bitwise_or(a, b))
_ins("xor", 2, "biu", lambda a, b: np.bitwise_xor(a, b))
_ins("not", 1, "biu", lambda a: np.invert(a))
_ins("shl", 2, "iu", _shift(np.left_shift))
_ins("shr", 2, "iu", _shift(np.right_shift))
_ins("bitcast", 1, "iuf", lambda a, to: np.asarray(a).view(to.numpy), "attr")
# comparison and choice
_ins("eq", 2, "biufc", np.equal, "bool")
_ins("ne", 2, "biufc", np.not_equal, "bool")
_ins("lt", 2, "biuf", np.less, "bool")
_ins("le", 2, "biuf", np.less_equal, "bool")
_ins("select", 3, "biufc", np.where)
_ins("cast", 1, "biufc", _cast, "attr")
# transcendental
for _name, _numpy in {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}.items():  # fmt: skip
    _ins(_name, 1, "f", _numpy, hard=True)
_ins("near_exp2", 1, "f", np.exp2)  # two units in the last place off at most; subnormal numbers may become zeros
_ins("near_reciprocal", 1, "f", lambda a: 1 / a)  # one unit in the last place; passes for targets with both make them
_ins("pow", 2, "f", np.power, hard=True)
_ins("atan2", 2, "f", np.arctan2, hard=True)


def _erf(a: Any) -> Any:
    import math

    a = np.asarray(a)
    return np.vectorize(math.erf, otypes=[np.float64])(a).astype(a.dtype) if a.size else a


_ins("erf", 1, "f", _erf, hard=True)

_interned: WeakValueDictionary[tuple[Any, ...], Expr] = WeakValueDictionary()
_interning = rlock()
_KIND = {"bool": "b", "int": "i", "uint": "u", "float": "f", "complex": "c"}


class Expr:
    """A node of a scalar expression. There is one of each: equal expressions are the same object.

    Otherwise a node that is shared many times over would be compared, and rendered, along every path that leads to it.
    """

    __slots__ = ("__weakref__", "_hash", "args", "attr", "dtype", "kind")
    kind: str
    dtype: DType
    args: tuple[Expr, ...]
    attr: Any
    _hash: int

    def __new__(cls, kind: str, dtype: DType, args: tuple[Expr, ...] = (), attr: Any = None) -> Expr:
        key = (kind, dtype.name, args, attr, type(attr))
        interned = _interned.get(key)
        if interned is None:
            node = object.__new__(cls)
            node.kind, node.dtype, node.args, node.attr = kind, dtype, args, attr
            node._hash = hash(key)
            with _interning:  # of two threads that make it, one is first: `setdefault` alone does not say so
                interned = _interned.setdefault(key, node)
        return interned

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        if self.kind == "const":
            return f"{self.attr}:{self.dtype}"
        inside = [repr(a) for a in self.args] + ([str(self.attr)] if self.attr is not None else [])
        return f"{self.kind}({', '.join(inside)})"

    def __add__(self, other: Expr | float) -> Expr:
        return apply("add", self, other)

    def __radd__(self, other: float) -> Expr:
        return apply("add", const(other, self.dtype), self)

    def __sub__(self, other: Expr | float) -> Expr:
        return apply("sub", self, other)

    def __rsub__(self, other: float) -> Expr:
        return apply("sub", const(other, self.dtype), self)

    def __mul__(self, other: Expr | float) -> Expr:
        return apply("mul", self, other)

    def __rmul__(self, other: float) -> Expr:
        return apply("mul", const(other, self.dtype), self)

    def __truediv__(self, other: Expr | float) -> Expr:
        return apply("div", self, other)

    def __rtruediv__(self, other: float) -> Expr:
        return apply("div", const(other, self.dtype), self)

    def __neg__(self) -> Expr:
        return apply("neg", self)


def const(value: Any, dtype: DType) -> Expr:
    """A constant, kept as a Python number rounded to `dtype` (NaN and inf allowed)."""
    number = np.asarray(value).astype(dtype.numpy)
    return Expr("const", dtype, (), _ConstValue(number.tobytes(), dtype))


class _ConstValue:
    """A constant's bits: NaN equals itself and 0.0 differs from -0.0, as bits do."""

    __slots__ = ("bits", "dtype")

    def __init__(self, bits: bytes, dtype: DType) -> None:
        self.bits = bits
        self.dtype = dtype

    @property
    def value(self) -> Any:
        """The Python number."""
        scalar = np.frombuffer(self.bits, self.dtype.numpy)[0]
        if self.dtype.kind == "bool":
            return bool(scalar)
        if self.dtype.is_integer:
            return int(scalar)
        return complex(scalar) if self.dtype.is_complex else float(scalar)

    def __hash__(self) -> int:
        return hash(self.bits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ConstValue) and self.bits == other.bits and self.dtype is other.dtype

    def __repr__(self) -> str:
        return repr(self.value)


def value_of(expr: Expr) -> Any:
    """The Python number of a `const` expression."""
    return expr.attr.value


def apply(name: str, *args: Expr | float, attr: Any = None) -> Expr:
    """An instruction applied; Python numbers take the dtype of the first expression. Raises DTypeError."""
    instruction = INSTRUCTIONS[name]
    typed = [a for a in args if isinstance(a, Expr)]
    model = typed[-1] if name == "select" else typed[0]
    exprs = tuple(a if isinstance(a, Expr) else const(a, model.dtype) for a in args)
    if len(exprs) != instruction.arity:
        raise DTypeError(f"[{name}] expected {instruction.arity} arguments, got {len(exprs)}")
    values = exprs[1:] if name == "select" else exprs
    for expr in values:
        if _KIND[expr.dtype.kind] not in instruction.kinds:
            raise DTypeError(f"[{name}] expected one of the kinds {instruction.kinds}, got {expr.dtype}")
        if expr.dtype is not values[0].dtype:
            raise DTypeError(f"[{name}] expected one dtype, got {values[0].dtype} and {expr.dtype}")
    if instruction.result == "bool":
        return Expr(name, dtypes.bool_, exprs)
    if instruction.result == "attr":
        if name == "cast" and exprs[0].dtype is attr:
            return exprs[0]
        return Expr(name, attr, exprs, attr)
    return Expr(name, values[0].dtype, exprs, attr)


def cast(a: Expr, to: DType) -> Expr:
    return apply("cast", a, attr=to)


def bitcast(a: Expr, to: DType) -> Expr:
    return apply("bitcast", a, attr=to)


def select(condition: Expr, a: Expr | float, b: Expr | float) -> Expr:
    return apply("select", condition, a, b)


def fma(a: Expr, b: Expr | float, c: Expr | float) -> Expr:
    return apply("fma", a, b, c)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule; coefficients from the highest power to the lowest."""
    result: Expr = const(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        result = fma(result, x, coefficient)
    return result


def walk(roots: Sequence[Expr], below: Callable[[Expr], bool] | None = None) -> list[Expr]:
    """Every node below the roots, arguments first, each once; not below nodes where `below` is false."""
    seen: set[int] = set()
    done: set[int] = set()
    order: list[Expr] = []
    stack = [*reversed(roots)]
    while stack:
        node = stack[-1]
        if id(node) not in seen and node.args and (below is None or below(node)):
            seen.add(id(node))
            stack.extend(node.args[::-1])
            continue
        stack.pop()
        if id(node) not in done:
            done.add(id(node))
            order.append(node)
    return order


def rewrite(root: Expr, rule: Callable[[Expr, tuple[Expr, ...]], Expr | None]) -> Expr:
    """Rebuilds bottom-up; `rule(node, new_args)` gives the replacement, or None to keep the node."""
    memo: dict[int, Expr] = {}
    for node in walk([root]):
        args = tuple(memo[id(a)] for a in node.args)
        replacement = rule(node, args)
        if replacement is None:
            same = all(a is b for a, b in zip(args, node.args))
            replacement = node if same else Expr(node.kind, node.dtype, args, node.attr)
        memo[id(node)] = replacement
    return memo[id(root)]


def evaluate(root: Expr, leaf: Callable[[Expr], Any]) -> Any:
    """The expression's value in NumPy; `leaf` gives the arrays of nodes that are no instruction or constant.

    Narrow floats compute in f32 and round once per instruction, as compiled code does.
    """
    memo: dict[int, Any] = {}
    for node in walk([root]):
        memo[id(node)] = _evaluate_node(node, [memo[id(a)] for a in node.args], leaf)
    return memo[id(root)]


def _evaluate_node(node: Expr, args: list[Any], leaf: Callable[[Expr], Any]) -> Any:
    if node.kind == "const":
        return np.frombuffer(node.attr.bits, node.dtype.numpy)[0]
    instruction = INSTRUCTIONS.get(node.kind)
    if instruction is None:
        return leaf(node)
    with np.errstate(all="ignore"):
        if instruction.result == "attr":
            return instruction.numpy(args[0], node.attr)
        if node.kind in ("and", "or", "xor", "not") and node.dtype is dtypes.bool_:
            table = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}
            return table[node.kind](*args)
        narrow = [a for a in node.args if a.dtype.is_float and a.dtype.bits < 32]
        if narrow and node.kind != "select":
            args = [np.asarray(a).astype(np.float32) for a in args]
        result = instruction.numpy(*args)
        return np.asarray(result).astype(node.dtype.numpy)
