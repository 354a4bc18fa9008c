"""Texts that stand before kernels in C++ of GPUs: files of this folder, and conversions of small floats."""

from __future__ import annotations

from collections.abc import Collection
from importlib.resources import files

from rlx.codegen.scalar.small_floats import DTYPES as SMALL_FLOATS
from rlx.codegen.scalar.small_floats import bits_dtype, decode, encode
from rlx.codegen.simt.code import Code
from rlx.codegen.simt.language.cpp import Cpp
from rlx.codegen.simt.registers import Reg
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr

GPU = ("gpu.cuh", "gpu_arithmetic.cuh", "gpu_words.cuh")
"""Device functions of kernels in CUDA C++ and in HIP C++."""


def text_of(*names: str) -> str:
    """Files of this folder."""
    folder = files("rlx.codegen.simt.language")
    return "\n".join((folder / name).read_text() for name in names)


def conversions(language: Cpp, written: Collection[DType] = (), fours: Collection[DType] = (dtypes.f8e4m3,)) -> str:
    """Of all small floats: `decode_…` (bits to float), `encode_…` (float to bits) and `round_…`, of those of 16 bits
    `pair_…` (two floats to a word), and of `fours` `four_…` (four floats to a word). All but `round_…` are left out
    where `written` says they exist."""
    made = [_conversions(language, dtype, dtype in written) for dtype in SMALL_FLOATS]
    return "\n".join([*made, *map(_four, fours)])


def _four(dtype: DType) -> str:
    bytes_of = ", ".join(f"encode_{dtype}({x})" for x in "abcd")
    head = f"__device__ __forceinline__ unsigned four_{dtype}(float a, float b, float c, float d)"
    return f"{head} {{ return four_bytes({bytes_of}); }}\n"


def _conversions(language: Cpp, dtype: DType, written: bool) -> str:
    kind = f"__device__ __forceinline__ float round_{dtype}(float x) {{ return decode_{dtype}(encode_{dtype}(x)); }}\n"
    if written:
        return kind
    held, x = bits_dtype(dtype), Expr("register", dtypes.f32, (), "x")
    up = _function(language, f"decode_{dtype}", held, "float", decode(Expr("register", held, (), "x"), dtype))
    down = _function(language, f"encode_{dtype}", dtypes.f32, "unsigned", encode(x, dtype))
    pair = f"__device__ __forceinline__ unsigned pair_{dtype}(float low, float high) {{"
    pair += f" return encode_{dtype}(low) | encode_{dtype}(high) << 16; }}\n"
    return f"{up}\n{down}\n{kind}{pair if dtype.bits == 16 else ''}"


def _function(language: Cpp, name: str, parameter: DType, result: str, body: Expr) -> str:
    from rlx.codegen.scalar.int_ranges import Ranges
    from rlx.codegen.simt.body import Body, legal

    code = Code(language)
    writer = Body(code, language.record(0), (), Ranges())
    writer.remember(Expr("register", parameter, (), "x"), Reg("x", parameter, False))
    value = writer.gen(legal(body)).name
    head = f"__device__ __forceinline__ {result} {name}({language.register_type(parameter, False)} x) {{"
    return "\n".join([head, *code.lines, f"  return {value};", "}"])
