"""Attention of few queries over many keys, as parts that many workgroups make and a kernel that joins them.

Each part has a score that none of its keys exceeds, the sum of powers, and the values mixed by these; parts are brought
to the greatest of all scores, and added. Source: Dao et al. 2023, "Flash-Decoding for long-context inference".
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.flatten import replace_leaves
from rlx.kernel.nest import AttentionWork, Kernel, Program

CHUNK = 128
"""Keys that are read together for one query; twice as many for several, of which each is then read less often."""
LANES = 64
"""Quads of features that are mixed side by side."""
MOST_GROUPS = 8
"""Parts of a chunk, at most."""
FEW_QUERIES = 8
"""Queries for which the work is spread over keys, at most."""


@dataclass(frozen=True)
class AttentionParts:
    """Makes the parts of `work`. Slot 0 has, for every (batch, head, query, part of the keys), the mixed values of each
    feature, the greatest score, and the sum of powers; the other slots are as those of the work."""

    work: AttentionWork


@dataclass(frozen=True)
class AttentionJoin:
    """Makes the result of `work` (slot 0) of its parts (slot 1)."""

    work: AttentionWork


def groups_of(work: AttentionWork) -> int:
    """Parts that a chunk of keys is divided into, a power of two: narrow heads leave lanes for so many."""
    quads = -(-work.value_features // 4)
    return max(min(MOST_GROUPS, LANES >> (quads - 1).bit_length()), 1)


def chunk_of(work: AttentionWork) -> int:
    """Keys that a workgroup reads."""
    return CHUNK if dims.mul(work.queries, work.repeat) == 1 else 2 * CHUNK


def parts_of(work: AttentionWork) -> Dim:
    """How many parts a query has."""
    return dims.mul(dims.ceildiv(work.keys, chunk_of(work)), groups_of(work))


def part_length(work: AttentionWork) -> int:
    """Elements of a part."""
    return work.value_features + 2


def split_attention(program: Program) -> None:
    """Makes parts of attention that has few queries; where only a run knows how many, the run takes one way or the
    other."""

    def split(kernel: Kernel) -> list[Kernel] | None:
        return _ways(program, kernel, kernel.work) if isinstance(kernel.work, AttentionWork) else None

    replace_leaves(program, split)


def _ways(program: Program, kernel: Kernel, work: AttentionWork) -> list[Kernel]:
    """The kernel itself for many queries, two others for few: those of these that may be needed."""
    few = dims.maximum(dims.add(1, dims.mul(dims.floordiv(work.queries, FEW_QUERIES + 1), -1)), 0)
    if few == 0:
        return [kernel]
    split = dataclasses.replace(work, live=few)
    rows = dims.product((few, work.batch, work.heads, work.queries))
    size = dims.product((rows, parts_of(work), part_length(work)))
    parts = program.new_buffer("temp", dtypes.f32, size, f"{kernel.name}.parts")
    made = [
        Kernel(f"{kernel.name}_parts", AttentionParts(split), (parts.number, *kernel.slots[1:]), 1),
        Kernel(f"{kernel.name}_join", AttentionJoin(split), (kernel.slots[0], parts.number), 1),
    ]
    if few != 1:
        many = dims.add(1, dims.mul(few, -1))
        made.insert(0, dataclasses.replace(kernel, work=dataclasses.replace(work, live=many)))
    return [dataclasses.replace(each, sources=kernel.sources) for each in made]
