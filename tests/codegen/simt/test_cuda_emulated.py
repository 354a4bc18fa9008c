"""CUDA C++ that runs: kernels compiled as C++, on the processor (`python -m tools.check_cuda --emulate` runs all)."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest

from codegen.simt.kernel_cases import KernelCase, kernel_cases
from kernel.schedule.graphs import scheduled
from ops.case import Case
from ops.cases import cases_of_every_op
from rlx import flags, ops
from rlx.backends.cuda.build import NVIDIAS, program_of
from rlx.codegen.simt.code import WORKGROUP, Slot
from rlx.codegen.simt.kernel import render
from rlx.codegen.simt.language.cuda import CUDA, prelude
from rlx.codegen.simt.module import cpp_module
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.expr import const
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import EXACT, Tolerance
from rlx.kernel.ir.index import Linear, axis, linear, load
from rlx.kernel.ir.irregular import Scatter
from rlx.kernel.ir.program import Kernel
from support import assert_close
from tools.check_cuda import Lowered, lowered, run
from tools.emulate_cuda import Emulator, why_absent

EVERY = 45
"""Of so many cases of ops one is run."""

pytestmark = pytest.mark.skipif(bool(why_absent()), reason=why_absent())


def check(cases: Sequence[Case | KernelCase], precision: str = "f32") -> None:
    emulator = Emulator()
    items = [item for item in lowered(cases, NVIDIAS.at(precision)) if isinstance(item, Lowered)]
    items = [item for item in items if not any(kernel.work.owns_kernels for kernel in item.program.main)]
    assert items
    module = cpp_module(item.program for item in items)
    loaded = emulator.load(emulator.compile(module.text, module.kernels))
    for item in items:
        for result, expected in zip(run(emulator, loaded, module, item), item.case.reference(), strict=True):
            assert_close(result, expected, item.tolerance)


@pytest.mark.parametrize("first", [0, 15, 30])
def test_a_sample_of_op_cases(first: int) -> None:
    check(cases_of_every_op()[first::EVERY])


@pytest.mark.parametrize(
    "kind", ["scattered", "sums", "sorted", "reduced", "turned", "products", "one query", "halves", "teams"]
)
def test_kernels_of_many_blocks(kind: str) -> None:
    check([case for case in kernel_cases() if kind in str(case)])


@pytest.mark.parametrize("kind", ["products", "attention: a window", "attention: one query", "open", "teams f32"])
def test_kernels_with_parts_of_f32(kind: str) -> None:
    check([case for case in kernel_cases() if kind in str(case)], "f32_fast")


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("rows", "rows:workgroup.rows=1"),
        ("columns", "rows:workgroup.rows=64,register.terms=7"),
        ("scatters", "scatter:thread.updates=1"),
        ("scans", "prefix-scan:workgroup.rows=1,thread.elements=3"),
        ("rankings", "top-k:thread.elements=50"),
        ("transposes", "transpose:workgroup.side=8"),
        ("turned", "transpose:workgroup.side=16"),
        ("turned", "transpose:workgroup.side=1"),
    ],
)
def test_schedules_set_by_hand(name: str, changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    item = scheduled(name)
    before = cpp_module([program_of(item.graph)]).text
    monkeypatch.setenv(flags.schedule.name, changed)
    assert cpp_module([program_of(item.graph)]).text != before
    check([Given(item.graph, {}, Tolerance(256, scale=4), tuple(item.inputs.values()))])


@dataclass(frozen=True)
class Given(KernelCase):
    """A graph with inputs of its own."""

    inputs: tuple[Array, ...] = ()

    @property
    def arrays(self) -> tuple[Array, ...]:
        return self.inputs


def test_sums_of_floats_are_the_same_in_any_order() -> None:
    random = np.random.default_rng(0)
    graph = Graph("sums")
    x, at, updates = graph.input("x", (7,)), graph.input("at", (3000, 1), "i32"), graph.input("updates", (3000,))
    graph.output(ops.scatter_nd(x, at, updates, combine="add"))
    places = random.integers(0, 7, (3000, 1)).astype(np.int32)
    values = (random.standard_normal(3000) * np.exp2(random.integers(-40, 40, 3000))).astype(np.float32)
    results = []
    for order in (np.arange(3000), random.permutation(3000)):
        given = (np.zeros(7, np.float32), places[order], values[order])
        (item,) = lowered([Given(graph, {}, EXACT, given)])
        assert isinstance(item, Lowered)
        module = cpp_module([item.program])
        emulator = Emulator()
        loaded = emulator.load(emulator.compile(module.text, module.kernels))
        results.append(run(emulator, loaded, module, item)[0].tobytes())
    assert results[0] == results[1] != bytes(28)


@pytest.mark.parametrize("combine", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.f32, dtypes.f64, dtypes.i8], ids=str)
def test_an_element_of_any_dtype_is_joined_by_any_instruction(dtype: DType, combine: str) -> None:
    """By many lanes at once, and its neighbours in the same word are left alone."""
    guard, update = const(True, dtypes.bool_), load(1, linear(axis(0)), dtype)
    work = Scatter((), (2 * WORKGROUP,), Linear(1), guard, update, combine, atomic=True)
    slots = [Slot(dtype, number) for number in range(2)]
    shader = render(Kernel("join", work, (0, 1), 1), slots, CUDA.bindings([dtype, dtype], 1), "join", language=CUDA)
    x, updates = np.array([5, 3, 7], dtype.numpy), np.ones(2 * WORKGROUP, dtype.numpy)
    updates[[9, 70, 99]] = np.array([2, 0.5 if dtype.is_float else -2, 4], dtype.numpy)
    launch(prelude() + shader.text, "join", 2, x, updates)
    joined = {"add": 3 + updates.sum(), "mul": 3 * updates.prod(), "min": updates.min(), "max": updates.max()}
    assert list(x) == list(np.array([5, joined[combine], 7]).astype(dtype.numpy))


def launch(text: str, name: str, blocks: int, *arrays: Array) -> None:
    emulator = Emulator()
    loaded = emulator.load(emulator.compile(text, [name]))
    pointers = [emulator.buffer(array.nbytes) for array in arrays]
    for pointer, array in zip(pointers, arrays):
        emulator.upload(pointer, array)
    emulator.launch(loaded, name, blocks, WORKGROUP, [*pointers, (ctypes.c_longlong * 1)()])
    for pointer, array in zip(pointers, arrays):
        emulator.download(array, pointer)


@pytest.mark.parametrize("missing", ["", "wait_copies<0>();", "__syncthreads();"])
def test_copies_are_seen_behind_a_wait_and_a_barrier(missing: str) -> None:
    """Every lane takes what a lane of another warp has copied."""
    text = (
        'extern "C" __global__ void f(int* to, const int* from, const Record<1> record) {\n'
        "  DYNAMIC_SHARED(1024);\n  const unsigned lane = threadIdx.x, other = (lane + 32) % 64;\n"
        "  copy_ahead_if(lane != 7, dynamic_shared + lane, from + 4 * lane);\n  commit_copies();\n"
        "  wait_copies<0>();\n  __syncthreads();\n  to[lane] = (int)dynamic_shared[other].y;\n}\n"
    )
    copied, given = np.zeros(WORKGROUP, np.int32), np.arange(4 * WORKGROUP, dtype=np.int32)
    launch(prelude() + text.replace(missing, "") if missing else prelude() + text, "f", 1, copied, given)
    expected = np.roll(np.where(np.arange(WORKGROUP) == 7, 0, given[1::4]), 32)
    assert np.array_equal(copied, expected) == (not missing)


def test_lanes_that_wait_in_vain_are_found() -> None:
    text = (
        'extern "C" __global__ void f(int* p, const Record<1> record) {\n'
        "  if (threadIdx.x < 40) {\n    %s\n  } else {\n    __syncthreads();\n  }\n  *p += 1;\n}\n"
    )
    counter = np.zeros(1, np.int32)
    launch(prelude() + text % "", "f", 3, counter)
    assert counter[0] == 3 * WORKGROUP
    with pytest.raises(AssertionError, match="f: lanes of a block wait at different places"):
        launch(prelude() + text % "__syncthreads();", "f", 3, counter)


def test_kernels_that_leave_their_memory_are_found() -> None:
    text = 'extern "C" __global__ void f(int* p, const Record<1> record) {\n  p[%s] += threadIdx.x;\n}\n'
    launch(prelude() + text % "threadIdx.x % 4", "f", 1, np.zeros(4, np.int32))
    with pytest.raises(AssertionError, match="f: it reads or writes behind its memory"):
        launch(prelude() + text % "threadIdx.x % 5", "f", 1, np.zeros(4, np.int32))


def test_reads_in_front_of_memory_are_found() -> None:
    """Of every other buffer, where that is asked for."""
    text = 'extern "C" __global__ void f(int* p, const Record<1> record) {\n  p[0] = p[record.dims[0]];\n}\n'
    for in_front, at in ((True, 0), (True, -1), (False, -1)):
        emulator = Emulator(in_front=in_front)
        module = emulator.load(emulator.compile(prelude() + text, ["f"]))
        pointer, record = emulator.buffer(16), ctypes.create_string_buffer(at.to_bytes(8, "little", signed=True), 8)
        found = in_front and at < 0
        with pytest.raises(AssertionError, match="f: it reads or writes behind") if found else nullcontext():
            emulator.launch(module, "f", 1, 32, [pointer, record])


def test_what_is_no_cpp_is_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        Emulator().compile(prelude() + "nothing", ["f"])
