"""Turns a graph into shaders: passes, lowering, one shader per kernel, and the layout of buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial

from rlx import flags
from rlx.backends import simt_support
from rlx.backends.base import Options, Unsupported
from rlx.backends.simt_claims import claim
from rlx.backends.simt_support import refused
from rlx.backends.wgpu.device import PORTABLE_BINDING, STORAGE_BUFFERS
from rlx.backends.wgpu.layout import (
    ARENA,
    Heaps,
    choose_heaps,
    is_packed,
    place_arena,
    plan_arena,
    split_arena,
)
from rlx.codegen.simt import contraction
from rlx.codegen.simt import irregular as special
from rlx.codegen.simt.code import Binding, Shader, Slot
from rlx.codegen.simt.kernel import render
from rlx.codegen.simt.language.wgsl.language import WGSL
from rlx.codegen.simt.language.wgsl.types import PLAIN, Target, atomic_type, why_unsupported
from rlx.errors import UnsupportedOp
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.rewriting import Context
from rlx.ir.type import TensorType
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.irregular import Scatter
from rlx.kernel.ir.program import Kernel, Program, leaves
from rlx.kernel.ir.text import text_of
from rlx.kernel.passes.aliases import LegaliseAliases
from rlx.kernel.passes.atomic_scatter import AtomicScatter
from rlx.kernel.passes.bitonic import Bitonic
from rlx.kernel.passes.driver import KernelPass
from rlx.kernel.passes.long_reductions import FOR_WORKGROUPS, LongReductions
from rlx.kernel.passes.memory import MemoryPlan
from rlx.kernel.passes.pack import Pack
from rlx.kernel.passes.split_kv import SplitKv
from rlx.kernel.pipeline import to_kernels
from rlx.passes.driver import Pass
from rlx.passes.pipeline import layout, optimise, standard
from rlx.records import dataclass

WORDS = "u32"
HALF = "f16"
QUADS = "vec4<f32>"


@dataclass(frozen=True, eq=False)
class Step:
    """A kernel with its shader; `heaps[i]` is what the shader's storage binding i is bound to."""

    kernel: Kernel
    shader: Shader
    heaps: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Everything of a compiled program but its weights and its pipelines. `prepare` and `main` are the kernels that do
    something themselves; which of them run, and how often, the branches and loops of `program` tell."""

    outputs: tuple[TensorType, ...]
    program: Program
    heaps: Heaps
    memory: MemoryPlan
    prepare: tuple[Step, ...]
    main: tuple[Step, ...]

    def fitting(self, binding: Mapping[str, int], limit: int) -> Heaps:
        """The heaps of a run at these dims on a device that binds `limit` bytes at once."""
        if place_arena(self.program, self.memory, self.heaps, binding).largest <= limit:
            return self.heaps
        return split_arena(self.program, self.memory, self.heaps, binding, limit)

    def with_heaps(self, heaps: Heaps) -> Plan:
        """The plan with its arena in other pieces. Raises UnsupportedOp where a kernel needs too many of them."""
        main = tuple(_step(self.program, heaps, kernel, False) for kernel in leaves(self.program.main))
        return replace(self, heaps=heaps, main=main)

    @cached_property
    def by_kernel(self) -> dict[int, Step]:
        """Steps by the id of their kernel."""
        return {id(step.kernel): step for step in (*self.prepare, *self.main)}


def _passes(options: Options) -> list[Pass]:
    return [*standard(options.dispatch.claims(claim), options.policy()), *layout()]


def unsupported(graph: Graph) -> list[Unsupported]:
    """Nodes of the graph that `build` would refuse, found by the same steps."""
    return simt_support.unsupported(
        graph, _passes(Options()), why_unsupported, lambda ready: _render(ready, Context(), PORTABLE_BINDING, PLAIN)
    )


def build(graph: Graph, options: Options, limit: int, target: Target = PLAIN) -> Plan:
    """The plan of a graph for a device that binds `limit` bytes at once, and has what `target` says.

    Raises UnsupportedOp, CompileError.
    """
    disable = options.disable | frozenset(flags.disable())
    ready, report = optimise(graph, _passes(options), disable)
    lacking = refused(ready, why_unsupported)
    if lacking:
        refusals = "; ".join(f"[{n.op.name}] at node {n.source or n.name!r}: {reason}" for n, reason in lacking)
        raise UnsupportedOp(f"[wgpu] {refusals}")
    plan = _render(ready, Context.after(report, disable), limit, target)
    if not plan.program.symbols:
        heaps = plan.fitting({}, limit)
        plan = plan if heaps is plan.heaps else plan.with_heaps(heaps)
    if flags.debug() >= 3:
        print(text_of(plan.program, lambda kernel: plan.by_kernel[id(kernel)].shader.schedule))
        print("\n".join(dict.fromkeys(step.shader.text for step in (*plan.prepare, *plan.main))))
    return plan


def computes_in(graph: Graph, dtype: DType) -> bool:
    """Whether values of a dtype are in a graph, or in what its nodes run."""
    values = (v for node in graph.nodes for v in (*node.inputs, *node.outputs))
    nested = (region for node in graph.nodes for region in node.regions)
    return any(v.dtype is dtype for v in values) or any(computes_in(region, dtype) for region in nested)


def _render(ready: Graph, context: Context, limit: int, target: Target) -> Plan:
    program = to_kernels(ready, passes=[*kernel_passes(target), Pack(contraction.panels)], context=context)
    heaps = choose_heaps(program, limit, target)
    memory = plan_arena(program, heaps, ready.bounds, context.enabled("memory-reuse"))
    prepare = tuple(_step(program, heaps, kernel, True) for kernel in program.prepare)
    main = tuple(_step(program, heaps, kernel, False) for kernel in leaves(program.main))
    return Plan(tuple(v.type for v in ready.outputs.values()), program, heaps, memory, prepare, main)


def kernel_passes(target: Target = PLAIN) -> list[KernelPass]:
    """What makes of a program one for this device: regions that one arena can hold, and attention of few queries, long
    selections, scatters and reductions as what many invocations can share."""
    return [
        LegaliseAliases(partial(is_packed, target=target)),
        SplitKv(),
        Bitonic(special.is_long),
        AtomicScatter(partial(special.is_long_scatter, target=target), WGSL.has_atomic),
        LongReductions(FOR_WORKGROUPS),
    ]


def _step(program: Program, heaps: Heaps, kernel: Kernel, writes_weights: bool) -> Step:
    """The shader of a kernel. Each heap is bound once; packed weights once more, as quads."""
    used = list(dict.fromkeys(heaps.of[n] for n in kernel.slots))
    work = kernel.work
    bindings = [Binding(HALF if heap in heaps.halves else WORDS, writes_weights or heap <= ARENA) for heap in used]
    target = used.index(heaps.of[kernel.slots[0]])
    joins = isinstance(work, Scatter) and work.atomic
    atomic = atomic_type(program.buffers[kernel.slots[0]].dtype) if joins else ""
    if atomic:
        bindings[target] = Binding(f"atomic<{atomic}>", True)
    quads: dict[int, int] = {}
    if isinstance(work, Contraction) and work.packed:
        quads[work.b_slot] = len(used)
        used.append(heaps.of[kernel.slots[work.b_slot]])
        bindings.append(Binding(QUADS, False))
    if len(bindings) > STORAGE_BUFFERS:
        raise UnsupportedOp(
            f"[{kernel.name}] expected operands in at most {STORAGE_BUFFERS} pieces of memory, got {len(bindings)}, "
            f"at nodes {', '.join(kernel.sources)}"
        )
    slots = []
    for i, number in enumerate(kernel.slots):
        buffer = program.buffers[number]
        storage = used.index(heaps.of[number])
        access = atomic if storage == target else ""
        native = heaps.target.is_native(buffer.dtype)
        slots.append(Slot(buffer.dtype, storage, is_packed(buffer, heaps.target), quads.get(i), access, native))
    return Step(kernel, render(kernel, slots, bindings, kernel.name, heaps.target), tuple(used))
