"""Products of bytes on every instruction set: u8 by i8 with sums in i32 are exact, whatever the shape."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa, jit
from rlx.codegen.simd import gemm
from rlx.codegen.simd.microkernels import BYTES
from rlx.codegen.simd.module import generate
from rlx.ir.dtype import parse
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise
from support import backend, run_on

from .test_compiled import ISAS

KINDS = ["cpu", *(f"cpu-{name}" for name in ISAS)]
SHAPES = [(1, 1, 1), (1, 4, 16), (5, 37, 19), (7, 3, 5), (16, 384, 50), (33, 130, 100), (3, 2, 49), (130, 67, 97)]


def whole(kind: str, *shape: int, seed: int = 0) -> Any:
    info = np.iinfo(parse(kind).numpy)
    random = np.random.default_rng(seed)
    return random.integers(info.min, info.max, shape, endpoint=True).astype(parse(kind).numpy)


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape: tuple[int, int, int], device: str) -> None:
    m, k, n = shape
    g = Graph()
    x, w = g.input("x", ("rows", k), "u8"), g.param("w", (k, n), "i8")
    total = ops.dot_general(x, w, lhs_contract=(1,), rhs_contract=(0,), sum_dtype="i32")
    g.output(total.cast("f32") * 0.5 + 1.0, name="y")
    a, b = whole("u8", m, k), whole("i8", k, n, seed=1)
    expected = (a.astype(np.int32) @ b.astype(np.int32)).astype(np.float32) * np.float32(0.5) + np.float32(1)
    np.testing.assert_array_equal(run_on(device, g, {"x": a}, {"w": b})["y"], expected)


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("a, b", [(255, -128), (255, 127), (128, -128)])
def test_the_greatest_bytes_do_not_saturate(a: int, b: int, device: str) -> None:
    g = Graph()
    x, w = g.input("x", (9, 1026), "u8"), g.param("w", (1026, 33), "i8")
    g.output(ops.dot_general(x, w, lhs_contract=(1,), rhs_contract=(0,), sum_dtype="i32"), name="y")
    feed, weight = np.full((9, 1026), a, np.uint8), np.full((1026, 33), b, np.int8)
    assert (run_on(device, g, {"x": feed}, {"w": weight})["y"] == 1026 * a * b).all()


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("channels", [1, 3, 4, 6, 16])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions(channels: int, stride: int, device: str) -> None:
    """Windows whose columns and channels make one run, and runs with a rest beyond their groups of four."""
    g = Graph()
    x = g.input("x", (2, channels, 7, 9), "u8")
    w = g.param("w", (20, channels, 3, 2), "i8")
    sizes = {"strides": (stride, 1), "dilations": (1, 1), "low": (1, 0), "high": (1, 1)}
    zero = (g.constant(np.uint8(77)), g.constant(np.int8(0)))
    g.output(ops.integer_conv(x, w, *zero, **sizes), name="y")
    a, b = whole("u8", 2, channels, 7, 9), whole("i8", 20, channels, 3, 2, seed=1)
    expected = g.outputs["y"].op.reference(a, b, np.uint8(77), np.int8(0))
    np.testing.assert_array_equal(run_on(device, g, {"x": a}, {"w": b})["y"], expected)


def disassembled(level: isa.Isa) -> str:
    """The assembly of a product of bytes."""
    g = Graph()
    x, w = g.input("x", (16, 64), "u8"), g.param("w", (64, 32), "i8")
    g.output(ops.dot_general(x, w, lhs_contract=(1,), rhs_contract=(0,), sum_dtype="i32"), name="y")
    program, bounds = build.program_of(g, level, Options())
    texts = generate(program, level, bounds, set(), reuse=True)
    machine = jit._machine(level, 2)
    return "\n".join(machine.emit_assembly(llvm.parse_assembly(text, llvm.create_context())) for text in texts)


def test_a_level_by_name_has_no_instructions_beyond_it() -> None:
    """So `cpu-avx2` is what a machine without AVX-512 runs, `cpu-avx512` what one without VNNI does."""
    for name in ISAS:
        level = isa.forced(name)
        text = disassembled(level)
        assert "pmaddwd" in text or level.triple_arch != "x86_64"
        assert "vpdpbusd" not in text
        assert ("%zmm" in text) == (name == "avx512")
    widest = isa.widest()
    assert ("vpdpbusd" in disassembled(widest)) == (widest.byte_products == "fours")


def test_neon_code_is_made() -> None:
    target = isa.forced("neon", for_codegen_only=True)
    assert target.byte_products == "" and target.byte_rows < target.gemm_rows


def test_bytes_take_the_core_for_bytes() -> None:
    g = Graph()
    x, w = g.input("x", ("rows", 64), "i8"), g.param("w", (64, 32), "u8")
    zero = (g.constant(np.int8(3)), g.constant(np.uint8(128)))
    g.output(ops.integer_matmul(x, w, *zero))
    program = to_kernels(optimise(g)[0])
    (work,) = [k.work for k in program.main if isinstance(k.work, Contraction)]
    assert gemm.form_of(work, isa.widest()) is BYTES
    assert backend("cpu").unsupported(g) == []
