"""Scalar expressions as lines of code: one name an instruction, made where first needed and reused in inner blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlx.codegen.scalar import maths
from rlx.codegen.scalar.int_ranges import Ranges
from rlx.codegen.scalar.reads import Reads
from rlx.codegen.simt.code import Code, Record, Slot
from rlx.codegen.simt.registers import Reg
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
    folded = Expr(node.kind, node.dtype, args, node.attr)
    return ex.const(ex.evaluate(folded, lambda leaf: leaf), node.dtype)


class Body:
    """Writes the expressions of one kernel.

    axes         names of the current position along each loop axis (i32)
    rows         results of reductions
    accumulated  the sum of a contraction, in its epilogue
    second       the other sum of a paired one

    What was made once is reused where everything that it reads is still the same (`codegen/scalar/reads.py`).
    """

    def __init__(self, code: Code, record: Record, slots: Sequence[Slot], ranges: Ranges) -> None:
        self.code = code
        self.language = code.language
        self.record = record
        self.slots = slots
        self.ranges = ranges
        self.axes: dict[int, str] = {}
        self.rows: dict[int, Reg] = {}
        self.accumulated: Reg | None = None
        self.second: Reg | None = None
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
                return self.second if leaf.attr else self.accumulated
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
        reg = self.find(node) if node.kind != "const" else self.language.constant(node)
        assert reg is not None
        return reg

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
                total = self.second if node.attr else self.accumulated
                assert total is not None
                return total
            case "opaque":
                return self._opaque(self._made(node.args[0]))
        if node.kind not in INSTRUCTIONS:
            raise CompileError(f"[{node.kind}] no such leaf in {self.language.name}")
        if self.ranges.is_index(node):
            self.indices[node] = None
        args = [self._made(a) for a in node.args]
        return self.language.write(self.code, node, args, self.ranges.fits(node))

    def _opaque(self, reg: Reg) -> Reg:
        """The same float as a number that only the run can tell."""
        return Reg(self.code.let(self.language.opaque(reg)), reg.dtype, False)

    def apply(self, name: str, *regs: Reg) -> Reg:
        """An instruction on registers."""
        leaves = [Expr("register", r.dtype, (), (r.name, r.wide)) for r in regs]
        node = ex.apply(name, *leaves)
        return self.language.write(self.code, node, list(regs), not any(r.wide for r in regs))

    def through(self, make: Callable[..., Expr], *regs: Reg) -> Reg:
        """What `make` says of registers, which it gets as expressions."""
        leaves = [Expr("register", r.dtype, (), r.name) for r in regs]
        for leaf, reg in zip(leaves, regs):
            self.remember(leaf, reg)
        return self.gen(make(*leaves))

    # memory

    def offset(self, line: Linear) -> str:
        """A linear offset in elements, an i32."""
        known = self.find(line)
        return known.name if known else self.remember(line, Reg(self.fresh_offset(line), dtypes.i64, False)).name

    def fresh_offset(self, line: Linear) -> str:
        """`offset`, made anew: for axes whose positions change. Parts of it may wrap, which leaves the sum right."""
        terms = [] if line.const == 0 else [self.record.dim(line.const)]
        parts = [(self.axes[n], c) for n, c in line.axes]
        parts += [(self.gen(e).low(), c) for e, c in line.others]
        for name, coefficient in parts:
            terms.append(name if coefficient == 1 else f"{name} * {self.record.dim(coefficient)}")
        if not terms:
            return self.language.index(0)
        return self.code.let(" + ".join(terms), "at") if len(terms) > 1 or "*" in terms[0] else terms[0]

    def _load(self, node: Expr) -> Reg:
        access: Access = node.attr
        offset = self.offset(offset_of(node))
        return self.language.load(self, access.slot, offset, self._made(node.args[0]) if access.guarded else None)

    def load_at(self, number: int, offset: str) -> Reg:
        """The element of a slot at an offset."""
        return self.language.load(self, number, offset)

    def store(self, number: int, line: Linear, value: Reg) -> None:
        """Writes an element at a linear offset."""
        self.store_at(number, self.offset(line), value)

    def store_at(self, number: int, offset: str, value: Reg) -> None:
        """Writes an element at an offset."""
        self.language.store(self, number, offset, value)
