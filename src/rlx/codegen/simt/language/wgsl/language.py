"""WGSL: registers have 32 bits, so 64-bit integers are pairs of words; memory is words that hold packed elements."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlx.codegen.simt.code import WORKGROUP, ZERO, Binding, Code, Record, Slot, int_literal
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.instructions import rounded, wrapped, write
from rlx.codegen.simt.language.wgsl.types import (
    atomic_type,
    element_words,
    is_narrow_float,
    is_wide,
    register_type,
)
from rlx.codegen.simt.registers import Reg
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr

if TYPE_CHECKING:
    from rlx.codegen.simt.body import Body


class Wgsl(Language):
    """The shading language of WebGPU."""

    name = "wgsl"

    def is_wide(self, dtype: DType) -> bool:
        return is_wide(dtype)

    def register_type(self, dtype: DType, wide: bool) -> str:
        return register_type(dtype, wide)

    def index(self, value: int) -> str:
        return int_literal(value)

    def constant(self, node: Expr) -> Reg:
        return constant(node)

    def lane_index(self) -> str:
        return "i32(lane)"

    def let(self, name: str, text: str) -> str:
        return f"let {name} = {text};"

    def variable(self, name: str, kind: str, value: str = "") -> str:
        return f"var {name}: {kind} = {value};" if value else f"var {name}: {kind};"

    def mutable(self, name: str, value: str) -> str:
        return f"var {name} = {value};"

    def array_variable(self, name: str, element: str, count: int) -> str:
        return f"var {name}: array<{element}, {count}>;"

    def array_of(self, name: str, element: str, values: Sequence[str]) -> str:
        return f"var {name} = array<{element}, {len(values)}>({', '.join(values)});"

    def select(self, condition: str, yes: str, no: str) -> str:
        return f"select({no}, {yes}, {condition})"

    def fma(self, a: str, b: str, c: str) -> str:
        return f"fma({a}, {b}, {c})"

    def rounded(self, dtype: DType, text: str) -> str:
        return rounded(dtype, text)

    def float_bits(self, text: str) -> str:
        return f"bitcast<u32>({text})"

    def opaque(self, reg: Reg) -> str:
        return f"bitcast<f32>(bitcast<u32>({reg.name}) | bitcast<u32>({ZERO}))"

    def write(self, code: Code, node: Expr, args: Sequence[Reg], fits: bool) -> Reg:
        return write(code, node, args, fits)

    @property
    def quad_type(self) -> str:
        return "vec4<f32>"

    def quad(self, parts: Sequence[str] = ()) -> str:
        return f"vec4<f32>({', '.join(parts)})"

    def quad_component(self, quad: str, number: int) -> str:
        return f"{quad}[{number}]"

    def quad_fma(self, factor: str, quad: str, addend: str) -> str:
        return f"fma(vec4<f32>({factor}), {quad}, {addend})"

    def record(self, slots: int, rounds: int = 0) -> Record:
        return Record(slots, rounds)

    def load(self, body: Body, slot: int, offset: str, guard: Reg | None = None) -> Reg:
        value = _load(body, slot, offset)
        if guard is None:
            return value
        # reading out of bounds is harmless in WGSL: it gives some element, or zero
        zero = constant(ex.const(0, value.dtype))
        zero = zero.widened() if value.wide else zero
        return value.like(body.code.let(f"select({zero.name}, {value.name}, {guard.name})"))

    def store(self, body: Body, slot: int, offset: str, value: Reg) -> None:
        _store(body, slot, offset, value)

    def load_quad(self, body: Body, slot: int, offset: str) -> str:
        return f"memory{body.slots[slot].quads}[({body.record.start(slot)} >> 2u) + {offset}]"

    def has_atomic(self, combine: str, dtype: DType) -> bool:
        """On whole words, which narrow integers and bools take; what a sum carries goes from one word to the other."""
        if dtype.is_float or combine == "mul":
            return False
        if combine == "add":
            return dtype.bits in (32, 64)
        return dtype.bits != 64

    def join(self, body: Body, slot: int, offset: str, combine: str, value: Reg) -> None:
        _join(body, slot, offset, combine, value)

    def shared_array(self, code: Code, dtype: DType, wide: bool, stem: str = "shared", count: int = WORKGROUP) -> str:
        """Bools lie there as u32: NVIDIA's driver loses them."""
        element = "u32" if dtype is dtypes.bool_ else register_type(dtype, wide)
        name = f"{stem}_{element}".replace("<", "_").replace(">", "")
        self.shared_variable(code, name, element, count)
        return name

    def shared_places(self, code: Code) -> str:
        self.shared_variable(code, "shared_place", "i32", WORKGROUP)
        return "shared_place"

    def shared_value(self, reg: Reg) -> str:
        return f"select(0u, 1u, {reg.name})" if reg.dtype is dtypes.bool_ else reg.name

    def from_shared(self, place: str, like: Reg) -> str:
        return f"{place} != 0u" if like.dtype is dtypes.bool_ else place

    def barrier(self) -> str:
        return "workgroupBarrier();"

    def from_neighbour(self, reg: Reg, mask: str) -> str:
        if reg.wide:
            return f"vec2<u32>({', '.join(f'subgroupShuffleXor({reg.name}.{part}, {mask})' for part in 'xy')})"
        if reg.dtype is dtypes.bool_:
            return f"subgroupShuffleXor(select(0u, 1u, {reg.name}), {mask}) != 0u"
        return f"subgroupShuffleXor({reg.name}, {mask})"

    def assemble(
        self, code: Code, record: Record, bindings: Sequence[Binding], name: str, positions_a_group: int,
        lanes: int = WORKGROUP,
    ) -> str:  # fmt: skip
        from rlx.codegen.simt.language.wgsl.shader import assemble  # its library is itself written in this language

        return assemble(code, record, bindings, name, positions_a_group)


