"""A kernel as a shader, by the writer of its kind of work."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.codegen.simt import (
    brought_attention,
    cluster_attention,
    contraction,
    fma_tile,
    irregular,
    loops,
    piped_contraction,
    row_product,
    side_by_side,
    sliced,
    team_attention,
    team_contraction,
    team_join,
    team_parts,
    tile_attention,
    wide_nests,
)  # fmt: skip
from rlx.codegen.simt.code import Binding, Shader, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.cuda import Cuda
from rlx.codegen.simt.language.wgsl.language import WGSL
from rlx.codegen.simt.language.wgsl.types import PLAIN, Target
from rlx.errors import CompileError
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import RowProduct, SideBySide
from rlx.kernel.ir.irregular import BitonicSort, PrefixScan, Scatter, TopKSelection
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Kernel


def render(
    kernel: Kernel,
    slots: Sequence[Slot],
    bindings: Sequence[Binding],
    name: str,
    target: Target = PLAIN,
    language: Language = WGSL,
) -> Shader:
    """The shader `name` of a kernel, whose slot i is `slots[i]`, in one of the storage `bindings`. Raises
    CompileError."""
    match kernel.work:
        case SideBySide() as work if isinstance(language, Cuda):
            return side_by_side.render(work, slots, bindings, name, target, language)
        case RowProduct() as work:
            return row_product.RowProductWriter(work, slots, language, target).shader(bindings, name)
        case LoopNest() as work if target.teams and (width := wide_nests.width_of(work, slots)):
            return wide_nests.WideNest(work, slots, language, width).shader(bindings, name)
        case LoopNest() as work:
            return loops.render(work, slots, bindings, name, target, language)
        case Contraction() as work:
            return _of_contraction(work, slots, bindings, name, target, language)
        case FusedAttention() as work if target.teams and team_attention.takes(work):
            if target.rows == team_attention.CLUSTER_GUESS:
                return cluster_attention.ClusterAttention(work, slots, language).shader(bindings, name)
            if target.rows >= team_attention.SOME_GUESS and tile_attention.takes(work, slots):
                if target.warpgroups and brought_attention.takes(work, target.rows):
                    return brought_attention.BroughtAttention(work, slots, language).shader(bindings, name)
                return tile_attention.TileAttention(work, slots, language, target.warpgroups).shader(bindings, name)
            return team_attention.TeamAttention(work, slots, language, target.rows).shader(bindings, name)
        case SplitKvPartial(team=True) as work:
            return team_parts.TeamParts(work, slots, language).shader(bindings, name)
        case SplitKvCombine() as work if target.teams and team_join.takes(work):
            return team_join.TeamJoin(work, slots, language).shader(bindings, name)
        case (
            FusedAttention()
            | SplitKvPartial()
            | SplitKvCombine()
            | Scatter()
            | PrefixScan()
            | TopKSelection()
            | BitonicSort()
        ) as work:
            return irregular.render(work, slots, bindings, name, target, language)
    sources = ", ".join(kernel.sources)
    raise CompileError(f"[{kernel.name}] no shader for {type(kernel.work).__name__}, at node {sources}")


def _of_contraction(
    work: Contraction, slots: Sequence[Slot], bindings: Sequence[Binding], name: str, target: Target, language: Language
) -> Shader:
    given = (work, slots, bindings, name, target, language)
    if work.blocks is not None:
        if target.teams and team_contraction.takes(work):
            return team_contraction.render(*given)
        return loops.render(work.as_nest(), slots, bindings, name, target, language)
    if target.teams and team_contraction.takes(work):
        return piped_contraction.render(*given)
    if target.teams and (tile := fma_tile.layout_of(work, slots, target)):
        return fma_tile.render(*given, tile)
    if sliced.takes(work, target):
        return sliced.Sliced(work, slots, bindings, name, language).render()
    return contraction.render(*given)
