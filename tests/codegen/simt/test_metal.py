"""Metal's language: kernels keep to its types and address spaces, as far as a clang can tell, and give right values as
C++.

`python -m tools.check_metal` takes all cases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from codegen.simt.kernel_cases import KernelCase, kernel_cases
from ops.case import Case
from ops.cases import cases_of_every_op
from rlx import ops
from rlx.backends.apple_gpu.build import APPLES
from rlx.codegen.simt.code import Code
from rlx.codegen.simt.language import metal
from rlx.codegen.simt.module import CppModule, cpp_module
from rlx.errors import CompileError
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import EXACT
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.irregular import BitonicSort
from rlx.kernel.ir.program import leaves
from support import assert_close
from tools import compile_metal, emulate_cuda
from tools.check_cuda import Lowered, lowered, run
from tools.emulate_cuda import Emulator

EVERY = 60
"""Of so many cases of ops one is run."""

needs_clang = pytest.mark.skipif(bool(compile_metal.why_absent()), reason=compile_metal.why_absent())
needs_cpp = pytest.mark.skipif(bool(emulate_cuda.why_absent()), reason=emulate_cuda.why_absent())


@dataclass(frozen=True)
class Given(KernelCase):
    """With arrays of its own."""

    given: tuple[Array, ...]

    @property
    def arrays(self) -> tuple[Array, ...]:
        return self.given


def made(cases: Sequence[Case | KernelCase]) -> tuple[list[Lowered], CppModule]:
    items = [item for item in lowered(cases, APPLES) if isinstance(item, Lowered)]
    assert items
    return items, cpp_module((item.program for item in items), target=APPLES.target)


def one(graph: Graph) -> tuple[Lowered, CppModule]:
    items, module = made([KernelCase(graph, {}, EXACT)])
    return items[0], module


def a_case_of_every_op() -> list[Case]:
    """Of f64 there are none."""
    cases: dict[str, Case] = {}
    for case in cases_of_every_op():
        if not any(array.dtype == np.float64 for array in case.arrays):
            cases.setdefault(case.op.name, case)
    return list(cases.values())


@needs_clang
def test_a_case_of_every_op_keeps_to_address_spaces() -> None:
    items, module = made(a_case_of_every_op())
    assert len(items) > 100
    compile_metal.check(module.text)


@needs_clang
def test_kernels_of_many_blocks_keep_to_address_spaces() -> None:
    items, module = made([*kernel_cases()])
    kinds = {type(kernel.work) for item in items for kernel in leaves(item.program.main)}
    assert kinds >= {Contraction, FusedAttention, SplitKvPartial, SplitKvCombine, BitonicSort}
    compile_metal.check(module.text)


@needs_clang
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("float* p = slot1;", "cannot initialize a variable of type '__private float"),
        ("threadgroup float* p = slot0;", "cannot initialize a variable of type '__local float"),
        ("slot0[0] = nothing;", "undeclared identifier 'nothing'"),
        ("slot1[0] = 0.0f;", "not assignable"),
        ("atomicAdd(&lane_number, 1u);", "no matching function"),
        ("metal::threadgroup_barrier();", "too few arguments"),
    ],
)
def test_what_points_elsewhere_is_told(line: str, told: str) -> None:
    graph = Graph("map")
    graph.output(ops.exp(graph.input("x", (5,))))
    text = one(graph)[1].text
    compile_metal.check(text)
    wrong = text.replace("  const long position", f"  {line}\n  const long position", 1)
    assert wrong != text
    with pytest.raises(CompileError, match=rf"\[apple-gpu\] (.|\n)*{re.escape(told)}"):
        compile_metal.check(wrong)


@needs_cpp
@pytest.mark.parametrize("first", [0, 15, 30, 45])
def test_a_sample_of_op_cases_is_right(first: int) -> None:
    check(cases_of_every_op()[first::EVERY])


@needs_cpp
@pytest.mark.parametrize(
    "kind", ["scattered", "sums", "sorted", "reduced", "turned", "teams f32", "windows", "one query", "halves"]
)
def test_kernels_of_many_blocks_are_right(kind: str) -> None:
    check([case for case in kernel_cases() if kind in str(case)])


def check(cases: Sequence[Case | KernelCase]) -> None:
    items, module = made(cases)
    emulator = Emulator()
    loaded = emulator.load(emulator.compile(module.text, module.kernels))
    for item in items:
        if any(kernel.work.owns_kernels for kernel in item.program.main):
            continue
        for result, expected in zip(run(emulator, loaded, module, item), item.case.reference(), strict=True):
            assert_close(result, expected, item.tolerance)


@needs_cpp
@pytest.mark.parametrize("dtype", ["i64", "u64"])
def test_sums_of_two_words_carry(dtype: str) -> None:
    """Many lanes add to one place, each more than a word holds, or less than nothing."""
    graph = Graph("sums")
    start, at = graph.input("x", (17,), dtype), graph.input("at", (900, 1), "i32")
    updates = graph.input("updates", (900,), dtype) * 3_000_000_019
    graph.output(ops.scatter_nd(start, at, updates, combine="add"))
    case = KernelCase(graph, {}, EXACT)
    assert "atomicAdd((device unsigned long*)" in made([case])[1].text
    check([case])


@needs_cpp
def test_remainders_of_floats_are_exact() -> None:
    """Of any two floats, subnormal and infinite ones among them."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, (2, 4000), np.uint32)
    bits[:, :1000] &= 0x807FFFFF  # subnormal numbers and zeros
    bits[1, 1000:2000] = (bits[0, 1000:2000] & 0xFF800000) - (3 << 23) | bits[1, 1000:2000] & 0x7FFFFF
    bits[1, :9] = 0
    x, y = bits.view(np.float32)
    graph = Graph("rem")
    graph.output(ops.rem(graph.input("x", x.shape), graph.input("y", y.shape)))
    (item,), module = made([Given(graph, {}, EXACT, (x, y))])
    assert any("fmodf(" in text for text in module.kernels.values())
    emulator = Emulator()
    (result,) = run(emulator, emulator.load(emulator.compile(module.text, module.kernels)), module, item)
    with np.errstate(invalid="ignore"):
        expected = np.fmod(x, y)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(result), ~numbers)
    np.testing.assert_array_equal(result.view(np.uint32)[numbers], expected.view(np.uint32)[numbers])


