"""Turns a graph into kernels in C++ of GPUs: passes, lowering, a text for each, and the layout of a run's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rlx import flags
from rlx.backends import simt_claims, simt_support
from rlx.backends.base import QUANTISED, Options, Unsupported
from rlx.backends.claims import Claim
from rlx.backends.cuda import claims
from rlx.backends.cuda.moving import Sizes, in_rounds, moving_symbols, table_of
from rlx.backends.simt_support import refused
from rlx.codegen.simt import (
    contraction,
    fma_tile,
    irregular,
    row_product,
    team_attention,
    team_contraction,
    team_layouts,
    tile_contraction,
)
from rlx.codegen.simt.language.cpp import Cpp
from rlx.codegen.simt.language.cuda import CUDA
from rlx.codegen.simt.module import NVIDIA, CppModule, CppTarget, cpp_module, slots_of
from rlx.errors import UnsupportedOp
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.rewriting import Context
from rlx.ir.type import TensorType
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.blocks import PANEL, PANEL_BYTES
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.text import text_of
from rlx.kernel.passes.atomic_scatter import AtomicScatter
from rlx.kernel.passes.attention_tails import AttentionTails
from rlx.kernel.passes.bitonic import Bitonic
from rlx.kernel.passes.driver import KernelPass
from rlx.kernel.passes.flat_rows import FlatRows
from rlx.kernel.passes.float_parts import FloatParts
from rlx.kernel.passes.long_reductions import FOR_WORKGROUPS, LongReductions
from rlx.kernel.passes.memory import MemoryPlan, plan_memory
from rlx.kernel.passes.one_side import OneSide
from rlx.kernel.passes.pack import Pack, joined_taps
from rlx.kernel.passes.pack_blocks import PackBlocks
from rlx.kernel.passes.paired_sums import PairedSums
from rlx.kernel.passes.row_prologues import RowPrologues
from rlx.kernel.passes.row_tails import RowTails, SideWrites
from rlx.kernel.passes.short_factors import ShortFactors
from rlx.kernel.passes.side_by_side import BesideEachOther
from rlx.kernel.passes.split_kv import SplitKv
from rlx.kernel.passes.unpack_blocks import UnpackBlocks
from rlx.kernel.pipeline import to_kernels
from rlx.ops.packed import PackedMatmul
from rlx.passes.driver import Pass
from rlx.passes.merge_dots import MergePacked
from rlx.passes.pipeline import canonicalise, joined, layout, legalise, narrowed, optimise, raise_composites
from rlx.passes.precision import policy_of

HALF_OF = {"f16": dtypes.f16, "bf16": dtypes.bf16}
"""What products of floats take in a precision, where that has 16 bits."""
ALIGNMENT = 256
"""Bytes between which buffers of a run start."""
LEAST_SCORES = 1 << 19
"""Of attention whose queries have lanes of their own: those of one sentence leave most of a GPU idle."""


def why_unsupported(dtype: DType) -> str | None:
    """The reason why kernels cannot hold this dtype, or None."""
    return "kernels in C++ have no complex numbers" if dtype.is_complex else None


@dataclass(frozen=True)
class Maker:
    """What is made for the GPUs of a maker.

    device    the kind of device, as errors name it
    target    what its kernels may be
    passes    what makes of a program one for it
    padded    dtypes whose convolutions keep their pads, which products leave out
    claim     which composites its kernels take
    raises    what finds those that nets do not have as such
    lacks     why kernels cannot hold a dtype, or None
    """

    device: str
    target: CppTarget
    passes: Callable[[CppTarget], list[KernelPass]]
    padded: frozenset[DType] = frozenset()
    claim: Claim = simt_claims.claim
    raises: tuple[Pass, ...] = ()
    lacks: Callable[[DType], str | None] = why_unsupported

    def at(self, precision: str) -> Maker:
        """The maker of programs of a precision. `f32_fast` needs matrix units, and is f32 without them."""
        if precision != "f32_fast" or not self.target.teams:
            return self
        return replace(self, passes=lambda target: [FloatParts(_takes_parts), *self.passes(target)])

    def on(self, architecture: str) -> Maker:
        """The maker for a GPU of some architecture."""
        return replace(self, target=self.target.on(architecture))


@dataclass(frozen=True)
class Plan:
    """Everything of a compiled program but its weights and its machine code.

    module   the text of each kernel, by the id of the kernel
    memory   slots of the temporaries of `main`
    moving   symbols that move from run to run (`moving.py`)
    table    dims that depend on them, as kernels find them on the device
    """

    outputs: tuple[TensorType, ...]
    program: Program
    module: CppModule
    memory: MemoryPlan
    moving: frozenset[str] = frozenset()
    table: tuple[Dim, ...] = ()

    @cached_property
    def texts(self) -> dict[str, str]:
        """What is compiled: whole texts by the names of the kernels in them."""
        return {name: f"{self.module.prelude}\n{text}\n" for name, text in self.module.kernels.items()}


def _panels(work: Contraction) -> tuple[int, int]:
    """Of weights that a batch has one of for each, only matrix units find the panels."""
    width, group = team_contraction.panels(work)
    if work.blocks is not None or width or any(number < len(work.batch) for number, _ in work.b.axes):
        return width, group
    return contraction.panels(work)


def _most_rows(nest: LoopNest, work: Contraction) -> int:
    """Rows that a product makes itself; only one of weights in panels, which it asks for before."""
    return row_product.most_rows(nest, work) if work.packed and team_contraction.takes(work) else 0


def _most_unpaired(target: CppTarget) -> Callable[[Program, Kernel], int | None]:
    def most(program: Program, kernel: Kernel) -> int | None:
        assert isinstance(kernel.work, Contraction)
        return tile_contraction.most_unpaired(kernel.work, slots_of(program, kernel), target.warpgroups)

    return most


def _unpacks(work: Contraction) -> bool:
    """Whether workgroups unpack a right side of few bits, once that is in panels."""
    return team_contraction.takes(replace(work, packed=PANEL, group=PANEL_BYTES))


def _takes_parts(work: Contraction | FusedAttention) -> bool:
    """Whether matrix units compute products or attention of f32, as they lie or with weights in panels."""
    if isinstance(work, FusedAttention):
        return team_attention.takes(work)
    if work.blocks is not None:  # of many rows, once it is unpacked; of few, products are exact
        rows = Linear(0, ((work.n_axis, work.k), (work.k_axis, 1)))
        return team_contraction.takes(replace(work, b=rows, b_dtype=work.a_dtype, blocks=None))
    work = joined_taps(work)
    return team_contraction.takes(work) or team_contraction.panels(work)[0] > 0


def kernel_passes(target: CppTarget) -> list[KernelPass]:
    """What makes of a program one for NVIDIA's GPUs: attention of few queries, long selections, scatters and
    reductions as what many lanes can share, and weights in panels."""
    return [
        FlatRows(lambda work: bool(team_contraction.panels(work)[0]) or fma_tile.can_take(work)),
        AttentionTails(team_attention.takes),
        SplitKv(LEAST_SCORES, team_attention.takes, team_attention.takes if target.warpgroups else lambda work: False),
        Bitonic(irregular.is_long),
        AtomicScatter(irregular.is_long_scatter, CUDA.has_atomic),
        LongReductions(FOR_WORKGROUPS),
        Pack(_panels, batched=True),
        PackBlocks(lambda work: (PANEL, PANEL_BYTES) if _unpacks(work) else (0, 1)),
        SideWrites(),
        RowTails(),
        OneSide(),
        ShortFactors(),
        RowPrologues(_most_rows),
        PairedSums(_most_unpaired(target)),
        BesideEachOther(lambda nest: True),
        UnpackBlocks(team_layouts.most_rows_of_blocks),  # whose copies had better not all be there at once
    ]


def passes_without_matrix_units(language: Cpp) -> list[KernelPass]:
    """What makes of a program one for other makers' GPUs."""
    return [
        SplitKv(LEAST_SCORES),
        Bitonic(irregular.is_long),
        AtomicScatter(irregular.is_long_scatter, language.has_atomic),
        LongReductions(FOR_WORKGROUPS),
        Pack(contraction.panels),
    ]


