"""Compiles the kernels of every op case, and of graphs large enough for several blocks, for NVIDIA's architectures, and
with --run runs them on a GPU.

    python -m tools.check_cuda                    # NVRTC alone: no GPU, no driver, no toolkit
    python -m tools.check_cuda --run              # on a GPU: every case against its reference
    python -m tools.check_cuda --emulate          # on the processor, by a C++ compiler: `tools/emulate_cuda.py`

Kernels run one after the other, from a launcher of the driver API that is as plain as can be: this checks the code
generator, not a runtime. Cases with conditionals and loops are compiled only.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from codegen.simt.kernel_cases import KernelCase, kernel_cases
from ops.case import Case
from ops.cases import cases_of_every_op
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.build import NVIDIAS, Maker, program_of
from rlx.codegen.simt.module import CppModule, cpp_module
from rlx.errors import CompileError, RlxError
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from rlx.kernel.ir.program import Kernel, Program
from support import assert_close
from tools.emulate_cuda import Emulator

CASES_A_MODULE = 120
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
"""The number of a function's attribute."""


@dataclass(frozen=True)
class Lowered:
    """A case and its kernels, which `teams` of lanes with matrix units may run."""

    case: Case | KernelCase
    program: Program
    teams: bool = False

    @property
    def binding(self) -> Mapping[str, int]:
        """Values of the program's dims."""
        return self.case.binding if isinstance(self.case, KernelCase) else {}

    @property
    def tolerance(self) -> Tolerance:
        if not isinstance(self.case, KernelCase):
            return self.case.op.tolerance
        return self.case.on_matrix_units if self.teams else self.case.tolerance


def lowered(cases: Sequence[Case | KernelCase], maker: Maker = NVIDIAS) -> Iterator[Lowered | str]:
    """Cases with their programs, or why there is none."""
    for case in cases:
        try:
            program = program_of(case.graph(), maker)
            cpp_module([program], target=maker.target)
            yield Lowered(case, program, maker.target.teams)
        except RlxError as error:
            yield str(error)


class Driver:
    """The few calls of the CUDA driver API that a check needs."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self("cuCtxSetCurrent", self.context)
        name = ctypes.create_string_buffer(100)
        self("cuDeviceGetName", name, 100, device)
        self.name = name.value.decode()
        parts = [ctypes.c_int() for _ in range(2)]
        for part, attribute in zip(parts, (75, 76)):
            self("cuDeviceGetAttribute", ctypes.byref(part), attribute, device)
        self.architecture = f"sm_{parts[0].value}{parts[1].value}" + "a" * (parts[0].value >= 9)

    def __call__(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} gave {code}")

    def compile(self, text: str, names: Iterable[str]) -> bytes:
        return nvrtc.compile_cubin(text, self.architecture)

    def load(self, cubin: bytes) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), cubin)
        return module

    def buffer(self, nbytes: int) -> ctypes.c_uint64:
        """Memory that holds what nobody expects."""
        pointer = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(nbytes, 16)))
        self("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0xA5), ctypes.c_size_t(max(nbytes, 16)))
        return pointer

    def upload(self, pointer: ctypes.c_uint64, array: Array) -> None:
        self("cuMemcpyHtoD_v2", pointer, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))

    def download(self, array: Array, pointer: ctypes.c_uint64) -> None:
        self("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), pointer, ctypes.c_size_t(array.nbytes))

    def free(self, pointer: ctypes.c_uint64) -> None:
        self("cuMemFree_v2", pointer)

    def launch(
        self, module: ctypes.c_void_p, name: str, blocks: int, lanes: int, arguments: Sequence[object],
        shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        function = ctypes.c_void_p()
        self("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        self("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))  # type: ignore[arg-type]
        self("cuLaunchKernel", function, blocks, 1, 1, lanes, 1, 1, shared_bytes, None, pointers, None)
        self("cuCtxSynchronize")


Machine = Driver | Emulator
"""What runs kernels."""


def run(driver: Machine, loaded: Any, module: CppModule, item: Lowered) -> list[Array]:
    """The results of a case."""
    program, binding, graph = item.program, item.binding, item.case.graph()
    arrays = {n: np.ascontiguousarray(a) for n, a in zip(program.inputs, item.case.arrays)} | program.constants
    arrays |= {number: graph.data[program.buffers[number].name] for number in program.params}
    memory = {}
    for buffer in program.buffers:
        nbytes = int(dims.evaluate(buffer.nbytes, binding))
        if buffer.number not in program.aliases:
            memory[buffer.number] = driver.buffer(nbytes)
    for number, (base, first) in program.aliases.items():
        start = memory[base].value + int(dims.evaluate(first, binding)) * program.buffers[number].dtype.itemsize
        memory[number] = ctypes.c_uint64(start)
    for number, array in arrays.items():
        driver.upload(memory[number], np.ascontiguousarray(array))
    for kernel in (*program.prepare, *program.main):
        _launch(driver, loaded, module, item, kernel, memory)
    results = []
    for number, value in zip(program.outputs, graph.outputs.values()):
        array = np.empty([int(dims.evaluate(d, binding)) for d in value.shape], value.dtype.numpy)
        driver.download(array, memory[number])
        results.append(array)
    for number in set(memory) - set(program.aliases):
        driver.free(memory[number])
    return results


def _launch(
    driver: Machine, loaded: Any, module: CppModule, item: Lowered, kernel: Kernel,
    memory: dict[int, ctypes.c_uint64],
) -> None:  # fmt: skip
    variant = module.variant(kernel, item.binding)
    shader = variant.shader
    positions = int(dims.evaluate(shader.positions, item.binding))
    blocks = positions if shader.team else -(-positions // shader.lanes)
    numbers = [int(dims.evaluate(number, item.binding)) for number in shader.numbers]
    rounds: Sequence[tuple[int, ...]] = [()]
    if shader.rounds is not None:
        rounds = shader.rounds.of(int(dims.evaluate(shader.rounds.extent, item.binding)))
    for brought in rounds if blocks else ():
        record = (ctypes.c_longlong * (max(len(brought) + len(numbers), 1) + shader.later))(*brought, *numbers)
        arguments = [*(memory[n] for n in kernel.slots), record]
        driver.launch(loaded, variant.name, blocks, shader.lanes, arguments, shader.shared_bytes)


Groups = list[list[Lowered]]


def prepared(maker: Maker, only: str, every: int) -> tuple[Groups, list[CppModule]]:
    """Cases in groups, and the kernels of each group."""
    cases = [case for case in (*kernel_cases(), *cases_of_every_op()) if only in str(case)]
    results = list(lowered(cases[::every], maker))
    refused = Counter(item for item in results if isinstance(item, str))
    items = [item for item in results if isinstance(item, Lowered)]
    groups = [items[i : i + CASES_A_MODULE] for i in range(0, len(items), CASES_A_MODULE)]
    modules = [cpp_module((item.program for item in group), target=maker.target) for group in groups]
    print(f"{len(items)} cases, {refused.total()} refused")
    for reason, count in refused.most_common(10):
        print(f"  {count} x {reason[:120]}")
    return groups, modules


def parser_of(doc: str) -> argparse.ArgumentParser:
    """Options of all checks of this kind."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulate", action="store_true", help="run the cases on the processor, compiled as C++")
    parser.add_argument("--only", default="", help="take cases whose name has this")
    parser.add_argument("--every", type=int, default=1, help="take one case of so many")
    parser.add_argument("--jobs", type=int, default=2, help="compilations at once")
    return parser


