"""Pieces of work that run side by side in one kernel: each has blocks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from rlx.codegen.simt import loops
from rlx.codegen.simt.code import WIDE, WORKGROUP, Binding, Shader, Slot
from rlx.codegen.simt.language.cuda import Cuda
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.errors import CompileError
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.fused import SideBySide
from rlx.kernel.ir.loops import LoopNest


def render(
    work: SideBySide, slots: Sequence[Slot], bindings: Sequence[Binding], name: str, target: Target, language: Cuda
) -> Shader:
    """The shader of nests side by side, the blocks of each behind those of the one before. Raises CompileError for
    other work."""
    part = language.part(len(slots))
    made: list[Shader] = []
    for nest in work.works:
        if not isinstance(nest, LoopNest):
            raise CompileError(f"[{name}] expected nests side by side, got {type(nest).__name__}")
        made.append(loops.render(nest, slots, bindings, name, target, part))
    counts = [_blocks(shader) for shader in made]
    wide = all(shader.wide_positions is not None for shader in made)
    extents = [shader.positions for shader in made] if wide else counts
    text = part.whole([shader.text for shader in made], extents, bindings, name, wide)
    wide_counts = reduce(dims.add, (dims.ceildiv(shader.positions, WIDE) for shader in made)) if wide else None
    iterations = reduce(dims.maximum, (shader.iterations for shader in made))
    checks = tuple(check for shader in made for check in shader.checks)
    return Shader(
        text, tuple(bindings), len(slots), part.shared.numbers, reduce(dims.add, counts), True, iterations, checks,
        schedule=made[0].schedule, wide_positions=wide_counts,
    )  # fmt: skip


def _blocks(shader: Shader) -> Dim:
    return shader.positions if shader.team else dims.ceildiv(shader.positions, WORKGROUP)
