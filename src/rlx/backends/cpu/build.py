"""Compilation on the CPU, step by step: passes, lowering, packing, code, object file.

Modules that only a compile needs are imported inside functions, so that a program from the cache starts without them.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx import collector, disk, flags
from rlx.backends.base import Options
from rlx.backends.cpu.artifact import Artifact, Slot, from_bytes, to_bytes
from rlx.backends.cpu.executable import CpuExecutable
from rlx.backends.cpu.isa import forced, host_features
from rlx.codegen.simd.isa import Isa
from rlx.errors import DeviceUnavailable, ModelError, UnsupportedOp
from rlx.ir.type import TensorType

if TYPE_CHECKING:
    from rlx.backends.cpu import kernel_store
    from rlx.ir.dim import Bounds
    from rlx.ir.graph import Graph
    from rlx.kernel.ir.program import Program


def from_disk(key: str | None, isa: Isa, options: Options) -> CpuExecutable | None:
    """The program in code of either tier that an earlier process has left. Raises ModelError."""
    found = disk.read(key) if key else None
    if found is not None:
        made: CpuExecutable | None = CpuExecutable.of(from_bytes(found), isa, options.threads)
    else:
        made = _quick(key, isa, options) if key and options.tiered and not options.profile else None
    if made is not None:
        made.from_cache = True
        made.loaded.key = key
    return made


def stored(key: str, isa: dict[str, Any], options: Options) -> CpuExecutable | None:
    """The executable whose code has this key, without its graph; None if it is not there."""
    try:
        return from_disk(key, Isa(**isa), options)
    except (ModelError, TypeError):  # of another version of rlx
        return None


def built(graph: Graph, isa: Isa, options: Options, key: str | None) -> CpuExecutable:
    """The executable of a graph that is not in the cache on disk, compiled in this process. Raises UnsupportedOp,
    CompileError."""
    if options.tiered and not options.profile and flags.debug() < 3:
        artifact, pieces = first_tier(graph, isa, options)
    else:
        artifact, pieces = compile_artifact(graph, isa, options), None
    if pieces is not None:
        made = _promoted(artifact, pieces, isa, options, key)
    else:
        if key:
            disk.write(key, to_bytes(artifact))
        made = CpuExecutable.of(artifact, isa, options.threads)
    made.loaded.key = key
    return made


def first_tier(graph: Graph, isa: Isa, options: Options) -> tuple[Artifact, kernel_store.Pieces | None]:
    """The program in quick code with what better code is made of, or in the usual code and None where little is to be
    compiled. Raises UnsupportedOp, CompileError."""
    from rlx.backends.cpu import schedules, tiers

    with collector.paused(), schedules.in_use(isa):
        program, pieces, clock = _pieces(graph, isa, options, None)
        level = tiers.QUICK_LEVEL if tiers.worth(pieces.texts) else None
        made = _compiled(graph, program, pieces, clock, isa, options, level, None)
        return made, pieces if level is not None else None


def _quick(key: str, isa: Isa, options: Options) -> CpuExecutable | None:
    """The program in quick code of an earlier process, which ended before the better code was there. Raises
    ModelError."""
    from rlx.backends.cpu import tiers

    kept = disk.read(tiers.quick_key(key))
    if kept is None:
        return None
    artifact, pieces, _ = tiers.unpack(kept)
    return _promoted(artifact, pieces, isa, options, key)


def _promoted(
    artifact: Artifact, pieces: kernel_store.Pieces, isa: Isa, options: Options, key: str | None
) -> CpuExecutable:
    """A program in quick code, with better code on its way."""
    from rlx.backends.cpu import tiers

    made = CpuExecutable.of(artifact, isa, options.threads)
    made.loaded.promotion = tiers.Promotion(artifact, pieces, isa, key, made.loaded.take)
    return made


def cache_key(graph: Graph, isa: Isa, options: Options) -> str | None:
    """Digest of all that decides the code: the program, the target, switches, and the versions that write code. None
    where nothing is kept."""
    from rlx.kernel.schedule import tuned

    if not options.cache or flags.debug() >= 3 or tuned.tried() is not None:
        return None
    import llvmlite

    import rlx
    from rlx.ir.fingerprint import fingerprint

    parts = [
        f"{options.profile} {options.precision} {options.dispatch} {sorted(options.disable)} {flags.code_state()}",
        tuned.state(),
        fingerprint(graph), isa.name, isa.cpu, isa.features,
        rlx.__version__, disk.source_digest(), llvmlite.__version__,
    ]  # fmt: skip
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()


def code_facts(isa: Isa) -> dict[str, str]:
    """What machine code for an instruction set hangs on, beside the program: the processor, and who calls it."""
    import rlx

    return {
        "isa": isa.name, "cpu": isa.cpu, "features": isa.features, "system": platform.system(),
        "rlx": rlx.__version__, "interface": _interface_digest(),
    }  # fmt: skip


def code_mismatch(facts: Mapping[str, str]) -> str:
    """Why code with these facts does not run here; empty if it does."""
    import rlx

    interface = _interface_digest()
    for name, here in (("system", platform.system()), ("rlx", rlx.__version__), ("interface", interface)):
        if facts.get(name) != here:
            what = "version of rlx" if name != "system" else "system"
            return f"it was made by another {what} ({facts.get(name)}; here is {here})"
    try:
        forced(facts.get("isa", ""))
    except DeviceUnavailable as error:
        return str(error)
    wanted = {part[1:] for part in facts.get("features", "").split(",") if part.startswith("+")}
    lacks = sorted(wanted - host_features())
    return f"this processor lacks {', '.join(lacks)}" if lacks else ""


def load_code(data: bytes, facts: Mapping[str, str], options: Options) -> CpuExecutable:
    """The executable of saved code that fits. Raises ModelError."""
    isa = replace(forced(facts["isa"]), cpu=facts.get("cpu", ""), features=facts.get("features", ""))
    made = CpuExecutable.of(from_bytes(data), isa, options.threads)
    made.from_cache = True
    return made


@cache
def _interface_digest() -> str:
    """Changes with the code that calls machine code and is called by it, wherever it is installed."""
    hasher = hashlib.blake2b(digest_size=8)
    here = Path(__file__).parent
    entry = here.parents[1] / "codegen" / "simd" / "entry_points.py"
    names = ("artifact.py", "executable.py", "pool.ll", "pool.py", "watch.ll", "watch.py")
    for path in (*(here / name for name in names), entry):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()


def compile_artifact(
    graph: Graph, isa: Isa, options: Options, place: Path | None = None, before_llvm: Callable[[], None] = lambda: None
) -> Artifact:
    """Everything but the weights. Raises UnsupportedOp naming every node that has no kernel.

    place        the cache's folder, if it is not the usual one
    before_llvm  is called when there is nothing left to be done but by LLVM
    """
    from rlx.backends.cpu import schedules

    with collector.paused(), schedules.in_use(isa):
        program, pieces, clock = _pieces(graph, isa, options, place)
        before_llvm()
        return _compiled(graph, program, pieces, clock, isa, options, None, place)


def _pieces(
    graph: Graph, isa: Isa, options: Options, place: Path | None
) -> tuple[Program, kernel_store.Pieces, _Clock]:  # fmt: skip
    """The program, what its code is made of, and what these took."""
    from rlx.backends.cpu import kernel_store, topology
    from rlx.codegen.simd.module import written

    disable = options.disable | frozenset(flags.disable())
    clock = _Clock()
    program, bounds = program_of(graph, isa, options, clock)
    clock.lap("lower")
    module = written(program, isa, bounds, _kept(program), "memory-reuse" not in disable, options.profile)
    threads = topology.usable()
    stored = options.cache and flags.debug() < 3
    pieces = kernel_store.look_up(module, isa, threads, place) if stored else kernel_store.whole(module, threads)
    clock.lap("codegen")
    return program, pieces, clock


def _compiled(
    graph: Graph, program: Program, pieces: kernel_store.Pieces, clock: _Clock, isa: Isa, options: Options,
    level: int | None, place: Path | None,
) -> Artifact:  # fmt: skip
    """The program in machine code, by LLVM's `level` or the usual one."""
    from rlx.backends.cpu import kernel_store, topology
    from rlx.backends.cpu.jit import emit_objects
    from rlx.codegen.simd.module import schedule_of
    from rlx.kernel.ir.text import text_of

    code = emit_objects(pieces.texts, isa, level, topology.usable())
    code = kernel_store.complete(pieces, code, place) if level is None else kernel_store.quick(pieces, code)
    clock.lap("llvm")
    if flags.debug() >= 3:
        print(text_of(program, lambda kernel: schedule_of(kernel, isa).schedule), *pieces.texts, sep="\n")
    return _artifact(graph, program, _kept(program), code, isa, _facts(clock, isa, options))


