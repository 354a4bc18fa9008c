"""HIP C++: kernels compile for AMD's GPUs without ROCm, and give right values as C++, with wavefronts of 64 and 32.

`python -m tools.check_rocm` takes all cases, for all architectures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from codegen.simt.kernel_cases import KernelCase, kernel_cases
from ops.case import Case
from ops.cases import cases_of_every_op
from rlx import ops
from rlx.backends.rocm.build import AMDS
from rlx.codegen.simt.language import hip
from rlx.codegen.simt.module import CppModule, cpp_module
from rlx.errors import CompileError
from rlx.ir.graph import Graph
from rlx.ir.op import EXACT
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.irregular import BitonicSort
from rlx.kernel.ir.program import leaves
from support import assert_close, commit_number
from tools import compile_hip, emulate_cuda
from tools.check_cuda import Lowered, lowered, run
from tools.check_rocm import WAVEFRONTS, missing
from tools.compile_hip import ARCHITECTURES, compile_object, symbols
from tools.emulate_cuda import Emulator

EVERY = 60
"""Of so many cases of ops one is run."""

needs_clang = pytest.mark.skipif(bool(compile_hip.why_absent()), reason=compile_hip.why_absent())
needs_cpp = pytest.mark.skipif(bool(emulate_cuda.why_absent()), reason=emulate_cuda.why_absent())


def made(cases: Sequence[Case | KernelCase]) -> tuple[list[Lowered], CppModule]:
    items = [item for item in lowered(cases, AMDS) if isinstance(item, Lowered)]
    assert items
    return items, cpp_module((item.program for item in items), target=AMDS.target)


def module_of(graph: Graph) -> CppModule:
    return made([KernelCase(graph, {}, EXACT)])[1]


@needs_clang
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_case_of_every_op_compiles(architecture: str) -> None:
    """Another one for each architecture."""
    cases: dict[str, list[Case]] = {}
    for case in cases_of_every_op():
        cases.setdefault(case.op.name, []).append(case)
    turn = ARCHITECTURES.index(architecture)
    items, module = made([each[turn % len(each)] for each in cases.values()])
    assert len(items) > 100
    assert not missing(module, compile_object(module.text, architecture))


@needs_clang
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_of_many_blocks_compile(architecture: str) -> None:
    """Each for one of the architectures, at the next commits for the others."""
    turn = (ARCHITECTURES.index(architecture) + commit_number()) % len(ARCHITECTURES)
    _, module = made([*kernel_cases()][turn :: len(ARCHITECTURES)])
    assert not missing(module, compile_object(module.text, architecture))


def test_kernels_of_many_blocks_are_of_all_kinds() -> None:
    kinds = {type(kernel.work) for item in made([*kernel_cases()])[0] for kernel in leaves(item.program.main)}
    assert kinds >= {Contraction, FusedAttention, SplitKvPartial, SplitKvCombine, BitonicSort}


@needs_clang
@pytest.mark.parametrize(("architecture", "lanes"), [("gfx90a", 64), ("gfx942", 64), ("gfx1100", 32)])
def test_wavefronts_are_those_of_the_architecture(architecture: str, lanes: int) -> None:
    """By what objects tell the driver, a map of MessagePack."""
    graph = Graph("norm")
    graph.output(ops.softmax(graph.input("x", (4, 5000)), axis=-1))
    module = module_of(graph)
    assert "neighbour(" in module.text
    told = compile_object(module.text, architecture).split(b".wavefront_size")[1:]
    assert told and all(after[0] == lanes for after in told)


@needs_clang
def test_functions_of_the_library_alone_are_left_open() -> None:
    graph = Graph("f64")
    graph.output(ops.erf(ops.exp(graph.input("x", (5,), "f64"))))
    module = module_of(graph)
    code = compile_object(module.text, "gfx90a")
    assert symbols(code)[1] == {"__ocml_exp_f64", "__ocml_erf_f64"} and not missing(module, code)
    (name,) = module.kernels
    wrong = module.text.replace("__ocml_##name", "open_##name")
    assert missing(module, compile_object(wrong, "gfx90a")) == {"open_exp_f64", "open_erf_f64"}
    assert missing(module, compile_object(hip.prelude(), "gfx90a")) == {name}


@needs_clang
def test_what_does_not_compile_says_where() -> None:
    with pytest.raises(CompileError, match=r"\[rocm\] gfx90a: .*undeclared identifier 'nothing'"):
        compile_object("__attribute__((global)) void f(int* p) { *p = nothing; }", "gfx90a")


def test_objects_of_other_machines_are_refused() -> None:
    with pytest.raises(ValueError, match="expected an object for AMD's GPUs"):
        symbols(b"\x7fELF\x02\x01" + bytes(58))


@needs_cpp
@pytest.mark.parametrize("lanes", WAVEFRONTS)
@pytest.mark.parametrize("first", [0, 20, 40])
def test_a_sample_of_op_cases_is_right(first: int, lanes: int) -> None:
    check(cases_of_every_op()[first::EVERY], lanes)


@needs_cpp
@pytest.mark.parametrize("lanes", WAVEFRONTS)
@pytest.mark.parametrize(
    "kind", ["scattered", "sums", "sorted", "reduced", "turned", "products", "one query", "halves"]
)
def test_kernels_of_many_blocks_are_right(kind: str, lanes: int) -> None:
    check([case for case in kernel_cases() if kind in str(case)], lanes)


def check(cases: Sequence[Case | KernelCase], lanes: int) -> None:
    items, module = made(cases)
    emulator = Emulator(lanes)
    loaded = emulator.load(emulator.compile(module.text, module.kernels))
    for item in items:
        if any(kernel.work.owns_kernels for kernel in item.program.main):
            continue
        for result, expected in zip(run(emulator, loaded, module, item), item.case.reference(), strict=True):
            assert_close(result, expected, item.tolerance)


@needs_cpp
def test_sums_of_lanes_know_how_long_wavefronts_are() -> None:
    """A kernel that takes wavefronts for longer than they are is wrong."""
    graph = Graph("sum")
    graph.output(ops.reduce_sum(graph.input("x", (2, 5000)), axis=1))
    items, module = made([KernelCase(graph, {}, EXACT)])
    (expected,) = items[0].case.reference()
    for lanes, told in ((32, 32), (64, 64), (32, 64)):
        emulator = Emulator(lanes)
        text = module.text.replace("subgroup_size = wavefront()", f"subgroup_size = {told}")
        assert text != module.text
        loaded = emulator.load(emulator.compile(text, module.kernels))
        if lanes == told:
            np.testing.assert_allclose(run(emulator, loaded, module, items[0])[0], expected, rtol=1e-4)
        else:
            result = run(emulator, loaded, module, items[0])[0]
            assert not np.allclose(result, expected, rtol=1e-2)


def test_nothing_is_said_in_words_of_nvidia() -> None:
    """No PTX, no matrix units, no overlapping launches, no instructions that CUDA alone has."""
    _, module = made([*kernel_cases(), *cases_of_every_op()[::EVERY]])
    for word in ("asm", "mma_", "follow()", "_sync(", "__grid_constant__", "blockIdx", "threadIdx"):
        assert word not in module.text, word
