"""Attention of few queries over many keys, as parts that many workgroups make and a kernel that joins them.

Each part has a score that none of its keys exceeds, the sum of powers, and the values mixed by these; parts are brought
to the greatest of all scores, and added. Source: Dao et al. 2023, "Flash-Decoding for long-context inference".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.errors import RlxError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.driver import LeafPass
from rlx.kernel.schedule.overrides import overridden
from rlx.kernel.schedule.schedule import Schedule, Tile

CHUNK = 128
"""Keys that are read together for one query; twice as many for several, of which each is then read less often."""
LANES = 64
"""Quads of features that are mixed side by side."""
MOST_GROUPS = 8
"""Parts of a chunk, at most."""
FEW_QUERIES = 8
"""Queries for which the work is spread over keys, at most."""


ROWS = 8
"""Queries of a workgroup, at most; half of them where heads are wide, for the sake of workgroup memory."""
WIDE = 32
"""Quads of features above which heads are wide."""
SHARED_FLOATS = 4096
"""Floats in the workgroup memory that every device has."""


def schedule(work: FusedAttention) -> Schedule:
    """A chunk of keys a workgroup, and so many of the queries that read them. Raises RlxError for tiles set by hand
    that no workgroup can have."""
    quads = -(-work.features // 4)
    rows = dims.mul(work.queries, work.repeat)
    most = ROWS if quads <= WIDE else ROWS // 2
    queries = min(most, rows) if isinstance(rows, int) else most
    keys = CHUNK if rows == 1 else 2 * CHUNK
    chosen = overridden(
        "split-kv",
        Schedule(
            tiles=(Tile("workgroup", "queries", queries), Tile("workgroup", "keys", keys)),
            vector=("features", 4),
            spaces=(("q", "shared"), ("k", "global"), ("v", "global"), ("scores", "shared")),
        ),
    )
    queries, keys = (chosen.static_tile("workgroup", axis) for axis in ("queries", "keys"))
    if keys % LANES:
        raise RlxError(f"[RLX_SCHEDULE] expected workgroup.keys in multiples of {LANES}, got {keys}, for split-kv")
    floats = queries * (4 * quads + keys + LANES + MOST_GROUPS)
    if floats > SHARED_FLOATS:
        raise RlxError(
            f"[RLX_SCHEDULE] expected tiles of at most {SHARED_FLOATS} floats, got {queries} queries and {keys} keys "
            f"of {work.features} features, which take {floats}, for split-kv"
        )
    return chosen


TEAM_CHUNK = 64
"""Keys of a workgroup whose warps have 16 each: as many workgroups as there may be, as each waits for memory mostly."""


def groups_of(work: FusedAttention, team: bool = False) -> int:
    """Parts that a chunk of keys is divided into, a power of two: narrow heads leave lanes for so many."""
    if team:
        return 1
    quads = -(-work.value_features // 4)
    return max(min(MOST_GROUPS, LANES >> (quads - 1).bit_length()), 1)


def chunk_of(work: FusedAttention, team: bool = False) -> int:
    """Keys that a workgroup reads."""
    return TEAM_CHUNK if team else schedule(work).static_tile("workgroup", "keys")


def parts_of(work: FusedAttention, team: bool = False) -> Dim:
    """How many parts a query has."""
    return dims.mul(dims.ceildiv(work.keys, chunk_of(work, team)), groups_of(work, team))


def part_length(work: FusedAttention) -> int:
    """Elements of a part."""
    return work.value_features + 2


class SplitKv(LeafPass):
    """Makes parts of attention that has few queries; where only a run knows how many, the run takes one way or the
    other.

    least_scores   fewer of these, over all heads, count as few queries too: a device has lanes for more
    for_teams      tells of attention that workgroups with matrix units compute: it keeps a device busy with fewer, and
                   its parts are theirs too
    joined         tells of attention whose kernels share the keys of few queries by themselves
    """

    name = "split-kv"

    def __init__(
        self, least_scores: int = 0, for_teams: Callable[[FusedAttention], bool] = lambda work: False,
        joined: Callable[[FusedAttention], bool] = lambda work: False,
    ) -> None:  # fmt: skip
        self.least_scores = least_scores
        self.for_teams = for_teams
        self.joined = joined

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        work = kernel.work
        if not isinstance(work, FusedAttention) or self.joined(work):
            return None
        return "few-queries" if self._few(work) != 0 else None

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        """The kernel itself for many queries, two others for few: those of these that may be needed."""
        work = kernel.work
        assert isinstance(work, FusedAttention)
        few = self._few(work)
        split = dataclasses.replace(work, live=few)
        rows = dims.product((few, work.batch, work.heads, work.queries))
        team = self.for_teams(work)
        size = dims.product((rows, parts_of(work, team), part_length(work)))
        parts = program.new_buffer("temp", dtypes.f32, size, f"{kernel.name}.parts")
        of_tail = list(dict.fromkeys(node.attr.slot for node in ex.walk(split.bodies()) if node.kind == "load"))
        kernels = [
            Kernel(f"{kernel.name}_parts", SplitKvPartial(split, team), (parts.number, *kernel.slots[1:]), 1),
            Kernel(
                f"{kernel.name}_join",
                SplitKvCombine(split.map_bodies(lambda body: _on_slots(body, of_tail)), team),
                (kernel.slots[0], parts.number, *(kernel.slots[slot] for slot in of_tail)),
                1,
            ),
        ]
        if few != 1:
            many = dims.add(1, dims.mul(few, -1))
            kernels.insert(0, dataclasses.replace(kernel, work=dataclasses.replace(work, live=many)))
        return [dataclasses.replace(each, sources=kernel.sources) for each in kernels]

    def _few(self, work: FusedAttention) -> Dim:
        """1 where there are few queries, 0 where there are many; a dim where only a run knows."""
        few = dims.maximum(dims.add(1, dims.mul(dims.floordiv(work.queries, FEW_QUERIES + 1), -1)), 0)
        if not self.least_scores or self.for_teams(work):
            return few
        scores = dims.product((work.batch, work.heads, work.queries, work.keys))
        return dims.maximum(few, dims.maximum(dims.add(1, dims.mul(dims.floordiv(scores, self.least_scores), -1)), 0))


def _on_slots(body: Expr, slots: list[int]) -> Expr:
    """The body of a kernel that has some slots of another one behind its result and the parts."""

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind != "load":
            return None
        return Expr("load", node.dtype, args, dataclasses.replace(node.attr, slot=2 + slots.index(node.attr.slot)))

    return ex.rewrite(body, rule)