def _facts(clock: _Clock, isa: Isa, options: Options) -> dict[str, Any]:
    return {"ms": clock.laps, "isa": isa.name, **({"profile": True} if options.profile else {})}


def program_of(graph: Graph, isa: Isa, options: Options, clock: _Clock | None = None) -> tuple[Program, Bounds]:
    """The kernels of a graph, scheduled for an instruction set, and the bounds of its dims. Raises UnsupportedOp."""
    from rlx.backends.cpu import claims
    from rlx.codegen.simd import gemm, winograd
    from rlx.ir.rewriting import Context
    from rlx.kernel.passes.borders import Borders
    from rlx.kernel.passes.long_reductions import LongReductions
    from rlx.kernel.passes.loop_groups import LoopGroups
    from rlx.kernel.passes.operands import Operands
    from rlx.kernel.passes.pack import Pack
    from rlx.kernel.passes.pack_blocks import PackBlocks
    from rlx.kernel.passes.placement import Placement
    from rlx.kernel.passes.repeats import Repeats
    from rlx.kernel.passes.twiddles import Twiddles
    from rlx.kernel.passes.winograd import Winograd
    from rlx.kernel.pipeline import to_kernels
    from rlx.passes import raise_integers
    from rlx.passes.merge_dots import MergePacked
    from rlx.passes.pipeline import canonicalise, layout, legalise, optimise, raise_composites

    disable = options.disable | frozenset(flags.disable())
    claimed = options.dispatch.claims(claims.claim)
    composites = [raise_integers.rules, *canonicalise(claimed), *raise_composites(), MergePacked()]
    ready = [*composites, *legalise(claimed, options.policy()), *layout()]
    optimised, report = optimise(graph, ready, disable)
    if clock is not None:
        clock.lap("passes")
    passes = (
        Borders(),
        Repeats(),
        Operands(lambda work, packed: gemm.takes(replace(work, packed=int(packed)), isa)),
        Winograd(lambda work: winograd.panel_width(work, isa)),
        PackBlocks(lambda work: gemm.panels(work, isa)),
        Pack(lambda work: gemm.panels(work, isa) if work.blocks is None else (0, 1), batched=True),
        LongReductions(),
        Placement(),
        Twiddles(isa.lanes),
        LoopGroups(),
    )
    context = Context.after(report, disable)
    program = to_kernels(optimised, passes=passes, context=context, indirect="pack" not in disable)
    _refuse_dtypes(program)
    return program, optimised.bounds


