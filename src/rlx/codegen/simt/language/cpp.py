"""C++ of GPUs, what CUDA C++, HIP C++ and Metal's language have in common: native 64-bit integers, a pointer for every
slot, no headers.

Registers of floats below 32 bits are `float`, rounded after every instruction; integers below 32 bits are `int` or
`unsigned`, wrapped after every instruction. Indices are `long long`, or what a language calls integers of 64 bits.
Compilers may fuse no products and sums by themselves: they are fused where a body says `fma`, and nowhere else.
"""

from __future__ import annotations

import math
import struct
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.codegen.scalar.small_floats import DTYPES as SMALL_FLOATS
from rlx.codegen.simt.code import WORKGROUP, Binding, Code, Record
from rlx.codegen.simt.language.base import Language, boolean
from rlx.codegen.simt.registers import Reg
from rlx.errors import CompileError
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, symbols
from rlx.ir.dtype import DType
from rlx.ir.expr import INSTRUCTIONS, Expr

if TYPE_CHECKING:
    from rlx.codegen.simt.body import Body

INDEX = "long long"
WHOLE_BYTES = (dtypes.u8, dtypes.i8, dtypes.f8e4m3)
"""What lanes pack by four into words."""
_WORDS = {8: "char", 16: "short", 32: "int"}
_INFIX = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}
_WRAPPING = {"add": "+", "sub": "-", "mul": "*"}
_BITS = {"and": "&", "or": "|", "xor": "^"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint", "sqrt": "sqrt", "abs": "fabs"}


class CppRecord(Record):
    """Numbers of 64 bits: those that a round brings, then dims. Slots are pointers, which begin where their buffers
    do.

    moving   symbols of dims that are not in the record but in a table of the device: the record has their places there
    moved    entries that are such places
    ending   of literals of 64 bits
    """

    def __init__(self, slots: int, rounds: int = 0, moving: frozenset[str] = frozenset(), ending: str = "ll") -> None:
        super().__init__(slots, rounds)
        self.moving = moving
        self.ending = ending
        self.moved: set[int] = set()

    @property
    def moves(self) -> bool:
        """Whether there are dims that move."""
        return bool(self.moved)

    def start(self, slot: int) -> str:
        raise CompileError("[kernel] expected a slot's own pointer, got a place in a heap")

    def dim(self, dim: Dim) -> str:
        if isinstance(dim, int):
            return index_literal(dim, self.ending)
        entry = self.rounds + self._dims.setdefault(dim, len(self._dims))
        if not symbols(dim) & self.moving:
            return f"record.dims[{entry}]"
        self.moved.add(entry)
        return f"moved{entry}"

    def round(self, number: int) -> str:
        return f"record.dims[{number}]"


class Cpp(Language):
    """One of the three.

    label           what people call it
    index_type      its integers of 64 bits, whose literals end with `index_ending`
    slot_space      what types of elements in slots begin with, and those in workgroup memory with `shared_space`
    moving          symbols whose values kernels find in a table of the device, so that one graph serves all of them
    """

    label: str
    index_type = INDEX
    index_ending = "ll"
    slot_space = ""
    shared_space = "__shared__"
    unrolls = True

    def __init__(self, moving: frozenset[str] = frozenset()) -> None:
        self.moving = moving

    @abstractmethod
    def prelude(self) -> str:
        """What stands before all kernels of a text."""

    # types and literals

    def is_wide(self, dtype: DType) -> bool:
        return False

    def register_type(self, dtype: DType, wide: bool) -> str:
        return register_type(dtype, self.index_type)

    def memory_type(self, dtype: DType) -> str:
        """The type of an element in memory."""
        return memory_type(dtype, self.index_type)

    def bindings(self, elements: Sequence[DType], writes: int) -> list[Binding]:
        """The parameters of a kernel: a pointer for every slot, of which the first `writes` are written."""
        return [Binding(self.memory_type(dtype), slot < writes) for slot, dtype in enumerate(elements)]

    def index(self, value: int) -> str:
        return index_literal(value, self.index_ending)

    def constant(self, node: Expr) -> Reg:
        value, dtype = ex.value_of(node), node.dtype
        if dtype is dtypes.bool_:
            return Reg("true" if value else "false", dtype, False)
        if dtype.is_float:
            return Reg(_double(float(value)) if dtype is dtypes.f64 else _float(float(value)), dtype, False)
        number = int(value)
        ending = ("u" if dtype.kind == "uint" else "") + (self.index_ending if dtype.bits == 64 else "")
        if number in (-(1 << 31), -(1 << 63)):  # whose literals would be negations of those of a longer type
            return Reg(f"({number + 1}{ending} - 1{ending})", dtype, False)
        return Reg(f"({number}{ending})" if number < 0 else f"{number}{ending}", dtype, False)

    def lane_index(self) -> str:
        return f"({self.index_type})lane"

    # statements and expressions

    def let(self, name: str, text: str) -> str:
        return f"const auto {name} = {text};"

    def variable(self, name: str, kind: str, value: str = "") -> str:
        return f"{kind} {name} = {value};" if value else f"{kind} {name}{{}};"

    def mutable(self, name: str, value: str) -> str:
        return f"auto {name} = {value};"

    def array_variable(self, name: str, element: str, count: int) -> str:
        return f"{element} {name}[{count}]{{}};"

    def array_of(self, name: str, element: str, values: Sequence[str]) -> str:
        return f"{element} {name}[{len(values)}] = {{{', '.join(values)}}};"

    def unroll(self, code: Code, count: int) -> None:
        code.emit(f"#pragma unroll {count}")

    def select(self, condition: str, yes: str, no: str) -> str:
        return f"({condition} ? {yes} : {no})"

    def fma(self, a: str, b: str, c: str) -> str:
        return f"fmaf({a}, {b}, {c})"

    def rounded(self, dtype: DType, text: str) -> str:
        return f"round_{dtype}({text})" if dtype in SMALL_FLOATS else text

    def float_bits(self, text: str) -> str:
        return f"__float_as_uint({text})"

    def opaque(self, reg: Reg) -> str:
        return reg.name  # its compiler keeps to IEEE 754

    def write(self, code: Code, node: Expr, args: Sequence[Reg], fits: bool) -> Reg:
        text = self._text(node, args)
        if text is None:
            raise CompileError(f"[{node.kind}] no {self.label} for {args[-1].dtype}")
        rounds = node.kind == "cast" and node.dtype in SMALL_FLOATS and args[0].dtype is dtypes.f32
        return Reg(code.let(text), node.dtype, False, args[0].name if rounds else "")

    def _text(self, node: Expr, args: Sequence[Reg]) -> str | None:
        names = [a.name for a in args]
        match node.kind:
            case "select":
                return self.select(names[0], names[1], names[2])
            case "cast":
                return self._cast(args[0], node.dtype)
            case "bitcast":
                return self._bitcast(args[0], node.dtype)
        operand = args[-1].dtype
        if operand is dtypes.bool_:
            return boolean(node.kind, names)
        if node.kind in _INFIX:
            return f"{names[0]} {_INFIX[node.kind]} {names[1]}"
        if operand.is_float:
            text = _float_instruction(node.kind, operand, names)
            return None if text is None else self.rounded(node.dtype, text)
        text = _int_instruction(node.kind, operand, names, self.index_type)
        return None if text is None else self._wrapped(node.dtype, text)

    def _wrapped(self, dtype: DType, text: str) -> str:
        """An integer cut to its dtype's width."""
        if dtype.bits >= 32:
            return text
        if dtype.kind == "uint":
            return f"({text}) & {(1 << dtype.bits) - 1}u"
        return f"({text}) << {32 - dtype.bits} >> {32 - dtype.bits}"

    def _cast(self, x: Reg, to: DType) -> str:
        kind, source = self.register_type(to, False), x.dtype
        if to is dtypes.bool_:
            return x.name if source is dtypes.bool_ else f"{x.name} != 0"
        if to.is_float:
            return self.rounded(to, f"({kind}){x.name}")
        if source.is_float:
            high = (1 << (to.bits - (to.kind == "int"))) - 1
            low = -high - 1 if to.kind == "int" else 0
            ends = [self.constant(ex.const(end, to)).name for end in (low, high)]
            literal = _double if source is dtypes.f64 else _float
            return f"saturated<{kind}>({x.name}, {literal(float(low))}, {literal(float(high))}, {', '.join(ends)})"
        return self._wrapped(to, f"({kind}){x.name}")

    def _bitcast(self, x: Reg, to: DType) -> str:
        source = x.dtype
        if source is to:
            return x.name
        if source.is_float:
            held = f"encode_{source}({x.name})" if source in SMALL_FLOATS else _bits(x.name, source)
        else:
            held = x.name
        if to.is_float:
            if to in SMALL_FLOATS:
                unsigned = f"(unsigned){held} & {(1 << to.bits) - 1}u"
                return f"decode_{to}({unsigned})"
            back = "__longlong_as_double" if to is dtypes.f64 else "__int_as_float"
            return f"{back}(({self.index_type if to is dtypes.f64 else 'int'}){held})"
        return self._wrapped(to, f"({self.register_type(to, False)}){held}")

    # quads: their operators are in `cuda.cuh`

    @property
    def quad_type(self) -> str:
        return "float4"

    def quad(self, parts: Sequence[str] = ()) -> str:
        return f"float4{{{', '.join(parts)}}}"

    def quad_component(self, quad: str, number: int) -> str:
        return f"{quad}.{'xyzw'[number]}"

    def quad_fma(self, factor: str, quad: str, addend: str) -> str:
        return f"quad_fma({factor}, {quad}, {addend})"

    def floats_of(self, quads: str) -> str:
        return f"((float*){quads})"

    # memory

    def record(self, slots: int, rounds: int = 0) -> Record:
        return CppRecord(slots, rounds, self.moving, self.index_ending)

    def load(self, body: Body, slot: int, offset: str, guard: Reg | None = None) -> Reg:
        dtype = body.slots[slot].dtype
        place = f"slot{slot}[{offset}]"
        if guard is not None:
            place = f"{guard.name} ? {place} : ({self.memory_type(dtype)})0"
        return Reg(body.code.let(self._from_memory(dtype, place)), dtype, False)

    def store(self, body: Body, slot: int, offset: str, value: Reg) -> None:
        body.code.emit(f"slot{slot}[{offset}] = {self._to_memory(body.slots[slot].dtype, value)};")

    def _from_memory(self, dtype: DType, element: str) -> str:
        if dtype in SMALL_FLOATS:
            return f"decode_{dtype}({element})"
        if dtype is dtypes.bool_:
            return f"({element}) != 0"
        return element if dtype.is_float else self._wrapped(dtype, f"({self.register_type(dtype, False)})({element})")

    def _to_memory(self, dtype: DType, value: Reg) -> str:
        held = f"encode_{dtype}({value.unrounded})" if dtype in SMALL_FLOATS else value.name
        return f"({self.memory_type(dtype)}){held}"

    def has_atomic(self, combine: str, dtype: DType) -> bool:
        """Every instruction on elements that a word holds; complex numbers have no kernels."""
        return not dtype.is_complex

    def join(self, body: Body, slot: int, offset: str, combine: str, value: Reg) -> None:
        """By the hardware's instruction where there is one, else by exchanging the word that holds the element."""
        code, dtype = body.code, body.slots[slot].dtype
        element, place = self.memory_type(dtype), f"&slot{slot}[{offset}]"
        if _is_hardware_atomic(combine, dtype):
            unsigned = (combine, dtype) == ("add", dtypes.i64)  # there is no signed sum
            kind = f"unsigned {self.index_type}" if unsigned else element
            code.emit(f"atomic{combine.capitalize()}(({self.slot_space}{kind}*){place}, ({kind}){value.name});")
            return
        exchange = code.fresh("exchange")
        with body.scope(f"for (Exchange<{element}> {exchange}({place}); !{exchange}.done;)"):
            before = Reg(code.let(self._from_memory(dtype, f"{exchange}.before()")), dtype, False)
            after = body.apply(combine, before, value)
            code.emit(f"{exchange}.replace({self._to_memory(dtype, after)});")

    def put(self, kind: str, place: str, words: Sequence[str]) -> str:
        """Stores words side by side to the memory of a buffer."""
        return f"*({kind}*)({place}) = {kind}{{{', '.join(words)}}};"

    def load_quad(self, body: Body, slot: int, offset: str) -> str:
        return f"((const {self.slot_space}float4*)slot{slot})[{offset}]"

    def shared_array(self, code: Code, dtype: DType, wide: bool, stem: str = "shared", count: int = WORKGROUP) -> str:
        kind = self.register_type(dtype, False)
        name = f"{stem}_{kind}".replace(" ", "_")
        self.shared_variable(code, name, kind, count)
        return name

    def shared_places(self, code: Code) -> str:
        self.shared_variable(code, "shared_place", self.index_type, WORKGROUP)
        return "shared_place"

    def shared_value(self, reg: Reg) -> str:
        return reg.name

    def from_shared(self, place: str, like: Reg) -> str:
        return place

    def barrier(self) -> str:
        return "__syncthreads();"

    @abstractmethod
    def exchanged(self, value: str, mask: str) -> str:
        """What the lane has whose number differs in the bits of `mask`, of an integer or a float of 32 or 64 bits."""

    def from_neighbour(self, reg: Reg, mask: str) -> str:
        value = f"(int){reg.name}" if reg.dtype is dtypes.bool_ else reg.name
        other = self.exchanged(value, mask)
        return f"{other} != 0" if reg.dtype is dtypes.bool_ else other

    # the whole

    block_index = "blockIdx.x"
    lane_number = "threadIdx.x"

    @abstractmethod
    def qualifiers(self, lanes: int, cluster: int = 1, alone: bool = False) -> str:
        """What stands before the name of a kernel; workgroups may come in clusters, or leave no registers to others."""

    @abstractmethod
    def record_parameter(self, count: int) -> str:
        """The parameter that brings a launch's numbers."""

    def map_parameter(self, number: int) -> str:
        """The parameter that brings a map of a tensor."""
        raise NotImplementedError

    def first_lines(self, code: Code) -> list[str]:
        """What a kernel does before all else."""
        return []

    def assemble(
        self, code: Code, record: Record, bindings: Sequence[Binding], name: str, positions_a_group: int,
        lanes: int = WORKGROUP,
    ) -> str:  # fmt: skip
        """One kernel; `prelude` is what stands before all of them."""
        body = self.body(code, f"({self.index_type}){self.block_index}", positions_a_group)
        maps = len(code.maps)
        head = self.head(record, bindings, name, lanes, code.cluster, code.later, code.alone, maps)
        return "\n".join([*code.functions.values(), *head, *body, "}"])

    def head(
        self, record: Record, bindings: Sequence[Binding], name: str, lanes: int, cluster: int = 1, later: int = 0,
        alone: bool = False, maps: int = 0,
    ) -> list[str]:  # fmt: skip
        """The first lines of a kernel."""
        pointers = [
            f"{'' if binding.writable else 'const '}{binding.element}* __restrict__ slot{number}"
            for number, binding in enumerate(bindings)
        ]
        assert isinstance(record, CppRecord)  # this language's own
        if record.moves:
            pointers.append(f"const {INDEX}* __restrict__ moving")
        own = max(record.rounds + len(record.numbers), 1)
        of_maps = [self.map_parameter(number) for number in range(maps)]
        parameters = ", ".join([*pointers, self.record_parameter(own + later), *of_maps])
        brought = self.brought(record)
        first = self.qualifiers(lanes, cluster, alone)
        return [first, f"{name}({parameters}) {{", *self.asks_later(own, later), *brought]

    def brought(self, record: CppRecord) -> list[str]:
        """The lines that read what moves."""
        return [
            f"  const {self.index_type} moved{entry} = {self.moved(f'moving + record.dims[{entry}]')};"
            for entry in sorted(record.moved)
        ]

    def asks_later(self, own: int, later: int) -> list[str]:
        """Asks for what a later kernel wants, by numbers behind the kernel's own."""
        return []

    def moved(self, place: str) -> str:
        """A number of the table, which no kernel writes."""
        return f"*({place})"

    def body(self, code: Code, block: str, positions_a_group: int) -> list[str]:
        """The lines between a kernel's braces; `block` is the number of the block. With 0 positions a group there is
        one for each lane of a launch's groups."""
        each = positions_a_group or self.group_size
        position = f"{block} * {each} + {self.lane_number}" if each != 1 else block
        return [
            f"  const {self.index_type} position = {position};",
            f"  [[maybe_unused]] const unsigned lane = {self.lane_number};",
            *(f"  {self.shared_space} {kind} {array}[{size}];" for array, (kind, size) in code.shared.items()),
            *self.first_lines(code),
            *code.lines,
        ]


def index_literal(value: int, ending: str = "ll") -> str:
    return f"{value}{ending}" if value >= 0 else f"({value}{ending})"


def register_type(dtype: DType, index: str = INDEX) -> str:
    if dtype is dtypes.bool_:
        return "bool"
    if dtype.is_float:
        return "double" if dtype is dtypes.f64 else "float"
    word = index if dtype.bits == 64 else "int"
    return word if dtype.kind == "int" else f"unsigned {word}"


def memory_type(dtype: DType, index: str = INDEX) -> str:
    """The type of an element in memory: numbers of whole bytes, floats below 32 bits as their bits."""
    if dtype in (dtypes.f32, dtypes.f64):
        return register_type(dtype)
    word = _WORDS.get(8 * dtype.itemsize, index)
    return f"signed {word}" if dtype.kind == "int" else f"unsigned {word}"


def words_of(dtype: DType, values: Sequence[str]) -> list[str]:
    """Registers as words of memory, of f32 or i32, of floats of 16 bits or of bytes."""
    if dtype is dtypes.f32:
        return [f"__float_as_uint({value})" for value in values]
    if dtype is dtypes.i32:
        return [f"(unsigned){value}" for value in values]
    if dtype in WHOLE_BYTES:
        four = f"four_{dtype}" if dtype.is_float else "four_bytes"
        return [f"{four}({', '.join(values[i : i + 4])})" for i in range(0, len(values), 4)]
    return [f"pair_{dtype}({low}, {high})" for low, high in zip(values[::2], values[1::2])]


def _is_hardware_atomic(combine: str, dtype: DType) -> bool:
    """Integers of words alone: sums of floats would take subnormal numbers for zeros, and come in any order."""
    return dtype.is_integer and dtype.bits in (32, 64) and combine in ("add", "min", "max")


def _float(value: float) -> str:
    if math.isfinite(value):
        return f"{value!r}f" if math.copysign(1, value) > 0 else f"({value!r}f)"
    return f"__uint_as_float({struct.unpack('<I', struct.pack('<f', value))[0]}u)"


def _double(value: float) -> str:
    if math.isfinite(value):
        return f"{value!r}" if math.copysign(1, value) > 0 else f"({value!r})"
    return f"__longlong_as_double({struct.unpack('<q', struct.pack('<d', value))[0]}ll)"


def _bits(name: str, dtype: DType) -> str:
    return f"__double_as_longlong({name})" if dtype is dtypes.f64 else f"__float_as_int({name})"


def _float_instruction(kind: str, dtype: DType, names: Sequence[str]) -> str | None:
    suffix = "" if dtype is dtypes.f64 else "f"
    if kind in _WRAPPING:
        return f"{names[0]} {_WRAPPING[kind]} {names[1]}"
    if kind in _ROUNDING:
        return f"{_ROUNDING[kind]}{suffix}({names[0]})"
    match kind:
        case "div":
            return f"{names[0]} / {names[1]}"
        case "rem":
            return f"fmod{suffix}({names[0]}, {names[1]})"
        case "neg":
            return f"-{names[0]}"
        case "fma" | "copysign":
            return f"{kind}{suffix}({', '.join(names)})"
        case "min" | "max":
            return f"{kind}imum({names[0]}, {names[1]})"
    if INSTRUCTIONS[kind].transcendental and dtype is dtypes.f64:
        return f"{kind}({', '.join(names)})"
    return None


def _int_instruction(kind: str, dtype: DType, names: Sequence[str], index: str) -> str | None:
    """Integers wrap; division by zero gives 0; shifts by the width or more give 0, or the sign."""
    a, b = names[0], names[-1]
    if kind in _WRAPPING:
        if dtype.kind == "uint":
            return f"{a} {_WRAPPING[kind]} {b}"
        kinds = (index, f"unsigned {index}") if dtype.bits == 64 else ("int", "unsigned")
        return f"({kinds[0]})(({kinds[1]}){a} {_WRAPPING[kind]} ({kinds[1]}){b})"
    if kind in _BITS:
        return f"{a} {_BITS[kind]} {b}"
    match kind:
        case "not":
            return f"~{a}"
        case "neg":
            return f"negated({a})"
        case "abs":
            return a if dtype.kind == "uint" else f"{a} < 0 ? negated({a}) : {a}"
        case "min" | "max":
            return f"{kind}imum({a}, {b})"
        case "div":
            return f"quotient({a}, {b})"
        case "rem":
            return f"remainder_of({a}, {b})"
        case "shl" | "shr":
            return f"shifted_{'left' if kind == 'shl' else 'right'}<{dtype.bits}>({a}, {b})"
    return None
