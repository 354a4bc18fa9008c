"""A program as one LLVM module: a function a kernel (equal kernels share one), and `rlx_prepare` and `rlx_main` that
run them in order over buffers and one arena."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.codegen.simd import attention, fourier, gemm, winograd
from rlx.codegen.simd import irregular as special
from rlx.codegen.simd import loops as nests
from rlx.codegen.simd import transpose as turns
from rlx.codegen.simd.entry import GRAIN_CYCLES, Code, Entry
from rlx.codegen.simd.function import Function, Module, Target
from rlx.codegen.simd.isa import Isa
from rlx.errors import CompileError
from rlx.ir import dim as dims
from rlx.ir.dim import Bounds, Dim
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.irregular import FourierTransform, PrefixScan, Scatter, TopKSelection
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Kernel, Program, leaves
from rlx.kernel.ir.winograd import WinogradConvolution
from rlx.kernel.ir.work import Work
from rlx.kernel.passes.memory import MemoryPlan, plan_memory

MAIN = "ptr %buffers, ptr %dims, ptr %arena, ptr %parallel, i64 %threads"
CHUNKS_A_THREAD = 4
PART_CHARACTERS = 200_000
"""Text that is worth a compiler thread of its own."""

Planned = (
    nests.NestPlan
    | turns.TransposePlan
    | gemm.GemmPlan
    | attention.AttentionPlan
    | special.SpecialPlan
    | winograd.WinogradPlan
    | fourier.FourierPlan
)


def generate(
    program: Program, isa: Isa, bounds: Bounds, kept: set[int], reuse: bool, threads: int = 1, profile: bool = False
) -> list[str]:
    """The text of the module, in parts where it is long: for so many `threads` of the compiler at most.

    `kept` are the buffers of `prepare` that `main` reads: they are memory of their own. With `profile`, `rlx_main`
    keeps the time of every kernel.
    """
    symbols = program.symbols
    target = Target(isa.lanes, isa.has_fma, byte_products=isa.byte_products, converts_f16=isa.converts_f16)
    module = Module(target, symbols)
    module.add("rlx_run", _DISPATCH)
    temps = {b.number for b in program.buffers if b.kind == "temp"} - kept
    for name, kernels in (("rlx_prepare", program.prepare), ("rlx_main", program.main)):
        memory = plan_memory(program, kernels, temps, bounds, reuse)
        _write_entry(module, name, program, kernels, memory, isa, profile and name == "rlx_main")
    head = f'attributes #0 = {{ nounwind "prefer-vector-width"="{isa.lanes * 32}" }}\n{CALLS_BY_TABLE}'
    parts = max(1, min(threads, module.size // PART_CHARACTERS))
    return [head + text for text in module.texts(parts)]


CALLS_BY_TABLE = '!llvm.module.flags = !{!0}\n!0 = !{i32 7, !"RtLibUseGOT", i32 1}\n'
"""What LLVM calls of its own accord (memcpy) is called as declared functions are: see `function.THROUGH_TABLE`."""


def plan_of(kernel: Kernel, isa: Isa) -> Planned:
    """How the CPU runs a kernel."""
    match kernel.work:
        case LoopNest():
            planned = nests.plan(kernel.work, isa.lanes)
            return turns.plan(planned, isa.lanes) or planned
        case WinogradConvolution():
            return winograd.plan(kernel.work, isa)
        case Contraction() if gemm.takes(kernel.work, isa):
            return gemm.plan(kernel.work, isa)
        case Contraction():
            return nests.plan(kernel.work.as_nest(), isa.lanes)
        case FusedAttention() if attention.takes(kernel.work):
            return attention.plan(kernel.work, isa)
        case FourierTransform():
            return fourier.plan(kernel.work, isa.lanes)
        case Scatter() | PrefixScan() | TopKSelection():
            return special.plan(kernel.work, isa.lanes)
    raise CompileError(f"[cpu] no code for the kernel {kernel.name!r}")


def _render(module: Module, kernel: Kernel, planned: Planned) -> str:
    slots = len(kernel.slots)
    stem = f"kernel.{kernel.name}"  # apart from names of the C library
    match planned:
        case turns.TransposePlan():
            return turns.render(module, stem, planned, slots)
        case nests.NestPlan():
            return nests.render(module, stem, planned, slots)
        case winograd.WinogradPlan():
            return winograd.render(module, stem, planned, slots)
        case gemm.GemmPlan():
            return gemm.render(module, stem, planned, slots)
        case attention.AttentionPlan():
            return attention.render(module, stem, planned, slots)
        case fourier.FourierPlan():
            return fourier.render(module, stem, planned, slots)
        case special.SpecialPlan():
            return special.render(module, stem, planned, slots)


def _write_entry(
    module: Module, name: str, program: Program, kernels: Sequence[Kernel], memory: MemoryPlan, isa: Isa, profile: bool
) -> None:
    f = Function(module, name, MAIN, linkage="dso_local")
    scratch: Dim = 0
    code: dict[int, Code] = {}
    known: dict[tuple[Work, int], tuple[Planned, str]] = {}  # equal work is written once: layers repeat
    for kernel in leaves(kernels):
        key = (kernel.work, len(kernel.slots))
        if key not in known:
            planned = plan_of(kernel, isa)
            known[key] = (planned, _render(module, kernel, planned))
        item, function = known[key]
        scratch = dims.maximum(scratch, _aligned(item.scratch))
        flat = isinstance(item, (nests.NestPlan, special.SpecialPlan)) and item.flat
        code[id(kernel)] = Code(function, item.positions, cycles_of(item, isa), flat)
    Entry(f, program, memory, scratch, code, isa.clock, profile).write(kernels)
    module.add(name, f.text())
    _write_arena(module, f"{name}_arena", memory, scratch)


def _write_arena(module: Module, name: str, memory: MemoryPlan, scratch: Dim) -> None:
    """Bytes of the arena at these dims: slots of temporaries, then scratch for each thread."""
    f = Function(module, name, "ptr %dims, i64 %threads, ptr %bytes", linkage="dso_local")
    total = f.mul(f.dim(scratch), "%threads")
    for size in memory.sizes:
        total = f.add(total, f.dim(size))
    f.emit(f"store i64 {total}, ptr %bytes, align 8")
    module.add(name, f.text())


def cycles_of(item: Planned, isa: Isa) -> Dim:
    """Cycles of one position, roughly."""
    if isinstance(item, nests.NestPlan):
        # scaled by 16 for flat nests, whose positions cost less than a cycle
        return item.weight if item.flat else dims.add(dims.floordiv(item.weight, isa.lanes), 4)
    return item.weight


def _aligned(size: Dim) -> Dim:
    if isinstance(size, int):
        return -(-size // 128) * 128
    return dims.mul(dims.floordiv(dims.add(size, 127), 128), 128)


# Runs a kernel: in one go where the work is small, else in chunks on the pool. Flat nests count single elements, whose
# weight is in instructions of a vector; their pieces are multiples of 64 elements, so that no two threads share a line.
_DISPATCH = f"""
define internal void @rlx_chunk(ptr %frame, i64 %chunk, i64 %thread) #0 {{
  %kernel = load ptr, ptr %frame, align 8
  %p1 = getelementptr i64, ptr %frame, i64 1
  %args = load ptr, ptr %p1, align 8
  %p2 = getelementptr i64, ptr %frame, i64 2
  %total = load i64, ptr %p2, align 8
  %p3 = getelementptr i64, ptr %frame, i64 3
  %per = load i64, ptr %p3, align 8
  %p4 = getelementptr i64, ptr %frame, i64 4
  %base = load ptr, ptr %p4, align 8
  %p5 = getelementptr i64, ptr %frame, i64 5
  %stride = load i64, ptr %p5, align 8
  %begin = mul i64 %chunk, %per
  %next = add i64 %begin, %per
  %over = icmp sgt i64 %next, %total
  %end = select i1 %over, i64 %total, i64 %next
  %skip = mul i64 %thread, %stride
  %scratch = getelementptr i8, ptr %base, i64 %skip
  call void %kernel(ptr %args, i64 %begin, i64 %end, ptr %scratch)
  ret void
}}
define internal void @rlx_run(ptr %kernel, ptr %args, i64 %total, i64 %weight, i64 %flat,
                              ptr %base, i64 %stride, ptr %parallel, i64 %threads) #0 {{
