"""Writes a program as one LLVM module: a function per kernel (equal kernels share one), and `rlx_prepare` and
`rlx_main`, which run them in order over buffers and one arena."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from rlx.codegen.simd import (
    attention,
    fourier,
    fourier_parts,
    gemm,
    irregular,
    loops,
    repeat,
    suppression,
    transpose,
    winograd,
)
from rlx.codegen.simd.entry_points import Code, Entry
from rlx.codegen.simd.function import ONCE_A_RUN, Callee, Function, Module, Target
from rlx.codegen.simd.isa import Isa
from rlx.codegen.simd.scheduled import Scheduled
from rlx.errors import CompileError
from rlx.ir import dim as dims
from rlx.ir.dim import Bounds, Dim
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.control import Loop, LoopGroup
from rlx.kernel.ir.irregular import (
    FourierPart,
    FourierTransform,
    OrderedWork,
    PrefixScan,
    Scatter,
    Suppression,
    TopKSelection,
)
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.origins import at_origins
from rlx.kernel.ir.program import Kernel, Program, leaves
from rlx.kernel.ir.rows import of_rows
from rlx.kernel.ir.winograd import WinogradConvolution
from rlx.kernel.ir.work import Work
from rlx.kernel.passes.memory import MemoryPlan, plan_memory

MAIN = "ptr %buffers, ptr %dims, ptr %arena, ptr %parallel, i64 %threads"
SEGMENT = 256
"""Kernels that one function calls: LLVM takes more than linear time for the registers of long functions."""


def written(
    program: Program, isa: Isa, bounds: Bounds, kept: set[int], reuse: bool, profile: bool = False
) -> Module:  # fmt: skip
    """The module of a program.

    `kept` are the buffers of `prepare` that `main` reads: they are memory of their own. With `profile`, `rlx_main`
    keeps the time of every kernel.
    """
    symbols = program.symbols
    target = Target(
        isa.lanes, isa.has_fma, byte_products=isa.byte_products, converts_f16=isa.converts_f16,
        vector_registers=isa.vector_registers,
    )  # fmt: skip
    module = Module(target, symbols)
    module.add("rlx_run", _dispatcher(), of_program=True)
    temps = {b.number for b in program.buffers if b.kind == "temp"} - kept
    for name, kernels in (("rlx_prepare", program.prepare), ("rlx_main", program.main)):
        memory = plan_memory(program, kernels, temps, bounds, reuse)
        _write_entry(module, name, program, kernels, memory, isa, profile and name == "rlx_main")
    return module


def generate(
    program: Program, isa: Isa, bounds: Bounds, kept: set[int], reuse: bool, threads: int = 1, profile: bool = False
) -> list[str]:
    """The text of the module as `written`, in parts where it is long: for so many `threads` of the compiler at most."""
    return written(program, isa, bounds, kept, reuse, profile).texts(threads)


Scheduler = Callable[[Any, Isa], Scheduled | None]


def _loops(work: LoopNest, isa: Isa) -> Scheduled:
    plain = loops.schedule(work, isa)
    return repeat.schedule(plain, isa.lanes) or transpose.schedule(plain, isa.lanes) or plain


def _contraction(work: Contraction, isa: Isa) -> Scheduled:
    return gemm.schedule(work, isa) if gemm.takes(work, isa) else loops.schedule(work.as_nest(), isa)


def _irregular(work: OrderedWork, isa: Isa) -> Scheduled:
    return irregular.schedule(work, isa.lanes)


SCHEDULERS: dict[type[Work], Scheduler] = {
    LoopNest: _loops,
    Contraction: _contraction,
    WinogradConvolution: winograd.schedule,
    FusedAttention: lambda work, isa: attention.schedule(work, isa) if attention.takes(work) else None,
    FourierTransform: lambda work, isa: fourier.schedule(work, isa.lanes),
    Suppression: lambda work, isa: suppression.schedule(work, isa.lanes),
    FourierPart: lambda work, isa: fourier_parts.schedule(work, isa.lanes),
    Scatter: _irregular,
    PrefixScan: _irregular,
    TopKSelection: _irregular,
}
"""How each kind of work is scheduled; None where there is no code for it."""


def schedule_of(kernel: Kernel, isa: Isa) -> Scheduled:
    """How a kernel is run. Raises CompileError."""
    scheduler = SCHEDULERS.get(type(kernel.work))
    scheduled = scheduler(kernel.work, isa) if scheduler is not None else None
    if scheduled is None:
        raise CompileError(f"[cpu] no code for the kernel {kernel.name!r}")
    return scheduled


def _write_entry(
    module: Module, name: str, program: Program, kernels: Sequence[Kernel], memory: MemoryPlan, isa: Isa, profile: bool
) -> None:
    scratch: Dim = 0
    code: dict[int, Code] = {}
    known: dict[tuple[Work, int, bool], tuple[Scheduled, Callee]] = {}  # equal work is written once: layers repeat
    rows = {} if profile else _rows(kernels)
    repeated = {id(kernel) for kernel in _in_loops(kernels)}
    for kernel in leaves(kernels):
        work, origins = at_origins(kernel.work)
        if id(kernel) in rows:
            work = of_rows(work, rows[id(kernel)])
        key = (work, len(kernel.slots), id(kernel) in repeated)
        if key not in known:
            scheduled = schedule_of(replace(kernel, work=work), isa)
            if id(kernel) in repeated and isinstance(scheduled, gemm.ScheduledMatmul):
                scheduled = replace(scheduled, turns=bool(scheduled.work.packed))
            stem = f"kernel.{kernel.name}"  # apart from names of the C library
            known[key] = (scheduled, scheduled.render(module, stem, len(kernel.slots)))
        item, function = known[key]
        scratch = dims.maximum(scratch, _aligned(item.scratch))
        code[id(kernel)] = Code(function, item.positions, item.cycles(isa.lanes), item.flat, origins)
    numbers = {id(kernel): number for number, kernel in enumerate(leaves(kernels))}

    def write(function: str, some: Sequence[Kernel], linkage: str) -> None:
        f = Function(module, function, MAIN, linkage, ONCE_A_RUN)
        Entry(f, program, memory, scratch, code, isa.clock, numbers if profile else None).write(some)
        module.add(function, f.text(), of_program=True)

    if len(kernels) <= SEGMENT:
        write(name, kernels, "dso_local")
    else:
        f = Function(module, name, MAIN, "dso_local", ONCE_A_RUN)
        for number, first in enumerate(range(0, len(kernels), SEGMENT)):
            segment = f"{name}.{number}"
            write(segment, kernels[first : first + SEGMENT], "internal")
            f.emit(f"call void @{segment}({MAIN})")
        module.add(name, f.text(), of_program=True)
    _write_arena(module, f"{name}_arena", memory, scratch)


def _in_loops(kernels: Sequence[Kernel], inside: bool = False) -> Iterator[Kernel]:
    """The kernels that a loop runs again and again."""
    for kernel in kernels:
        if kernel.work.owns_kernels:
            yield from _in_loops(kernel.children, inside or isinstance(kernel.work, Loop))
        elif inside:
            yield kernel


def _rows(kernels: Sequence[Kernel]) -> dict[int, Dim]:
    """The number of rows of each kernel, by its id, of which some alone may be computed."""
    found: dict[int, Dim] = {}
    for kernel in kernels:
        if isinstance(kernel.work, LoopGroup):
            for loop, cut in zip(kernel.work.loops, kernel.work.cuts):
                found |= {id(leaf): cut.rows for leaf in leaves([loop]) if cut is not None}
    return found


def _write_arena(module: Module, name: str, memory: MemoryPlan, scratch: Dim) -> None:
    """Bytes of the arena at these dims: slots of temporaries, then scratch for each thread."""
    f = Function(module, name, "ptr %dims, i64 %threads, ptr %bytes", "dso_local", ONCE_A_RUN)
    total = f.mul(f.dim(scratch), "%threads")
    for size in memory.sizes:
        total = f.add(total, f.dim(size))
    f.emit(f"store i64 {total}, ptr %bytes, align 8")
    module.add(name, f.text(), of_program=True)


def _dispatcher() -> str:
    """The function that runs a kernel, in one go or in chunks on the pool."""
    lines = (files("rlx.codegen.simd") / "dispatch.ll").read_text().splitlines()
    return "\n".join(["", *(line for line in lines if not line.startswith(";"))])


def _aligned(size: Dim) -> Dim:
    if isinstance(size, int):
        return -(-size // 128) * 128
    return dims.mul(dims.floordiv(dims.add(size, 127), 128), 128)
