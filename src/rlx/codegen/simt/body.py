"""Scalar expressions as WGSL: one `let` an instruction, made where it is first needed and reused in inner blocks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from rlx.codegen.scalar import maths
from rlx.codegen.scalar.int_ranges import Ranges
from rlx.codegen.scalar.reads import Reads
from rlx.codegen.simt.code import ZERO, Code, Record, Slot, int_literal
from rlx.codegen.simt.instructions import wrapped, write
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.types import is_narrow_float, is_wide
from rlx.errors import CompileError
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.expr import INSTRUCTIONS, Expr
from rlx.kernel.ir.index import Access, Linear, offset_of


def legal(body: Expr) -> Expr:
    """A body that WGSL can say: no transcendental instructions, nothing left that constants decide.

    The latter is a must: a constant expression that overflows, or divides by zero, is an error in WGSL.
    """
    return ex.rewrite(maths.legalise(ex.rewrite(ex.rewrite(body, _fold), _hide)), _fold)


ALGEBRA = frozenset({"add", "sub", "mul", "div", "rem", "fma"})


def _hide(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
    """Hides numbers of a program's own arithmetic from drivers, whose algebra is that of real numbers.

    To Mesa's `x / 0` is 0, `x + 0` is x, `(x * 1e30) * 1e30` x times infinity, and a root times itself what it is the
    root of. What `codegen.scalar.maths` writes is left as it is: its results are tested on every driver.
    """
    if node.kind not in ALGEBRA or not node.dtype.is_float:
        return None
    twice = [a.kind == "sqrt" and a in args[:i] for i, a in enumerate(args)]
    known = ("const", "row")  # a row of nothing is a constant, too
    hidden = [Expr("opaque", a.dtype, (a,)) if a.kind in known or again else a for a, again in zip(args, twice)]
    return Expr(node.kind, node.dtype, tuple(hidden), node.attr)


def _fold(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
    if not args or node.kind not in INSTRUCTIONS or any(a.kind != "const" for a in args):
        return None
    made = Expr(node.kind, node.dtype, args, node.attr)
    return ex.const(ex.evaluate(made, lambda leaf: leaf), node.dtype)


class Body:
    """Writes the expressions of one kernel.

    axes         names of the current position along each loop axis (i32)
    rows         results of reductions
    accumulated  the sum of a contraction, in its epilogue

    What was made once is reused where everything that it reads is still the same (`codegen/scalar/reads.py`).
    """

    def __init__(self, code: Code, record: Record, slots: Sequence[Slot], ranges: Ranges) -> None:
        self.code = code
        self.record = record
        self.slots = slots
        self.ranges = ranges
        self.axes: dict[int, str] = {}
        self.rows: dict[int, Reg] = {}
        self.accumulated: Reg | None = None
        self.indices: dict[Expr, None] = {}
        self._reads = Reads()
        self._scopes: list[dict[object, Reg]] = [{}]

    @contextmanager
    def scope(self, head: str) -> Iterator[None]:
        """A block of code; what is made in it is forgotten behind it."""
        with self.code.block(head):
            self._scopes.append({})
            yield
            self._scopes.pop()

    def find(self, key: Expr | Linear) -> Reg | None:
        return self._find(self._present(key))

    def remember(self, key: Expr | Linear, reg: Reg) -> Reg:
        self._scopes[-1][self._present(key)] = reg
        return reg

    def _find(self, key: object) -> Reg | None:
        return next((s[key] for s in reversed(self._scopes) if key in s), None)

    def _present(self, key: Expr | Linear) -> object:
        """An expression or offset together with the present values of what it reads."""
        if isinstance(key, Linear):
            reads = self._reads.of_line(key)
        else:
            reads = () if key.kind == "register" else self._reads.of(key)
        return (key, *[self._value_of(leaf) for leaf in reads]) if reads else key

    def _value_of(self, leaf: Expr) -> object:
        match leaf.kind:
            case "axis":
                return self.axes.get(leaf.attr)
            case "row":
                return self.rows.get(leaf.attr)
            case "acc":
                return self.accumulated
        return self._find(leaf)

    def hoist(self, roots: Sequence[Expr], varies: Callable[[Expr], bool]) -> None:
        """Makes here what `roots` need and what does not vary in the loop that follows."""
        varying: set[Expr] = set()
        for node in ex.walk(roots):
            if varies(node) or any(a in varying for a in node.args):
                varying.add(node)
                for a in node.args:
                    if a not in varying:
                        self.gen(a)

    def gen(self, node: Expr) -> Reg:
        """The register that holds an expression."""
        for part in ex.walk([node], below=lambda part: self.find(part) is None):
            if part.kind != "const" and self.find(part) is None:
                self.remember(part, self._make(part))
        return self._made(node)

    def _made(self, node: Expr) -> Reg:
        found = self.find(node) if node.kind != "const" else constant(node)
        assert found is not None
        return found

    def _make(self, node: Expr) -> Reg:
        match node.kind:
            case "axis":
                return Reg(self.axes[node.attr], dtypes.i64, False)
            case "dim":
                return Reg(self.record.dim(node.attr), dtypes.i64, False)
            case "load":
                return self._load(node)
            case "row":
                return self.rows[node.attr]
            case "acc":
                assert self.accumulated is not None
                return self.accumulated
            case "opaque":
                return self._opaque(self._made(node.args[0]))
        if node.kind not in INSTRUCTIONS:
            raise CompileError(f"[{node.kind}] no such leaf in WGSL")
        if self.ranges.is_index(node):
            self.indices[node] = None
        args = [self._made(a) for a in node.args]
        return write(self.code, node, args, self.ranges.fits(node))

    def _opaque(self, reg: Reg) -> Reg:
        """The same float as a number that only the run can tell."""
        return Reg(self.code.let(f"bitcast<f32>(bitcast<u32>({reg.name}) | bitcast<u32>({ZERO}))"), reg.dtype, False)

    def apply(self, name: str, *regs: Reg) -> Reg:
        """An instruction on registers."""
        leaves = [Expr("register", r.dtype, (), (r.name, r.wide)) for r in regs]
        node = ex.apply(name, *leaves)
        return write(self.code, node, list(regs), not any(r.wide for r in regs))

    def through(self, make: Callable[..., Expr], *regs: Reg) -> Reg:
        """What `make` says of registers, which it gets as expressions."""
        leaves = [Expr("register", r.dtype, (), r.name) for r in regs]
        for leaf, reg in zip(leaves, regs):
            self.remember(leaf, reg)
        return self.gen(make(*leaves))

    # memory

    def offset(self, line: Linear) -> str:
        """A linear offset in elements, an i32."""
        found = self.find(line)
        return found.name if found else self.remember(line, Reg(self.fresh_offset(line), dtypes.i64, False)).name

    def fresh_offset(self, line: Linear) -> str:
        """`offset`, made anew: for axes whose positions change. Parts of it may wrap, which leaves the sum right."""
        terms = [] if line.const == 0 else [self.record.dim(line.const)]
        parts = [(self.axes[n], c) for n, c in line.axes]
        parts += [(self.gen(e).low(), c) for e, c in line.others]
        for name, coefficient in parts:
            terms.append(name if coefficient == 1 else f"{name} * {self.record.dim(coefficient)}")
        if not terms:
            return "0i"
        return self.code.let(" + ".join(terms), "at") if len(terms) > 1 or "*" in terms[0] else terms[0]

    def _load(self, node: Expr) -> Reg:
        access: Access = node.attr
        value = self.load_at(access.slot, self.offset(offset_of(node)))
        if not access.guarded:
            return value
        # reading out of bounds is harmless in WGSL: it gives some element, or zero
        zero = constant(ex.const(0, node.dtype)).widened() if value.wide else constant(ex.const(0, node.dtype))
        guard = self._made(node.args[0])
        return value.like(self.code.let(f"select({zero.name}, {value.name}, {guard.name})"))

    def load_at(self, number: int, offset: str) -> Reg:
        """The element of a slot at an offset."""
        slot = self.slots[number]
        start, dtype = self.record.start(number), slot.dtype
        if slot.native:
            return Reg(self.code.let(f"f32(memory{slot.storage}[{start} + {offset}])"), dtype, False)
        if is_wide(dtype):
            at = self.code.let(f"{start} + {offset} * 2i", "at")
            return Reg(self.code.let(f"vec2<u32>({_word(slot, at)}, {_word(slot, f'{at} + 1i')})"), dtype, True)
        if slot.packed:
            return self._load_packed(slot, start, offset)
        word = _word(slot, f"{start} + {offset}")
        match dtype.kind:
            case "bool":
                text = f"{word} != 0u"
            case "float":
                text = f"bitcast<f32>({word})"
            case "int":
                text = f"bitcast<i32>({word})"
            case _:
                text = word
        return Reg(self.code.let(text), dtype, False)

    def _load_packed(self, slot: Slot, start: str, offset: str) -> Reg:
        dtype = slot.dtype
        width = 8 * dtype.itemsize
        shift, mask = (2, 3) if width == 8 else (1, 1)
        word = _word(slot, f"{start} + ({offset} >> {shift}u)")
        place = f"u32(({offset} & {mask}i) * {width}i)"
        raw = self.code.let(f"({word} >> {place}) & {(1 << dtype.bits) - 1}u")  # bits above the width count for nothing
        if is_narrow_float(dtype):
            return Reg(self.code.let(f"decode_{dtype}({raw})"), dtype, False)
        if dtype.kind == "int":
            return Reg(self.code.let(wrapped(dtype, f"bitcast<i32>({raw})")), dtype, False)
        return Reg(self.code.let(f"{raw} != 0u") if dtype is dtypes.bool_ else raw, dtype, False)

    def store(self, number: int, line: Linear, value: Reg) -> None:
        """Writes an element at a linear offset."""
        self.store_at(number, self.offset(line), value)

    def store_at(self, number: int, offset: str, value: Reg) -> None:
        """Writes an element, as a word or a half."""
        slot = self.slots[number]
        assert not slot.packed
        at = f"{self.record.start(number)} + {offset}"
        memory = f"memory{slot.storage}"
        if slot.native:
            self.code.emit(f"{memory}[{at}] = f16({value.name});")
            return
        if is_wide(slot.dtype):
            whole = value.widened()
            at = self.code.let(f"{self.record.start(number)} + {offset} * 2i", "at")
            name = whole.name if whole.name.isidentifier() else self.code.let(whole.name)
            self.code.emit(f"{memory}[{at}] = {name}.x;")
            self.code.emit(f"{memory}[{at} + 1i] = {name}.y;")
            return
        match slot.dtype.kind:
            case "bool":
                word = f"select(0u, 1u, {value.name})"
            case "uint":
                word = value.name
            case _:
                word = f"bitcast<u32>({value.name})"
        self.code.emit(f"{memory}[{at}] = {word};")


def _word(slot: Slot, at: str) -> str:
    """A word of a slot's storage, as a u32."""
    place = f"memory{slot.storage}[{at}]"
    if not slot.atomic:
        return place
    return f"atomicLoad(&{place})" if slot.atomic == "u32" else f"bitcast<u32>(atomicLoad(&{place}))"


def constant(node: Expr) -> Reg:
    """A constant as a literal. Infinities and NaN, which WGSL has no literals for, come from a number at run time."""
    value = ex.value_of(node)
    dtype = node.dtype
    if dtype is dtypes.bool_:
        return Reg("true" if value else "false", dtype, False)
    if is_wide(dtype):
        if dtype is dtypes.i64 and -(1 << 31) <= value < 1 << 31:
            return Reg(int_literal(value), dtype, False)
        bits = value & ((1 << 64) - 1)
        return Reg(f"vec2<u32>({bits & 0xFFFFFFFF}u, {bits >> 32}u)", dtype, True)
    if dtype.kind == "int":
        return Reg(int_literal(value), dtype, False)
    return Reg(f"{value}u" if dtype.kind == "uint" else float_literal(float(value)), dtype, False)


def float_literal(value: float) -> str:
    """An f32 expression of this value."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if not np.isfinite(value):
        return f"bitcast<f32>({bits}u | bitcast<u32>({ZERO}))"
    if bits == 0x80000000:
        return f"bitcast<f32>({bits}u)"
    return f"{np.float32(value)!s}f" if value >= 0 else f"({np.float32(value)!s}f)"
