"""CUDA C++: the kernels of op cases compile, each for one of the architectures, without a GPU or a driver.

`python -m tools.check_cuda` compiles all of them for all architectures, and runs them where there is a GPU.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from codegen.simt.kernel_cases import kernel_cases
from ops.cases import cases_of_every_op
from rlx import ops
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.build import program_of
from rlx.codegen.simt import team_layouts
from rlx.codegen.simt.language.cuda import prelude
from rlx.codegen.simt.module import cpp_kernel, cpp_module
from rlx.codegen.simt.piece_rows import NEIGHBOURS
from rlx.errors import CompileError, RlxError
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.irregular import BitonicSort, Scatter
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import leaves
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise
from support import commit_number, cubin

GROUPS = 6
EVERY = 3
"""One case of so many compiles, others at each commit."""

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.why_absent()), reason=nvrtc.why_absent())


@needs_nvrtc
@pytest.mark.parametrize("group", range(GROUPS))
def test_kernels_of_op_cases_compile(group: int) -> None:
    programs = []
    for case in cases_of_every_op()[commit_number() % EVERY :: EVERY][group::GROUPS]:
        try:
            program = program_of(case.graph())
            cpp_module([program])
        except RlxError as refused:
            assert any(a.dtype.kind == "c" for a in (*case.arrays, *case.reference())), f"{case}: {refused}"
            continue
        programs.append(program)
    assert len(programs) > 100
    architecture = nvrtc.ARCHITECTURES[group % len(nvrtc.ARCHITECTURES)]
    assert cubin(cpp_module(programs).text, architecture).startswith(b"\x7fELF")


@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_a_norm_and_a_product_compile_everywhere(architecture: str, dtype: str) -> None:
    graph = Graph("everywhere")
    x = graph.input("x", ("n", 64), dtype)
    graph.output(ops.softmax(x @ graph.param("w", (64, 300), dtype), axis=-1), ops.cumsum(x, axis=0))
    assert cubin(cpp_module([program_of(graph)]).text, architecture)


def test_products_are_quads_in_registers() -> None:
    """Of packed weights, read as quads; sums of f64, which no quad holds, are plain nests, and sums that are too short
    for slices are blocks of one lane each."""
    graph = Graph("product")
    x, odd = graph.input("x", ("n", 64)), graph.input("odd", ("n", 63))
    short = graph.input("short", ("n", 8)) @ graph.param("u", (8, 300))
    graph.output(x @ graph.param("w", (64, 300)), x.cast("f64") @ graph.param("v", (64, 300), "f64"), short)
    graph.output(odd @ graph.param("t", (63, 300)))
    module = cpp_module([program_of(graph)])
    assert len(re.findall(r"\(\(const float4\*\)slot\d\)\[", module.text)) >= 2
    assert len(re.findall(r"float results\[16\] = \{total0\.x, total0\.y, ", module.text)) == 1
    assert len(re.findall(r"\[.*\] = total0\.x;", module.text)) == 2


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_products_of_halves_are_those_of_matrix_units(dtype: str) -> None:
    """Few rows share the sum among more warps than many do; panels are read by whole warps. Weights of few rows come to
    workgroup memory, and both sides of many."""
    slices = []
    for rows in (1, 16, 4096):
        graph = Graph("product")
        graph.output(graph.input("x", (rows, 512), dtype) @ graph.param("w", (512, 384), dtype))
        program = program_of(graph)
        module = cpp_module([program])
        (kernel,) = [kernel for kernel in leaves(program.main) if isinstance(kernel.work, Contraction)]
        variant = module.variant(kernel, {})
        text = module.kernels[variant.name]
        assert f"mma_{dtype}(sums[" in text and "copy_ahead(" in text
        assert (kernel.work.packed, kernel.work.group) == (8, 32)
        schedule = variant.shader.schedule
        assert schedule.mma == (16, 8, 16)
        slices.append(team_layouts.layout_of(kernel.work).warps[2])
    assert slices[0] >= slices[1] > slices[2] == 1


def test_products_of_open_numbers_of_rows_have_a_variant_for_few() -> None:
    graph = Graph("product")
    graph.output(graph.input("x", ("batch", "n", 512), "f16") @ graph.param("w", (512, 1536), "f16"))
    program = program_of(graph)
    module = cpp_module([program])
    (kernel,) = [kernel for kernel in leaves(program.main) if isinstance(kernel.work, Contraction)]
    batches = (0, 1, 2, 4, 5, 24, 25, 128, 129, 2000)
    chosen = [module.variant(kernel, {"batch": batch, "n": 8}).name for batch in batches]
    assert all(chosen[i] == chosen[i + 1] for i in range(0, 10, 2)) and len(set(chosen)) == 5


def test_products_without_rows_have_a_layout() -> None:
    graph = Graph("product")
    graph.output(graph.input("x", (0, 64)) @ graph.param("w", (64, 32)))
    assert cpp_module([program_of(graph)]).kernels


def test_cases_of_many_blocks_have_every_kind_of_kernel() -> None:
    programs = [program_of(case.graph()) for case in kernel_cases()]
    kinds = {type(kernel.work) for program in programs for kernel in leaves(program.main)}
    assert kinds >= {Contraction, FusedAttention, SplitKvPartial, SplitKvCombine, BitonicSort}


@needs_nvrtc
@pytest.mark.parametrize("number", range(len(nvrtc.ARCHITECTURES)))
def test_kernels_of_many_blocks_compile(number: int) -> None:
    """Each for one of the architectures, at the next commits for the others."""
    turn = (number + commit_number()) % len(nvrtc.ARCHITECTURES)
    programs = [program_of(case.graph()) for case in list(kernel_cases())[turn :: len(nvrtc.ARCHITECTURES)]]
    assert cubin(cpp_module(programs).text, nvrtc.ARCHITECTURES[number])


def test_a_record_has_a_place_for_every_number_of_a_launch() -> None:
    rounds = 0
    for case in kernel_cases():
        program = program_of(case.graph())
        for kernel in leaves((*program.prepare, *program.main)):
            shader = cpp_kernel(program, kernel, "f")
            brought = shader.rounds.numbers if shader.rounds else 0
            rounds += brought > 0
            count = int(re.findall(r"Record<(\d+)> record", shader.text)[0])
            own = max(brought + len(shader.numbers), 1)
            assert count == own + shader.later
            used = {int(place) for place in re.findall(r"record\.dims\[(\d+)\]", shader.text)}
            assert used <= {*range(brought + len(shader.numbers)), *range(own, count)}
    assert rounds


def test_transposes_go_through_shared_memory() -> None:
    """Unless squares would be mostly empty."""
    graph = Graph("turned")
    graph.output(ops.exp(graph.input("x", (100, "n")).T), ops.exp(graph.input("few", (100, 3)).T))
    text = cpp_module([program_of(graph)]).text
    assert text.count("__shared__ float square0_float[1056];") == 1
    assert text.count("__syncthreads();") == 1


def scatters(dtype: str, combine: str | None, length: int | str) -> tuple[list[Scatter], list[Store], str]:
    """The scatters that a long one becomes, the stores under a guard, and their text."""
    graph = Graph("scatter")
    x, at = graph.input("x", (50,), dtype), graph.input("at", (length, 1), "i32")
    graph.output(ops.scatter_nd(x, at, graph.input("updates", (length,), dtype), combine=combine))
    program = program_of(graph)
    works = [kernel.work for kernel in program.main if isinstance(kernel.work, Scatter)]
    nests = [kernel.work for kernel in program.main if isinstance(kernel.work, LoopNest)]
    writes = [store for nest in nests for store in nest.stores() if store.guard is not None]
    return works, writes, cpp_module([program]).text.removeprefix(prelude())


def test_positions_of_updates_have_64_bits_unless_fewer_count_them() -> None:
    for length, dtype in ((3000, dtypes.i32), (1 << 31, dtypes.i32), ((1 << 31) + 1, dtypes.i64), ("m", dtypes.i64)):
        (find,), (write,), _ = scatters("f32", None, length)
        assert find.atomic and find.body.dtype is dtype and write.body.dtype is dtypes.f32


@pytest.mark.parametrize(
    ("dtype", "combine", "instruction"),
    [
        ("i32", "add", "atomicAdd((signed int*)"),
        ("i64", "add", "atomicAdd((unsigned long long*)"),
        ("u64", "max", "atomicMax((unsigned long long*)"),
        ("i64", "min", "atomicMin((signed long long*)"),
        ("i64", "mul", "Exchange<signed long long>"),
        ("u8", "add", "Exchange<unsigned char>"),
        ("f32", "max", "atomicMax((signed int*)"),
        ("f64", "min", "atomicMin((signed long long*)"),
        ("f16", "add", "atomicAdd((unsigned long long*)"),
        ("f32", "add", "atomicAdd((unsigned long long*)"),
        ("f64", "add", ""),
        ("f32", "mul", ""),
    ],
)
def test_updates_are_joined_where_their_order_does_not_show(dtype: str, combine: str, instruction: str) -> None:
    """By instructions on integers, never by those on floats; in order where there is no way to make it the same."""
    works, _, text = scatters(dtype, combine, 3000)
    assert all(work.atomic == bool(instruction) for work in works)
    assert instruction in text and "(float*)" not in text and "(double*)" not in text
    assert ("atomic" in text or "Exchange" in text) == bool(instruction)


def test_lanes_of_a_warp_exchange_what_they_have() -> None:
    """Bools as integers."""
    text = "".join(cpp_module([program_of(case.graph())]).text for case in kernel_cases())
    body = text[text.index("__global__") :]
    assert "__shfl_xor_sync(0xffffffffu, held" in body and "__shfl_xor_sync(0xffffffffu, (int)held" in body
    assert "subgroupShuffleXor" not in body and "workgroupBarrier" not in body


def test_equal_kernels_are_one_function() -> None:
    graph = Graph("equal")
    x, y = graph.input("x", ("n", 64)), graph.input("y", ("n", 64))
    graph.output(ops.exp(x), ops.exp(y))
    module = cpp_module([to_kernels(optimise(graph)[0])])
    assert len(module.variants) == 2 and len(module.kernels) == 1
    assert len(re.findall("__global__", module.text)) == 1


def test_indices_have_64_bits() -> None:
    """2^33 elements: an index of 32 bits would come around."""
    graph = Graph("large")
    graph.output(ops.exp(graph.input("x", (1 << 33,), "f16")))
    text = cpp_module([program_of(graph)]).text
    assert "const long long position = (long long)blockIdx.x * blockDim.x + threadIdx.x;" in text
    assert f"if (position >= {(1 << 33) // NEIGHBOURS}ll) {{ follow(); return; }}" in text
    assert f"const auto k1 = piece * {NEIGHBOURS}ll;" in text


def test_complex_numbers_are_refused_by_name() -> None:
    graph = Graph("complex")
    graph.output(graph.input("x", (3,), "c64") + graph.input("y", (3,), "c64"))
    with pytest.raises(CompileError, match=r"\[add\] expected real numbers, got complex ones, at add"):
        cpp_module([program_of(graph)])


@needs_nvrtc
def test_what_does_not_compile_says_where() -> None:
    with pytest.raises(CompileError, match=r'\[cuda\] wrong.cu for sm_80: .*identifier "nothing" is undefined'):
        nvrtc.compile_cubin("__global__ void f(int* p) { *p = nothing; }", "sm_80", "wrong.cu")


@needs_nvrtc
def test_literals_have_the_type_of_their_element() -> None:
    """Functions of two numbers, such as a minimum, take those of one type."""
    graph = Graph("ends")
    for dtype in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"):
        ends = np.iinfo(dtypes.parse(dtype).numpy)
        x = graph.input(dtype, (3,), dtype)
        for number in (ends.min, ends.max):
            graph.output(ops.minimum(ops.maximum(x, graph.constant(np.array(number, ends.dtype))), x + x))
    assert cubin(cpp_module([program_of(graph)]).text, "sm_90a")


def test_literals_keep_their_bits() -> None:
    from rlx.codegen.simt.language.cuda import CUDA
    from rlx.ir import expr as ex

    written = {
        (np.float32(0.1), dtypes.f32): "0.10000000149011612f",
        (-0.0, dtypes.f64): "(-0.0)",
        (float("inf"), dtypes.f32): "__uint_as_float(2139095040u)",
        (-(1 << 63), dtypes.i64): "(-9223372036854775807ll - 1ll)",
        (-(1 << 31), dtypes.i32): "(-2147483647 - 1)",
        ((1 << 64) - 1, dtypes.u64): "18446744073709551615ull",
        (-5, dtypes.i8): "(-5)",
    }
    for (value, dtype), text in written.items():
        assert CUDA.constant(ex.const(value, dtype)).name == text