PADDED = frozenset((*team_layouts.HALVES, dtypes.f32))
NVIDIAS = Maker("cuda", NVIDIA, kernel_passes, PADDED, claims.claim, (claims.weights,))


def program_of(graph: Graph, maker: Maker = NVIDIAS) -> Program:
    """The program of a graph: of composites it has what shaders have. Raises UnsupportedOp."""
    passes = _passes(Options(), maker)
    return to_kernels(optimise(graph, passes)[0], passes=maker.passes(maker.target), bounded=True)


def _passes(options: Options, maker: Maker) -> list[Pass]:
    precision = _precision_of_floats(options, maker)
    policy, narrows = policy_of(precision, also=(PackedMatmul,)), HALF_OF.get(precision)
    claimed = options.dispatch.claims(maker.claim)
    composites = [*canonicalise(claimed), *maker.raises, *raise_composites(), MergePacked()]
    ready = [*composites, *legalise(claimed, policy, narrows)]
    return [*ready, *narrowed(narrows), *layout(maker.padded), *joined()]


def _precision_of_floats(options: Options, maker: Maker) -> str:
    """That of what is no product in 8 bits: with `int8` and `f8`, what is left in floats has 16 bits, where there are
    matrix units."""
    return "f16" if options.precision in QUANTISED and maker.target.teams else options.precision