def main() -> int:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--run", action="store_true", help="run the cases on the first GPU")
    parser.add_argument("--precision", default="f32", choices=("f32", "f32_fast"), help="of products of f32")
    given = parser.parse_args()
    groups, modules = prepared(NVIDIAS.at(given.precision), given.only, given.every)
    if given.run or given.emulate:
        return run_all(Driver() if given.run else Emulator(), groups, modules, given.jobs)
    print(f"NVRTC {nvrtc.version()}")
    for architecture in nvrtc.ARCHITECTURES:
        start = time.perf_counter()
        with ThreadPoolExecutor(given.jobs) as pool:
            cubins = list(pool.map(lambda m, to=architecture: nvrtc.compile_cubin(m.text, to), modules))
        kernels = sum(len(module.kernels) for module in modules)
        seconds = time.perf_counter() - start
        print(f"{architecture}: {kernels} kernels, {sum(map(len, cubins))} bytes, {seconds:.0f} s", flush=True)
    return 0


def run_all(driver: Machine, groups: Groups, modules: list[CppModule], jobs: int) -> int:
    """Runs the cases; 1 if any is wrong."""
    with ThreadPoolExecutor(jobs) as pool:
        compiled = pool.map(lambda module: driver.compile(module.text, module.kernels), modules)
        return _judged(driver, zip(groups, modules, compiled))


def _judged(driver: Machine, compiled: Iterable[tuple[list[Lowered], CppModule, bytes]]) -> int:
    """Holds the results of all cases against their references, and tells what was wrong."""
    right, left_out, wrong = 0, 0, []
    for group, module, code in compiled:
        loaded = driver.load(code)
        for item in group:
            if any(k.work.owns_kernels for k in item.program.main):
                left_out += 1
                continue
            try:
                for result, expected in zip(run(driver, loaded, module, item), item.case.reference()):
                    assert_close(result, expected, item.tolerance)
                right += 1
            except (AssertionError, CompileError) as error:
                wrong.append(f"{item.case}: {str(error)[:200]!r}")
    print(f"{driver.name}: {right} cases right, {left_out} left out, {len(wrong)} wrong")
    print("\n".join(wrong[:60]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