WGSL = Wgsl()


def _load(body: Body, number: int, offset: str) -> Reg:
    """The element of a slot at an offset."""
    slot = body.slots[number]
    start, dtype = body.record.start(number), slot.dtype
    if slot.native:
        return Reg(body.code.let(f"f32(memory{slot.storage}[{start} + {offset}])"), dtype, False)
    if is_wide(dtype):
        at = body.code.let(f"{start} + {offset} * 2i", "at")
        return Reg(body.code.let(f"vec2<u32>({_word(slot, at)}, {_word(slot, f'{at} + 1i')})"), dtype, True)
    if slot.packed:
        return _load_packed(body, slot, start, offset)
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
    return Reg(body.code.let(text), dtype, False)


def _load_packed(body: Body, slot: Slot, start: str, offset: str) -> Reg:
    dtype = slot.dtype
    width = 8 * dtype.itemsize
    shift, mask = (2, 3) if width == 8 else (1, 1)
    word = _word(slot, f"{start} + ({offset} >> {shift}u)")
    place = f"u32(({offset} & {mask}i) * {width}i)"
    raw = body.code.let(f"({word} >> {place}) & {(1 << dtype.bits) - 1}u")  # bits above the width count for nothing
    if is_narrow_float(dtype):
        return Reg(body.code.let(f"decode_{dtype}({raw})"), dtype, False)
    if dtype.kind == "int":
        return Reg(body.code.let(wrapped(dtype, f"bitcast<i32>({raw})")), dtype, False)
    return Reg(body.code.let(f"{raw} != 0u") if dtype is dtypes.bool_ else raw, dtype, False)


def _store(body: Body, number: int, offset: str, value: Reg) -> None:
    """Writes an element, as a word or a half."""
    slot = body.slots[number]
    assert not slot.packed
    at = f"{body.record.start(number)} + {offset}"
    memory = f"memory{slot.storage}"
    if slot.native:
        body.code.emit(f"{memory}[{at}] = f16({value.name});")
        return
    if is_wide(slot.dtype):
        whole = value.widened()
        at = body.code.let(f"{body.record.start(number)} + {offset} * 2i", "at")
        name = whole.name if whole.name.isidentifier() else body.code.let(whole.name)
        body.code.emit(f"{memory}[{at}] = {name}.x;")
        body.code.emit(f"{memory}[{at} + 1i] = {name}.y;")
        return
    match slot.dtype.kind:
        case "bool":
            word = f"select(0u, 1u, {value.name})"
        case "uint":
            word = value.name
        case _:
            word = f"bitcast<u32>({value.name})"
    body.code.emit(f"{memory}[{at}] = {word};")


def _join(body: Body, number: int, offset: str, combine: str, value: Reg) -> None:
    """Joins an element with a value, by atomic instructions on its words."""
    code, slot = body.code, body.slots[number]
    words = element_words(slot.dtype)
    at = code.let(f"{body.record.start(number)} + {offset} * {words}i", "at")
    place = f"&memory{slot.storage}[{at}]"
    if words == 2:
        whole = code.let(value.widened().name)
        before = code.let(f"atomicAdd({place}, {whole}.x)")
        carry = code.let(f"select(0u, 1u, {before} + {whole}.x < {before})")
        code.emit(f"atomicAdd(&memory{slot.storage}[{at} + 1i], {whole}.y + {carry});")
        return
    text = f"select(0u, 1u, {value.name})" if slot.dtype is dtypes.bool_ else value.name
    text = text if atomic_type(slot.dtype) == slot.atomic else f"bitcast<{slot.atomic}>({text})"
    code.emit(f"atomic{combine.capitalize()}({place}, {text});")


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