def test_f64_is_refused_by_name() -> None:
    assert metal.why_unsupported(dtypes.f64) == "Metal has no f64"
    for dtype in (dtypes.f32, dtypes.bf16, dtypes.f16, dtypes.i64, dtypes.u8, dtypes.bool_):
        assert metal.why_unsupported(dtype) is None
    graph = Graph("copied")
    graph.output(ops.transpose(graph.input("x", (3, 4), "f64"), permutation=(1, 0)))
    (told,) = lowered([KernelCase(graph, {}, EXACT)], APPLES)
    assert isinstance(told, str) and "Metal has no f64" in told


def sum_of(count: int) -> KernelCase:
    """One kernel of so many operands."""
    graph = Graph("sum")
    total = graph.input("x", (3,))
    for number in range(1, count):
        total = total + graph.input(f"x{number}", (3,)) * float(number)
    graph.output(total)
    return KernelCase(graph, {}, EXACT)


@needs_cpp
@pytest.mark.parametrize("count", [29, 30, 40])
def test_a_kernel_has_at_most_so_many_buffers(count: int) -> None:
    """Of the operands behind the others the places are in one of them."""
    case = sum_of(count)
    (text,) = made([case])[1].kernels.values()
    assert text.count("[[buffer(") == min(count + 2, metal.BUFFERS)
    assert text.count("far[") == (0 if count == 29 else count - 28)
    check([case])


@needs_clang
def test_places_of_operands_keep_to_address_spaces() -> None:
    compile_metal.check(made([sum_of(40)])[1].text)


def test_a_kernel_has_so_much_workgroup_memory() -> None:
    code = Code(metal.METAL)
    metal.METAL.shared_variable(code, "tile", "float4", 2047)
    metal.METAL.shared_variable(code, "places", "long", 2)
    assert "  threadgroup float4 tile[2047];" in metal.METAL.body(code, "block", 64)
    metal.METAL.shared_variable(code, "flags", "bool", 1)
    with pytest.raises(CompileError, match="expected at most 32768 bytes of workgroup memory, got 32769"):
        metal.METAL.body(code, "block", 64)


def test_nothing_is_said_in_words_of_other_makers() -> None:
    """No types that Metal has not, and no words of CUDA C++."""
    _, module = made([*kernel_cases(), *a_case_of_every_op()])
    for word in ("long long", "double", "0ll", "__shared__", "__syncthreads", "Idx.", "__restrict__", "asm", "mma_"):
        assert word not in module.text, word


def test_kernels_say_what_sums_may_be() -> None:
    """NaN and infinities count, and nothing is fused that is not said to be."""
    assert "\n#pragma METAL fp math_mode(safe)\n" in metal.prelude()
    assert "\n#pragma clang fp contract(off)\n" in metal.prelude()
