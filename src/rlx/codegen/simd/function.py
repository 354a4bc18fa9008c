"""A function of LLVM IR under construction: lines, blocks, loops, and dims that are worked out once at its entry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rlx.errors import CompileError
from rlx.ir import dim as dims
from rlx.ir.dim import Call, Dim, Poly
from rlx.ir.dtype import DType

Carried = list[tuple[str, str]]
"""Loop-carried values: (LLVM type, first value)."""

_MEMORY = {"f32": "float", "f64": "double"}
_REGISTER = {"bool": "i1", "f64": "double"}


def memory_type(dtype: DType) -> str:
    """LLVM type of an element in memory."""
    return _MEMORY.get(dtype.name) or f"i{max(dtype.bits, 8)}"


def register_type(dtype: DType) -> str:
    """LLVM type of an element while computing: narrow floats compute in f32."""
    return _REGISTER.get(dtype.name) or ("float" if dtype.is_float else f"i{dtype.bits}")


THROUGH_TABLE = "nonlazybind"
"""Of a function that is defined elsewhere: it is called by its address in a table. A call that knows how far it is
would need a bridge, for which a loader has no memory set aside."""


CALLS_BY_TABLE = '!llvm.module.flags = !{!0}\n!0 = !{i32 7, !"RtLibUseGOT", i32 1}\n'
"""What LLVM calls of its own accord (memcpy) is called as declared functions are: see `THROUGH_TABLE`."""
PLAIN = '"no-jump-tables"="true"'
"""Tables of jumps would lie among the constants of all functions, and none could be taken out of an object file."""
ONCE_A_RUN = "#1"
"""Attributes of functions that call kernels: without its optimiser LLVM takes a quarter of the time for them, and the
call of a kernel costs some nanoseconds more."""
PART_CHARACTERS = 200_000
"""Text that is worth a compiler thread of its own."""
PARTS_A_THREAD = 8
"""So that a thread which finds its processor busy leaves more to the others."""


@dataclass(frozen=True)
class Target:
    """What the renderer must know of a machine.

    lanes     f32 lanes of the vectors to emit
    byte_products  what multiplies bytes and adds to i32: "fours" (vpdpbusd), "pairs" (pmaddwd), or "" for neither
    has_fma   whether fused multiply-add is one instruction (else `fmuladd` may split it)
    converts_f16   whether instructions turn f16 into f32 and back
    vector_registers   how many there are
    """

    lanes: int
    has_fma: bool
    pause: str = ""
    byte_products: str = ""
    converts_f16: bool = False
    vector_registers: int = 16


@dataclass(frozen=True)
class Callee:
    """A kernel's function, and the dims whose values its caller gives it in a table, in order. With `turns` the caller
    tells it behind that whether to go from the last position to the first."""

    name: str
    dims: tuple[Dim, ...]
    turns: bool = False


class Module:
    """Functions and the declarations that they need, in order, each once."""

    def __init__(self, target: Target, symbols: Sequence[str]) -> None:
        self.target = target
        self.symbols = tuple(symbols)
        self.head = (
            f'attributes #0 = {{ nounwind "prefer-vector-width"="{target.lanes * 32}" {PLAIN} }}\n'
            f"attributes {ONCE_A_RUN} = {{ nounwind noinline optnone {PLAIN} }}\n{CALLS_BY_TABLE}"
        )
        self._functions: dict[str, str] = {}
        self._of_program: set[str] = set()
        self._declarations: dict[str, None] = {}
        self._by_text: dict[str, str] = {}

    def declare(self, text: str) -> None:
        """A function of LLVM's or of a library, by its declaration."""
        self._declarations[text if "@llvm." in text else f"{text} {THROUGH_TABLE}"] = None

    def define(self, stem: str, make: Callable[[str], Function]) -> Callee:
        """Adds a kernel's function unless one with the same text is there."""
        probe = make("@@")
        text, given = probe.text(), tuple(probe.given or ())
        if text in self._by_text:
            return Callee(self._by_text[text], given, probe.turns)
        name = stem if stem not in self._functions else f"{stem}.{len(self._functions)}"
        self._by_text[text] = name
        self._functions[name] = text.replace("@@@", f"@{_quoted(name)}", 1)
        return Callee(name, given, probe.turns)

    def has(self, name: str) -> bool:
        return name in self._functions

    def add(self, name: str, text: str, of_program: bool = False) -> None:
        """Adds a function as text under a name that callers know.

        of_program   it is of this program alone: no other has the same
        """
        self._functions[name] = text
        if of_program:
            self._of_program.add(name)

    def kernels(self) -> dict[str, str]:
        """Functions that other programs may have as well, by name; a mark stands in their texts in the place of the
        name, so that those are equal which differ in nothing else."""
        shared = ((name, text) for name, text in self._functions.items() if name not in self._of_program)
        return {name: text.replace(f"@{_quoted(name)}(", "@@@(", 1) for name, text in shared}

    def texts(self, threads: int, without: Collection[str] | None = None) -> list[str]:
        """The module in parts of about the same size, which can be compiled side by side and linked afterwards: for so
        many threads of the compiler at most. The first part has the longest function.

        without   functions that come from elsewhere: they are declared only, and all others can be called from outside
        """
        written = {name: text for name, text in self._functions.items() if name not in (without or ())}
        most = threads * PARTS_A_THREAD if threads > 1 else 1
        parts = max(1, min(most, sum(map(len, written.values())) // PART_CHARACTERS))
        units = list(written.values())
        if parts == 1 and without is None:
            return [self.head + "\n".join([*self._declarations, *units]) + "\n"]
        units = [_global(unit) for unit in units]
        heads = {unit: _heads(unit) for unit in (*units, *(_global(self._functions[name]) for name in without or ()))}
        shares: list[list[str]] = [[] for _ in range(parts)]
        lengths = [0] * parts
        for unit in sorted(units, key=len, reverse=True):
            least = lengths.index(min(lengths))
            shares[least].append(unit)
            lengths[least] += len(unit)
        texts = []
        for share in shares:
            here = set(share)
            others = [head for unit, made in heads.items() if unit not in here for head in made]
            texts.append(self.head + "\n".join([*self._declarations, *others, *share]) + "\n")
        return texts


def _global(unit: str) -> str:
    """A function that is called by its name, as from another module."""
    return unit.replace("define internal ", "define ").replace("define dso_local ", "define ")


def _heads(unit: str) -> list[str]:
    """Declarations of the functions that a text defines."""
    flat = unit.replace(",\n", ",")
    lines = [line for line in flat.splitlines() if line.startswith("define ")]
    heads = [line.replace("define dso_local ", "define ").replace("define ", "declare ").rstrip(" {") for line in lines]
    return [f"{head} {THROUGH_TABLE}" for head in heads]


def _quoted(name: str) -> str:
    return name if all(c.isalnum() or c in "._" for c in name) else f'"{name}"'


class Function:
    """Text of one function. Values are SSA names or literals; `value` makes one, `emit` a line without result.

    given   of a kernel: the dims whose values it reads from the table behind its slots, in order. Which dims these are
            is no part of its text: kernels of different dims are one, and none works out what the caller has
    """

    def __init__(
        self, module: Module, name: str, parameters: str, linkage: str = "internal", attributes: str = "#0"
    ) -> None:
        self.module = module
        self.name = name
        self.head = f"define {linkage} void @{name}({parameters}) {attributes} {{"
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.block_name = "body"
        self._counter = 0
        self._dims: dict[Dim, str] = {}
        self.given: list[Dim] | None = None
        self._table = ""
        self._behind = 0
        self.turns = False

    def given_dims(self, slots: int) -> None:
        """Takes the values of dims from a table, whose address stands behind so many slots in `%args`."""
        self.given, self._behind = [], slots + 1

    def backwards(self) -> str:
        """Whether the caller wants positions from the last to the first."""
        self.turns = True
        place = self.at_entry(_entry_of("i64", "%args", self._behind + 1))
        return self.at_entry(f"icmp ne i64 {self.at_entry(f'load i64, ptr {place}, align 8')}, 0")

    def text(self) -> str:
        entry = ["entry:", *self.entry, "  br label %body", "body:"]
        return "\n".join([self.head, *entry, *self.lines, "  ret void", "}"])

    def fresh(self, stem: str = "v") -> str:
        self._counter += 1
        return f"%{stem}{self._counter}"

    def emit(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def value(self, text: str, stem: str = "v") -> str:
        name = self.fresh(stem)
        self.lines.append(f"  {name} = {text}")
        return name

    def at_entry(self, text: str, stem: str = "e") -> str:
        """A value made in the entry block, so that it dominates everything."""
        name = self.fresh(stem)
        self.entry.append(f"  {name} = {text}")
        return name

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block_name = name

    # loops and branches

    def loop(
        self, low: str, high: str, step: int, carried: Carried, body: Callable[[str, list[str]], list[str]]
    ) -> list[str]:
        """for i = low; i < high; i += step, carrying values through; gives them as they leave the loop."""
        number = self.fresh("L")[1:]
        before = self.block_name
        self.emit(f"br label %{number}.head")
        self.label(f"{number}.head")
        position = self.fresh("i")
        names = [self.fresh("c") for _ in carried]
        hole = len(self.lines)
        test = self.value(f"icmp slt i64 {position}, {high}")
        self.emit(f"br i1 {test}, label %{number}.body, label %{number}.exit")
        self.label(f"{number}.body")
        results = body(position, names)
        following = self.value(f"add i64 {position}, {step}")
        latch = self.block_name
        self.emit(f"br label %{number}.head")
        phis = [f"  {position} = phi i64 [{low}, %{before}], [{following}, %{latch}]"]
        for name, (kind, first), result in zip(names, carried, results):
            phis.append(f"  {name} = phi {kind} [{first}, %{before}], [{result}, %{latch}]")
        self.lines[hole:hole] = phis
        self.label(f"{number}.exit")
        return names

    def when(self, condition: str, body: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Runs `body` if the i1 holds, else `otherwise`."""
        number = self.fresh("B")[1:]
        other = f"{number}.else" if otherwise else f"{number}.end"
        self.emit(f"br i1 {condition}, label %{number}.then, label %{other}")
        self.label(f"{number}.then")
        body()
        self.emit(f"br label %{number}.end")
        if otherwise:
            self.label(f"{number}.else")
            otherwise()
            self.emit(f"br label %{number}.end")
        self.label(f"{number}.end")

    # floats

    def branch(self, condition: str, then: Callable[[], None], other: Callable[[], None] = lambda: None) -> None:
        """What `then` emits where the condition holds, else what `other` does."""
        number = self.fresh("B")[1:]
        self.emit(f"br i1 {condition}, label %{number}.then, label %{number}.else")
        for name, emit in (("then", then), ("else", other)):
            self.label(f"{number}.{name}")
            emit()
            self.emit(f"br label %{number}.end")
        self.label(f"{number}.end")

    def multiply_add(self, kind: str, a: str, b: str, c: str) -> str:
        """a · b + c of vectors of floats, rounded once where the target can."""
        lanes, scalar = kind.strip("<>").split(" x ")
        overload = f"v{lanes}f{ {'float': 32, 'double': 64}[scalar] }"
        name = f"@llvm.{'fma' if self.module.target.has_fma else 'fmuladd'}.{overload}"
        self.module.declare(f"declare {kind} {name}({kind}, {kind}, {kind})")
        return self.value(f"call {kind} {name}({kind} {a}, {kind} {b}, {kind} {c})")

    # integers

    def add(self, a: str, b: str) -> str:
        if a == "0":
            return b
        if b == "0":
            return a
        if _is_number(a) and _is_number(b):
            return str(int(a) + int(b))
        return self.value(f"add i64 {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        if b == "0":
            return a
        if _is_number(a) and _is_number(b):
            return str(int(a) - int(b))
        return self.value(f"sub i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        if "0" in (a, b):
            return "0"
        if a == "1":
            return b
        if b == "1":
            return a
        if _is_number(a) and _is_number(b):
            return str(int(a) * int(b))
        return self.value(f"mul i64 {a}, {b}")

    def smin(self, a: str, b: str) -> str:
        if _is_number(a) and _is_number(b):
            return str(min(int(a), int(b)))
        return self.value(f"select i1 {self.value(f'icmp slt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def smax(self, a: str, b: str) -> str:
        if _is_number(a) and _is_number(b):
            return str(max(int(a), int(b)))
        return self.value(f"select i1 {self.value(f'icmp sgt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def divide(self, a: str, b: str) -> str:
        """⌊a / b⌋ of numbers that are not negative. By a literal 0 (loops over nothing, which never run) it is 0."""
        if b == "1":
            return a
        if b == "0":
            return "0"
        if _is_number(a) and _is_number(b):
            return str(int(a) // int(b))
        return self.value(f"udiv i64 {a}, {b}")

    def remainder(self, a: str, b: str) -> str:
        if b in ("0", "1"):
            return "0"
        return self.value(f"urem i64 {a}, {b}")

    def ceil_divide(self, a: str, b: str) -> str:
        return self.divide(self.add(a, self.sub(b, "1")), b)

    def offset(self, pointer: str, kind: str, elements: str) -> str:
        """The pointer moved by elements of an LLVM type."""
        return pointer if elements == "0" else self.value(f"getelementptr {kind}, ptr {pointer}, i64 {elements}", "p")

    # dims

    def dim(self, dim: Dim) -> str:
        """A dim's value: a literal, or a name made at the entry: of a kernel from the table of dims that it is given,
        else from the array of symbols in `%dims`."""
        if isinstance(dim, int):
            return str(dim)
        name = self._dims.get(dim)
        if name is None:
            name = self._dims[dim] = self._poly(dim) if self.given is None else self._from_table(dim, self.given)
        return name

    def know(self, dim: Dim, value: str) -> None:
        """Has a dim's value, made at the entry, where no symbol of the program is it."""
        self._dims[dim] = value

    def _from_table(self, dim: Dim, given: list[Dim]) -> str:
        if not given:
            self._table = self.at_entry(
                f"load ptr, ptr {self.at_entry(_entry_of('ptr', '%args', self._behind))}, align 8"
            )
        place = self.at_entry(_entry_of("i64", self._table, len(given)))
        given.append(dim)
        return self.at_entry(f"load i64, ptr {place}, align 8", "d")

    def _poly(self, poly: Poly) -> str:
        total: str | None = None
        for monomial, coefficient in poly.terms:
            term: str | None = None
            for factor in monomial:
                part = self._symbol(factor) if isinstance(factor, str) else self._call(factor)
                term = part if term is None else self.at_entry(f"mul i64 {term}, {part}")
            if term is None:
                term = str(coefficient)
            elif coefficient != 1:
                term = self.at_entry(f"mul i64 {term}, {coefficient}")
            total = term if total is None else self.at_entry(f"add i64 {total}, {term}")
        assert total is not None  # a Poly has terms
        return total

    def _symbol(self, name: str) -> str:
        dim = dims.symbol(name)
        loaded = self._dims.get(dim)
        if loaded is None:
            if name not in self.module.symbols:
                raise CompileError(f"the dim {name!r} belongs to no input")
            pointer = self.at_entry(f"getelementptr i64, ptr %dims, i64 {self.module.symbols.index(name)}")
            loaded = self._dims[dim] = self.at_entry(f"load i64, ptr {pointer}, align 8", "d")
        return loaded

    def _call(self, call: Call) -> str:
        left, right = self.dim(call.left), self.dim(call.right)
        if call.function in ("min", "max"):
            sign = "slt" if call.function == "min" else "sgt"
            test = self.at_entry(f"icmp {sign} i64 {left}, {right}")
            return self.at_entry(f"select i1 {test}, i64 {left}, i64 {right}")
        if isinstance(call.right, int):
            return self._divided(call.function, left, right)
        zero = self.at_entry(f"icmp eq i64 {right}, 0")
        safe = self.at_entry(f"select i1 {zero}, i64 1, i64 {right}")
        # by zero it is zero, as `dims.evaluate` has it: sizes worked out on either side must agree
        return self.at_entry(f"select i1 {zero}, i64 0, i64 {self._divided(call.function, left, safe)}")

    def _divided(self, function: str, left: str, safe: str) -> str:
        quotient = self.at_entry(f"sdiv i64 {left}, {safe}")
        rest = self.at_entry(f"srem i64 {left}, {safe}")
        # LLVM divides towards zero, dims towards minus infinity
        unlike = self.at_entry(f"xor i64 {rest}, {safe}")
        negative = self.at_entry(f"icmp slt i64 {unlike}, 0")
        some = self.at_entry(f"icmp ne i64 {rest}, 0")
        correct = self.at_entry(f"and i1 {negative}, {some}")
        if function == "floordiv":
            return self.at_entry(f"sub i64 {quotient}, {self.at_entry(f'zext i1 {correct} to i64')}")
        if function != "mod":
            raise CompileError(f"[cpu] no code for the function {function!r} of dims")
        return self.at_entry(f"add i64 {rest}, {self.at_entry(f'select i1 {correct}, i64 {safe}, i64 0')}")


def _entry_of(kind: str, table: str, number: int) -> str:
    return f"getelementptr {kind}, ptr {table}, i64 {number}"


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()