entry:
  %frame = alloca [6 x i64], align 16
  %some = icmp sgt i64 %total, 0
  br i1 %some, label %start, label %end
start:
  %heavy = mul i64 %total, %weight
  %vector = sdiv i64 %heavy, 16
  %is.flat = icmp ne i64 %flat, 0
  %cycles = select i1 %is.flat, i64 %vector, i64 %heavy
  %chunks.by.work = sdiv i64 %cycles, {GRAIN_CYCLES}
  %most = mul i64 %threads, {CHUNKS_A_THREAD}
  %few = icmp slt i64 %chunks.by.work, %most
  %chunks.1 = select i1 %few, i64 %chunks.by.work, i64 %most
  %short = icmp slt i64 %total, %chunks.1
  %chunks.2 = select i1 %short, i64 %total, i64 %chunks.1
  %alone = icmp sle i64 %chunks.2, 1
  %single = icmp sle i64 %threads, 1
  %serial = or i1 %alone, %single
  br i1 %serial, label %direct, label %fork
direct:
  call void %kernel(ptr %args, i64 0, i64 %total, ptr %base)
  br label %end
fork:
  %round.0 = add i64 %total, %chunks.2
  %round.1 = sub i64 %round.0, 1
  %per.0 = sdiv i64 %round.1, %chunks.2
  %line.0 = add i64 %per.0, 63
  %line.1 = and i64 %line.0, -64
  %per = select i1 %is.flat, i64 %line.1, i64 %per.0
  %count.0 = add i64 %total, %per
  %count.1 = sub i64 %count.0, 1
  %count = sdiv i64 %count.1, %per
  store ptr %kernel, ptr %frame, align 8
  %p1 = getelementptr i64, ptr %frame, i64 1
  store ptr %args, ptr %p1, align 8
  %p2 = getelementptr i64, ptr %frame, i64 2
  store i64 %total, ptr %p2, align 8
  %p3 = getelementptr i64, ptr %frame, i64 3
  store i64 %per, ptr %p3, align 8
  %p4 = getelementptr i64, ptr %frame, i64 4
  store ptr %base, ptr %p4, align 8
  %p5 = getelementptr i64, ptr %frame, i64 5
  store i64 %stride, ptr %p5, align 8
  call void %parallel(ptr @rlx_chunk, ptr %frame, i64 %count, i64 %threads)
  br label %end
end:
  ret void
}}"""
