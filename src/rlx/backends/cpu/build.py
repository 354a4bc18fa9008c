"""Compilation on the CPU, step by step: passes, lowering, packing, code, object file."""

from __future__ import annotations

import time
from typing import Any

from rlx import flags
from rlx.backends.base import Options
from rlx.backends.cpu import claims, gemm
from rlx.backends.cpu.codegen import Code, generate
from rlx.backends.cpu.executable import Artifact, CpuExecutable, Slot
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.jit import emit_object
from rlx.errors import UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.type import TensorType
from rlx.kernel.lower import lower
from rlx.kernel.nest import Contraction, Program
from rlx.kernel.pack import pack_weights
from rlx.passes.pipeline import optimise


def build(graph: Graph, isa: Isa, options: Options) -> CpuExecutable:
    """The executable of a graph. Raises UnsupportedOp, CompileError."""
    return CpuExecutable(compile_artifact(graph, isa, options), isa, options.threads)


def compile_artifact(graph: Graph, isa: Isa, options: Options) -> Artifact:
    """Everything but the weights. Raises UnsupportedOp naming every node that has no kernel."""
    disable = options.disable | frozenset(flags.disable())
    clock = _Clock()
    made, _ = optimise(graph, claims.claims, disable=disable)
    clock.lap("passes")
    program = lower(made, disable)
    _refuse_dtypes(program)
    if "pack" not in disable:
        pack_weights(program, lambda work: _panel_width(work, isa))
    kept = _kept(program)
    clock.lap("lower")
    code = generate(program, isa, made.bounds, kept, reuse="memory-reuse" not in disable)
    clock.lap("codegen")
    machine_code = emit_object(code.text, isa)
    clock.lap("llvm")
    if flags.debug() >= 3:
        print(code.text)
    return _artifact(graph, program, kept, code, machine_code, {"ms": clock.laps, "isa": isa.name})


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round((now - self._last) * 1e3, 2)
        self._last = now


def _refuse_dtypes(program: Program) -> None:
    wrong = [b for b in program.buffers if b.dtype not in claims.DTYPES]
    if wrong:
        listed = ", ".join(f"{b.name!r} is {b.dtype}" for b in wrong[:8])
        raise UnsupportedOp(f"[cpu] these do not compile to native code: {listed}; device 'reference' runs them")


def _panel_width(work: Contraction, isa: Isa) -> int:
    return gemm.panel_vectors(work.n, isa) * isa.lanes if gemm.takes(work) else 0


def _kept(program: Program) -> set[int]:
    """Buffers that `prepare` writes and `main` reads."""
    written = {n for k in program.prepare for n in k.slots[: k.writes]}
    return written & ({n for k in program.main for n in k.slots} | set(program.outputs))


def _slot(program: Program, number: int) -> Slot:
    buffer = program.buffers[number]
    return Slot(number, TensorType((buffer.size,), buffer.dtype), buffer.name)


def _artifact(
    graph: Graph, program: Program, kept: set[int], code: Code, machine_code: bytes, report: dict[str, Any]
) -> Artifact:
    read = {n for k in program.main for n in k.slots}
    outputs = [Slot(n, v.type, name) for n, (name, v) in zip(program.outputs, graph.outputs.items())]
    report = {
        **report,
        "kernels": [k.name for k in program.main],
        "prepare_kernels": [k.name for k in program.prepare],
        "code_bytes": len(machine_code),
    }
    prepare_arena = dims.evaluate(code.prepare.memory.total, {})
    return Artifact(
        code=machine_code,
        symbols=program.symbols,
        buffers=len(program.buffers),
        inputs=[_slot(program, n) for n in program.inputs],
        params=[_slot(program, n) for n in program.params],
        outputs=outputs,
        kept=[_slot(program, n) for n in sorted(kept)],
        constants=program.constants,
        arena=code.main.memory.total,
        scratch=code.main.scratch,
        prepare_arena=prepare_arena,
        prepare_scratch=dims.evaluate(code.prepare.scratch, {}),
        main_params=[n for n in (*program.params, *program.constants) if n in read],
        report=report,
    )