def tuned_kernels(graph: Graph, isa: Isa, options: Options) -> dict[str, str]:
    """The kernels of a graph that get other tiles than their generators choose, with these. Raises UnsupportedOp."""
    from rlx.backends.cpu import schedules
    from rlx.kernel.ir.program import leaves

    table = schedules.table(isa)
    if not table:
        return {}
    with schedules.in_use(isa):
        program, _ = program_of(graph, isa, options)
        found: dict[str, str] = schedules.facts(leaves(program.main), isa)["tuned"]
        return found


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round((now - self._last) * 1e3, 2)
        self._last = now


def _refuse_dtypes(program: Program) -> None:
    from rlx.backends.cpu import claims

    wrong = [b for b in program.buffers if b.dtype not in claims.DTYPES]
    if wrong:
        listed = ", ".join(f"{b.name!r} is {b.dtype}" for b in wrong[:8])
        raise UnsupportedOp(f"[cpu] these do not compile to native code: {listed}; device 'reference' runs them")


def _kept(program: Program) -> set[int]:
    """Buffers that `prepare` writes and `main` reads."""
    from rlx.kernel.ir.program import buffers_used

    written = {n for k in program.prepare for n in k.slots[: k.writes]}
    return written & (buffers_used(program, program.main) | set(program.outputs))


def _slot(program: Program, number: int) -> Slot:
    buffer = program.buffers[number]
    return Slot(number, TensorType((buffer.size,), buffer.dtype), buffer.name)


def _artifact(
    graph: Graph, program: Program, kept: set[int], machine_code: list[bytes], isa: Isa, report: dict[str, Any]
) -> Artifact:
    from rlx.backends.cpu import schedules
    from rlx.kernel.ir.program import buffers_used, has_loop, leaves

    read = buffers_used(program, program.main)
    outputs = [Slot(n, v.type, name) for n, (name, v) in zip(program.outputs, graph.outputs.items())]
    kernels = leaves(program.main)
    if report.get("profile"):
        report["sources"] = [k.sources for k in kernels]
    report = {
        **report,
        **schedules.facts(kernels, isa),
        "kernels": [k.name for k in kernels],
        "prepare_kernels": [k.name for k in program.prepare],
        "code_bytes": sum(map(len, machine_code)),
    }
    return Artifact(
        code=machine_code,
        symbols=program.symbols,
        buffers=len(program.buffers),
        inputs=[_slot(program, n) for n in program.inputs],
        params=[_slot(program, n) for n in program.params],
        outputs=outputs,
        kept=[_slot(program, n) for n in sorted(kept)],
        constants=program.constants,
        main_params=[n for n in (*program.params, *program.constants) if n in read],
        report=report,
        checks=[str(equality) for equality in program.checks],
        loops=any(map(has_loop, (*program.prepare, *program.main))),
        in_place=program.written_states(),
    )
