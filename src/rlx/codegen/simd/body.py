"""Scalar expressions as LLVM IR, on single elements or on vectors along one loop axis.

Every register is either scalar or a vector of the target's lanes; an expression is a vector exactly where it depends on
the vector axis. What does not change in a loop is made before it (`Body.hoist`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rlx.codegen.scalar import small_floats as narrow
from rlx.codegen.scalar.reads import Reads
from rlx.codegen.simd.function import Function, memory_type, register_type
from rlx.codegen.simd.instructions import InstructionWriter
from rlx.codegen.simd.registers import Reg, Vector, literal, suffix
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import Access, Linear, offset_of


class Body:
    """Writes expressions into a function.

    bases    pointer of each slot
    axes     current position of each loop axis (i64 names); a vector axis holds the first lane's
    rows     results of reductions
    place    where in row buffers the present elements lie; `load_temp` loads what such a buffer keeps there

    What was made once is reused. It is kept under its expression *and the present values of everything that the
    expression reads* (`codegen/scalar/reads.py`): an axis that gets another position makes other values of the same
    expression.
    """

    def __init__(self, function: Function, bases: list[str]) -> None:
        self.f = function
        self.lanes = function.module.target.lanes
        self.bases = bases
        self.axes: dict[int, str] = {}
        self.vector: Vector | None = None
        self.rows: dict[int, Reg] = {}
        self.accumulated: Reg | None = None
        self.place = "0"
        self.load_temp: Callable[[int, DType], Reg] | None = None
        self._loaded: dict[object, str] | None = None
        self._reads = Reads(frozenset({"temp"}))
        self._known: dict[object, Reg] = {}
        self._scopes: list[list[tuple[object, Reg | None]]] = [[]]
        """What each scope has made: keys, and what was known of them outside."""

    # scopes

    def push(self) -> None:
        self._scopes.append([])

    def pop(self) -> None:
        for key, outside in reversed(self._scopes.pop()):
            if outside is None:
                del self._known[key]
            else:
                self._known[key] = outside

    def find(self, node: Expr) -> Reg | None:
        """The register that holds an expression at the present positions, if it was made."""
        return self._find(self._present(node))

    def remember(self, node: Expr, reg: Reg) -> Reg:
        """Keeps the register of an expression, at the present positions, until the scope ends."""
        return self._remember(self._present(node), reg)

    def _find(self, key: object) -> Reg | None:
        return self._known.get(key)

    def _remember(self, key: object, reg: Reg) -> Reg:
        self._scopes[-1].append((key, self._known.get(key)))
        self._known[key] = reg
        return reg

    def _present(self, node: Expr) -> object:
        """An expression together with the present values of what it reads. A register is what was remembered of it."""
        reads = () if node.kind == "register" else self._reads.of(node)
        return (node, *[self._value_of(leaf) for leaf in reads]) if reads else node

    def _value_of(self, leaf: Expr) -> object:
        match leaf.kind:
            case "axis":
                lanes = self.vector if self.vector is not None and self.vector.axis == leaf.attr else None
                return (self.axes.get(leaf.attr), lanes)
            case "row":
                return self.rows.get(leaf.attr)
            case "temp":
                return self.place
            case "acc":
                return self.accumulated
        return self._find(leaf)

    def _pointer_key(self, slot: int, line: Linear) -> object:
        """A scalar address: it depends on positions, not on which lanes are on."""
        positions = [self.axes.get(number) for number, _ in line.axes]
        return ("pointer", slot, line, *positions, *[self._present(e) for e, _ in line.others])

    def hoist(self, roots: Iterable[Expr], varies: Callable[[Expr], bool], loop_axes: set[int]) -> None:
        """Makes here what `roots` need and what does not vary in the loop that follows."""
        order = ex.walk(list(roots))
        varying: set[Expr] = set()
        for node in order:
            if varies(node) or any(a in varying for a in node.args):
                varying.add(node)
        for node in order:
            if node in varying:
                for a in node.args:
                    if a not in varying and a.kind not in ("const", "axis"):
                        self.gen(a)
                if node.kind == "load":
                    self._hoist_pointer(node, loop_axes, varying)
        for root in roots:
            if root not in varying and root.kind not in ("const", "axis"):
                self.gen(root)

    def _hoist_pointer(self, node: Expr, loop_axes: set[int], varying: set[Expr]) -> None:
        line = offset_of(node)
        if any(e in varying or self.is_vector(e) for e, _ in line.others):
            return
        self.pointer(node.attr.slot, node.dtype, _without(line, loop_axes))

    # addresses

    def pointer(self, slot: int, dtype: DType, line: Linear) -> str:
        """Address of the element at a scalar offset; the part that is known from outside loops is reused."""
        key = self._pointer_key(slot, line)
        cached = self._find(key)
        if cached is not None:
            return cached.name
        base, rest = self.bases[slot], line
        for number in sorted((n for n, _ in line.axes), reverse=True):
            outer = _without(line, {number})
            known = self._find(self._pointer_key(slot, outer))
            if known is not None:
                base, rest = known.name, Linear(0, tuple((n, c) for n, c in line.axes if n == number))
                break
        offset = self.offset(rest)
        pointer = self.f.offset(base, memory_type(dtype), offset)
        self._remember(key, Reg(pointer, dtypes.i64, False))
        return pointer

    def offset(self, line: Linear) -> str:
        """A linear offset of scalar parts, as an i64."""
        f = self.f
        total = f.dim(line.const)
        for number, coefficient in line.axes:
            total = f.add(total, f.mul(self.axes[number], f.dim(coefficient)))
        for expression, coefficient in line.others:
            total = f.add(total, f.mul(self.gen(expression).name, f.dim(coefficient)))
        return total

    # expressions

    def is_vector(self, node: Expr) -> bool:
        """Whether an expression depends on the vector axis."""
        if self.vector is None:
            return False
        axis = self.vector.axis

        def known(part: Expr) -> Reg | None:
            return self._find(("vector?", axis, part))

        register = known(node)
        if register is None:
            for part in ex.walk([node], below=lambda part: known(part) is None and not _lies_along(part, axis)):
                register = known(part) or self._remember(
                    ("vector?", axis, part), Reg("", dtypes.bool_, self._is_vector(part, axis, known))
                )
        assert register is not None  # the last part is the node itself
        return register.vector

    def _is_vector(self, node: Expr, axis: int, known: Callable[[Expr], Reg | None]) -> bool:
        if _lies_along(node, axis) or node.kind in ("temp", "acc"):
            return True
        if node.kind == "row":
            return self.rows[node.attr].vector
        if node.kind == "register":
            register = self._find(node)
            return register is not None and register.vector
        args = [known(a) for a in node.args]
        return any(a is not None and a.vector for a in args)

    def gen(self, node: Expr) -> Reg:
        """The register that holds an expression."""
        register = self._made(node)
        if register is None:
            for part in ex.walk([node], below=lambda part: self._made(part) is None):
                register = self._made(part) or self.remember(part, self._make(part))
        assert register is not None  # the last part is the node itself
        return register

    def _made(self, node: Expr) -> Reg | None:
        """The register of an expression that needs no instruction any more."""
        if node.kind == "const":
            return Reg(literal(node), node.dtype, False)
        if node.kind == "axis" and not self.is_vector(node):
            return Reg(self.axes[node.attr], dtypes.i64, False)
        return self.find(node)

    def _make(self, node: Expr) -> Reg:
        match node.kind:
            case "axis":
                return self._positions(self.axes[node.attr])
            case "dim":
                return Reg(self.f.dim(node.attr), dtypes.i64, False)
            case "load":
                return self._load(node)
            case "row":
                return self.rows[node.attr]
            case "temp":
                assert self.load_temp is not None
                return self.load_temp(node.attr, node.dtype)
            case "acc":
                assert self.accumulated is not None
                return self.accumulated
        args = [self.gen(a) for a in node.args]
        vector = any(a.vector for a in args)
        names = [self.splat(a).name if vector else a.name for a in args]
        return InstructionWriter(self, vector).instruction(node, args, names)

    def _positions(self, first: str) -> Reg:
        kind = self.kind("i64", True)
        start = self.splat(Reg(first, dtypes.i64, False)).name
        steps = ", ".join(f"i64 {i}" for i in range(self.lanes))
        return Reg(self.f.value(f"add {kind} {start}, <{steps}>"), dtypes.i64, True)

    # registers

    def kind(self, scalar: str, vector: bool) -> str:
        return f"<{self.lanes} x {scalar}>" if vector else scalar

    def type_of(self, reg: Reg) -> str:
        return self.kind(register_type(reg.dtype), reg.vector)

    def splat(self, reg: Reg) -> Reg:
        """The register as a vector."""
        if reg.vector:
            return reg
        cached = self._find(("splat", reg.name, reg.dtype.name))
        if cached is not None:
            return cached
        scalar = register_type(reg.dtype)
        kind = self.kind(scalar, True)
        if not reg.name.startswith("%"):
            vector = "<" + ", ".join([f"{scalar} {reg.name}"] * self.lanes) + ">"
            return Reg(vector, reg.dtype, True)
        first = self.f.value(f"insertelement {kind} poison, {scalar} {reg.name}, i64 0")
        vector = self.f.value(f"shufflevector {kind} {first}, {kind} poison, <{self.lanes} x i32> zeroinitializer")
        return self._remember(("splat", reg.name, reg.dtype.name), Reg(vector, reg.dtype, True))

    def mask(self) -> str:
        """The mask of the current vector, all true where nothing is masked."""
        if self.vector is not None and self.vector.mask is not None:
            return self.vector.mask
        return "<" + ", ".join(["i1 true"] * self.lanes) + ">"

    # memory

    def _load(self, node: Expr) -> Reg:
        access: Access = node.attr
        line = offset_of(node)
        guard = self.gen(node.args[0]) if access.guarded else None
        if not self.is_vector(node):
            return self._load_scalar(node, line, guard)
        assert self.vector is not None
        step = line.coefficient(self.vector.axis)
        straight = step == 1 and not any(self.is_vector(e) for e, _ in line.others)
        mask = self.vector.mask
        if guard is not None:
            wide = self.splat(guard).name
            mask = wide if mask is None else self.f.value(f"and <{self.lanes} x i1> {mask}, {wide}")
        kind = memory_type(node.dtype)
        if straight:
            raw = self._load_straight(access, node.dtype, line, kind, mask)
        else:
            raw = self._gather(node.dtype, access.slot, line, kind, mask)
        return self.decode(Reg(raw, node.dtype, True))

    @contextmanager
    def loading_once(self) -> Iterator[None]:
        """While it lasts, code runs from top to bottom and stores nothing: neighbouring elements that were loaded
        before, by whatever expression, are not loaded again."""
        self._loaded = {}
        yield
        self._loaded = None

    def _load_straight(self, access: Access, dtype: DType, line: Linear, kind: str, mask: str | None) -> str:
        if self._loaded is None or line.others:
            return self._load_neighbours(access, dtype, line, kind, mask)
        const, moving = line.const, []
        for number, coefficient in line.axes:
            position = self.axes[number]
            if position.isdigit():
                const = dims.add(const, dims.mul(coefficient, int(position)))
            else:
                moving.append((position, coefficient))
        key = (access.slot, dtype.name, const, tuple(moving), mask)
        if key not in self._loaded:
            self._loaded[key] = self._load_neighbours(access, dtype, line, kind, mask)
        return self._loaded[key]

    def _load_neighbours(self, access: Access, dtype: DType, line: Linear, kind: str, mask: str | None) -> str:
        where = self.pointer(access.slot, dtype, line)
        return self.load_vector(where, kind, 1, mask)  # weights in a mapped file lie anywhere

    def load_vector(self, where: str, kind: str, align: int, mask: str | None) -> str:
        wide = self.kind(kind, True)
        if mask is None:
            return self.f.value(f"load {wide}, ptr {where}, align {align}")
        name = f"@llvm.masked.load.v{self.lanes}{suffix(kind)}.p0"
        self.f.module.declare(f"declare {wide} {name}(ptr, i32, <{self.lanes} x i1>, {wide})")
        return self.f.value(
            f"call {wide} {name}(ptr {where}, i32 {align}, <{self.lanes} x i1> {mask}, {wide} zeroinitializer)"
        )

    def store_vector(self, value: str, where: str, kind: str, align: int, mask: str | None) -> None:
        wide = self.kind(kind, True)
        if mask is None:
            self.f.emit(f"store {wide} {value}, ptr {where}, align {align}")
            return
        if self._find(("first lane", mask)) is not None:
            # LLVM 22 stores such a lane as wide as it was before it was cut to its 8 or 16 bits, beyond the end
            first = self.f.value(f"extractelement {wide} {value}, i64 0")
            self.f.emit(f"store {kind} {first}, ptr {where}, align {align}")
            return
        name = f"@llvm.masked.store.v{self.lanes}{suffix(kind)}.p0"
        self.f.module.declare(f"declare void {name}({wide}, ptr, i32, <{self.lanes} x i1>)")
        self.f.emit(f"call void {name}({wide} {value}, ptr {where}, i32 {align}, <{self.lanes} x i1> {mask})")

    def _pointers(self, dtype: DType, slot: int, line: Linear) -> str:
        """Addresses of the lanes where they are not neighbours."""
        assert self.vector is not None
        f = self.f
        fixed = [(e, c) for e, c in line.others if not self.is_vector(e)]
        moving = [(e, c) for e, c in line.others if self.is_vector(e)]
        start = self.pointer(slot, dtype, Linear(line.const, line.axes, tuple(fixed)))
        wide = self.kind("i64", True)
        step = f.dim(line.coefficient(self.vector.axis))
        lanes = "<" + ", ".join(f"i64 {i}" for i in range(self.lanes)) + ">"
        total = f.value(f"mul {wide} {lanes}, {self.splat(Reg(step, dtypes.i64, False)).name}")
        for expression, coefficient in moving:
            part = self.splat(self.gen(expression)).name
            factor = self.splat(Reg(f.dim(coefficient), dtypes.i64, False)).name
            total = f.value(f"add {wide} {total}, {f.value(f'mul {wide} {part}, {factor}')}")
        return f.value(f"getelementptr {memory_type(dtype)}, ptr {start}, {wide} {total}")

    def _gather(self, dtype: DType, slot: int, line: Linear, kind: str, mask: str | None) -> str:
        pointers = self._pointers(dtype, slot, line)
        wide = self.kind(kind, True)
        name = f"@llvm.masked.gather.v{self.lanes}{suffix(kind)}.v{self.lanes}p0"
        self.f.module.declare(f"declare {wide} {name}(<{self.lanes} x ptr>, i32, <{self.lanes} x i1>, {wide})")
        return self.f.value(
            f"call {wide} {name}(<{self.lanes} x ptr> {pointers}, i32 {dtype.itemsize}, "
            f"<{self.lanes} x i1> {mask or self.mask()}, {wide} zeroinitializer)"
        )

    def _load_scalar(self, node: Expr, line: Linear, guard: Reg | None) -> Reg:
        f = self.f
        kind = memory_type(node.dtype)
        if guard is None:
            where = self.pointer(node.attr.slot, node.dtype, line)
            raw = f.value(f"load {kind}, ptr {where}, align 1")
            return self.decode(Reg(raw, node.dtype, False))
        # where the guard fails the address may be wild: a stack slot with a zero stands in
        zero = f.at_entry(f"alloca {kind}")
        f.entry.append(f"  store {kind} {'0.0' if kind in ('float', 'double') else '0'}, ptr {zero}")
        where = f.offset(self.bases[node.attr.slot], kind, self.offset(line))
        safe = f.value(f"select i1 {guard.name}, ptr {where}, ptr {zero}")
        return self.decode(Reg(f.value(f"load {kind}, ptr {safe}, align 1"), node.dtype, False))

    def store(self, slot: int, line: Linear, value: Reg) -> None:
        """Writes an element, or a vector of them along the vector axis."""
        raw = self.encode(value)
        kind = memory_type(value.dtype)
        apart = any(self.is_vector(e) for e, _ in line.others)  # data say where each lane goes
        if self.vector is None or (line.coefficient(self.vector.axis) == 0 and not value.vector and not apart):
            where = self.pointer(slot, value.dtype, line)
            self.f.emit(f"store {kind} {raw.name}, ptr {where}, align {value.dtype.itemsize}")
            return
        wide = self.splat_raw(raw, kind)
        if line.coefficient(self.vector.axis) == 1 and not apart:
            where = self.pointer(slot, value.dtype, line)
            self.store_vector(wide, where, kind, value.dtype.itemsize, self.vector.mask)
            return
        pointers = self._pointers(value.dtype, slot, line)
        vector = self.kind(kind, True)
        name = f"@llvm.masked.scatter.v{self.lanes}{suffix(kind)}.v{self.lanes}p0"
        self.f.module.declare(f"declare void {name}({vector}, <{self.lanes} x ptr>, i32, <{self.lanes} x i1>)")
        self.f.emit(
            f"call void {name}({vector} {wide}, <{self.lanes} x ptr> {pointers}, i32 {value.dtype.itemsize}, "
            f"<{self.lanes} x i1> {self.mask()})"
        )

    def splat_raw(self, reg: Reg, kind: str) -> str:
        """A vector of a value in its memory form."""
        if reg.vector:
            return reg.name
        wide = self.kind(kind, True)
        if not reg.name.startswith("%"):
            return "<" + ", ".join([f"{kind} {reg.name}"] * self.lanes) + ">"
        first = self.f.value(f"insertelement {wide} poison, {kind} {reg.name}, i64 0")
        return self.f.value(f"shufflevector {wide} {first}, {wide} poison, <{self.lanes} x i32> zeroinitializer")

    def decode(self, raw: Reg) -> Reg:
        """From the memory form to the register form."""
        if raw.dtype is dtypes.bool_:
            kind = self.kind("i8", raw.vector)
            zero = "zeroinitializer" if raw.vector else "0"
            return Reg(self.f.value(f"icmp ne {kind} {raw.name}, {zero}"), raw.dtype, raw.vector)
        if raw.dtype is dtypes.f16 and self.f.module.target.converts_f16:
            return self._width(self._width(raw, "bitcast", "i16", "half"), "fpext", "half", "float")
        if raw.dtype in narrow.DTYPES:
            bits = Reg(raw.name, narrow.bits_dtype(raw.dtype), raw.vector)
            return Reg(self._through(bits, lambda e: narrow.decode(e, raw.dtype)).name, raw.dtype, raw.vector)
        if raw.dtype.is_integer and raw.dtype.bits < 8:
            return self._width(raw, "trunc", "i8", f"i{raw.dtype.bits}")
        return raw

    def _width(self, reg: Reg, how: str, source: str, target: str) -> Reg:
        instruction = f"{how} {self.kind(source, reg.vector)} {reg.name} to {self.kind(target, reg.vector)}"
        return Reg(self.f.value(instruction), reg.dtype, reg.vector)

    def encode(self, value: Reg) -> Reg:
        """From the register form to the memory form."""
        if value.dtype is dtypes.bool_:
            if not value.name.startswith("%") and not value.vector:
                return Reg("1" if value.name in ("true", "1") else "0", value.dtype, False)
            return self._width(value, "zext", "i1", "i8")
        if value.dtype is dtypes.f16 and self.f.module.target.converts_f16:
            return self._width(self._width(value, "fptrunc", "float", "half"), "bitcast", "half", "i16")
        if value.dtype in narrow.DTYPES:
            wide = Reg(value.name, dtypes.f32, value.vector)
            return Reg(self._through(wide, lambda e: narrow.encode(e, value.dtype)).name, value.dtype, value.vector)
        if value.dtype.is_integer and value.dtype.bits < 8:  # as ml_dtypes keeps them: the high bits are 0
            return self._width(value, "zext", f"i{value.dtype.bits}", "i8")
        return value

    def _through(self, reg: Reg, make: Callable[[Expr], Expr]) -> Reg:
        """A register put through an expression."""
        if not reg.name.startswith("%") and not reg.vector:
            kind = register_type(reg.dtype)
            reg = Reg(self.f.value(f"bitcast {kind} {reg.name} to {kind}"), reg.dtype, False)
        leaf = Expr("register", reg.dtype, (), reg.name)
        self.push()
        self.remember(leaf, reg)
        result = self.gen(make(leaf))
        self.pop()
        return result

    def round_narrow(self, reg: Reg) -> Reg:
        """A value held in f32 rounded to what its narrow dtype can hold."""
        if reg.dtype is dtypes.f16 and self.f.module.target.converts_f16:
            return self._width(self._width(reg, "fptrunc", "float", "half"), "fpext", "half", "float")
        wide = Reg(reg.name, dtypes.f32, reg.vector)
        return Reg(self._through(wide, lambda e: _rounded(e, reg.dtype)).name, reg.dtype, reg.vector)


def _rounded(value: Expr, dtype: DType) -> Expr:
    return narrow.decode(narrow.encode(value, dtype), dtype)


def lane_mask(body: Body, remaining: str) -> str:
    """Lanes whose number is below `remaining`, as a mask."""
    kind = body.kind("i64", True)
    lanes = "<" + ", ".join(f"i64 {i}" for i in range(body.lanes)) + ">"
    limit = body.splat(Reg(remaining, dtypes.i64, False)).name
    mask = body.f.value(f"icmp slt {kind} {lanes}, {limit}")
    if remaining == "1":
        body._remember(("first lane", mask), Reg(mask, dtypes.bool_, True))
    return mask


def _lies_along(node: Expr, axis: int) -> bool:
    """Whether neighbouring positions along the axis are other elements of this very leaf."""
    if node.kind == "axis":
        return bool(node.attr == axis)
    return node.kind == "load" and node.attr.coefficient(axis) != 0


def uses_axis(node: Expr, axes: set[int]) -> bool:
    """Whether a leaf depends on the position along one of these axes."""
    if node.kind == "axis":
        return node.attr in axes
    return node.kind == "load" and any(n in axes for n, _ in node.attr.axes)


def _without(line: Linear, axes: set[int]) -> Linear:
    return Linear(line.const, tuple((n, c) for n, c in line.axes if n not in axes), line.others)
