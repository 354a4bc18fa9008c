"""Functions between f32 and the bits of narrow floats, rendered from `codegen/scalar/small_floats.py`."""

from __future__ import annotations

from rlx.codegen.scalar.int_ranges import Ranges
from rlx.codegen.scalar.small_floats import DTYPES, bits_dtype, decode, encode
from rlx.codegen.simt.body import Body, legal
from rlx.codegen.simt.code import Code, Record
from rlx.codegen.simt.language.wgsl.language import WGSL
from rlx.codegen.simt.registers import Reg
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr


def _function(name: str, parameter: DType, kind: str, result: str, body: Expr, leaf: Expr) -> str:
    code = Code(WGSL)
    writer = Body(code, Record(0), (), Ranges())
    writer.remember(leaf, Reg("x", parameter, False))
    value = writer.gen(legal(body)).name
    return "\n".join([f"fn {name}(x: {kind}) -> {result} {{", *code.lines, f"  return {value};", "}"])


def _functions(dtype: DType) -> dict[str, str]:
    """`decode_…` (u32 bits to f32), `encode_…` (f32 to u32 bits) and `round_…` (f32 to f32) of a narrow float."""
    held = bits_dtype(dtype)
    bits = Expr("register", held, (), "x")
    number = Expr("register", dtypes.f32, (), "x")
    down, up = f"encode_{dtype}", f"decode_{dtype}"
    return {
        up: _function(up, held, "u32", "f32", decode(bits, dtype), bits),
        down: _function(down, dtypes.f32, "f32", "u32", encode(number, dtype), number),
        f"round_{dtype}": f"fn round_{dtype}(x: f32) -> f32 {{\n  return {up}({down}(x));\n}}",
    }


NATIVE = {"round_f16": "fn round_f16(x: f32) -> f32 {\n  return f32(f16(x));\n}"}
"""Functions for devices that have f16."""

FUNCTIONS: dict[str, str] = {name: text for dtype in DTYPES for name, text in _functions(dtype).items()}