def unsupported(graph: Graph, maker: Maker = NVIDIAS) -> list[Unsupported]:
    """Nodes of the graph that `build` would refuse, found by the same steps."""
    return simt_support.unsupported(
        graph, _passes(Options(), maker), maker.lacks, lambda ready: _render(ready, Context(), maker)
    )


def build(graph: Graph, options: Options, maker: Maker = NVIDIAS) -> Plan:
    """The plan of a graph. Raises UnsupportedOp, CompileError."""
    disable = options.disable | frozenset(flags.disable())
    ready, report = optimise(graph, _passes(options, maker), disable)
    lacking = refused(ready, maker.lacks)
    if lacking:
        refusals = "; ".join(f"[{n.op.name}] at node {n.source or n.name!r}: {reason}" for n, reason in lacking)
        raise UnsupportedOp(f"[{maker.device}] {refusals}")
    plan = _render(ready, Context.after(report, disable), maker.at(options.precision))
    if flags.debug() >= 3:
        print(text_of(plan.program, lambda kernel: plan.module.variants[id(kernel)][0].shader.schedule))
        print("\n".join(plan.module.kernels.values()))
    return plan


def _render(ready: Graph, context: Context, maker: Maker) -> Plan:
    program = to_kernels(ready, passes=maker.passes(maker.target), context=context, bounded=True)
    outputs = tuple(v.type for v in ready.outputs.values())
    moving = moving_symbols(program, (dim for of in outputs for dim in of.shape))
    module = cpp_module([program], moving, maker.target)
    fixed = moving & in_rounds(program, module)
    if fixed:
        moving -= fixed
        module = cpp_module([program], moving, maker.target)
    memory = plan_temporaries(program, ready, context.enabled("memory-reuse"))
    return Plan(outputs, program, module, memory, moving, table_of(program, module, moving))


def plan_temporaries(program: Program, ready: Graph, reuse: bool) -> MemoryPlan:
    """Slots of `main`'s temporaries, by live range."""
    temps = {b.number for b in program.buffers if b.kind == "temp"} - program.static_buffers()
    return plan_memory(program, program.main, temps, ready.bounds, reuse)


@dataclass(frozen=True)
class Arena:
    """The memory of a run at one size, in bytes: where each buffer starts, and where inputs, outputs and the whole
    end. Inputs come first, then outputs, so that each are moved in one go."""

    start: Mapping[int, int]
    inputs_end: int
    outputs_end: int
    nbytes: int


def place_arena(program: Program, memory: MemoryPlan, sizes: Sizes) -> Arena:
    """States are no part of it, and outputs that lie in a state's memory, or in that of an input."""
    start: dict[int, int] = {}
    end = 0

    def place(numbers: Sequence[int], size: Dim) -> None:
        nonlocal end
        start.update(dict.fromkeys(numbers, end))
        end += -(-sizes.most(size) // ALIGNMENT) * ALIGNMENT

    marks = []
    for kind, numbers in (("input", program.inputs), ("output", program.outputs)):
        for number in dict.fromkeys(numbers):
            if program.buffers[number].kind == kind:
                place([number], program.buffers[number].nbytes)
        marks.append(end)
    numbers_of_slot: list[list[int]] = [[] for _ in memory.sizes]
    for number, slot in memory.slot_of.items():
        numbers_of_slot[slot].append(number)
    for numbers, size in zip(numbers_of_slot, memory.sizes):
        place(numbers, size)
    return Arena(start, marks[0], marks[1], end)
