"""Contractions of 16-bit floats whose operands the copy engine brings to workgroup memory: what it is told of both
sides, and where that puts them.

Rows of both sides come in lines of 128 bytes, of which the engine swaps the pieces by the line's number, as `wgmma`
expects them. In a packed weight such a line has two columns: what is swapped beyond what `wgmma` expects of 64 bytes
are columns of every other panel by pairs, so that sums of these come the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.maps import MOST_RANK, TileMap
from rlx.codegen.simt.team_layouts import CHUNK, HALVES, PANEL
from rlx.codegen.simt.tile_contraction import TileContraction
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear

LINE = 64
LINE_PIECES = 8
"""Elements along k of a stage, and pieces of 16 bytes that they are: what comes in one row of 128 bytes."""


class MappedContraction(TileContraction):
    """What writers of such contractions have in common: statements that ask for the tiles of a stage `now`, to a place
    `stage`, counted by `counter`."""

    def _left_tiles(self) -> Callable[[], None]:
        return self._tiles_of_rows(self.work.a_slot, self.work.a, self.work.m_axis, 0)

    def _right_tiles(self) -> Callable[[], None]:
        work, code, layout = self.work, self.code, self.ring
        start = layout.side_pieces[0]
        if not work.packed:
            return self._tiles_of_rows(work.b_slot, work.b, work.n_axis, start)
        chunks, halves = -(-_static(work.k) // CHUNK), 2 if work.paired else 1
        panels, of_half = -(-_static(work.n) // PANEL), layout.results[1] // PANEL
        extents: list[Dim] = [LINE, PANEL // 2, panels * halves, chunks]
        strides: list[Dim] = [LINE, CHUNK * PANEL * chunks, CHUNK * PANEL]
        axes = self._batch_axes(work.b, extents, strides)
        at_once = 1 if work.paired else layout.chunks
        number = self._map(
            work.b_slot, work.b, extents, strides, (LINE, PANEL // 2, of_half, at_once, *(1 for _ in axes))
        )

        def bring() -> None:
            for half in range(halves):
                for chunk in range(0, layout.chunks, at_once):
                    first = f"(int){self.left} / {PANEL} + {half * panels}"
                    places = ["0", "0", first, f"now * {layout.chunks} + {chunk}", *self._positions(axes)]
                    place = start + (chunk * layout.tile[1] // 2 + half * of_half * PANEL // 2) * LINE_PIECES
                    code.emit(f"bring_tile(map{number}, stage + {place}, counter, {', '.join(places)});")

        return bring

    def _tiles_of_rows(self, slot: int, line: Linear, axis: int, start: int) -> Callable[[], None]:
        """Those of a side whose rows, or columns, are contiguous along k."""
        work, code, layout = self.work, self.code, self.ring
        extents: list[Dim] = [work.k, work.m if axis == work.m_axis else work.n]
        strides = [line.coefficient(axis)]
        axes = self._batch_axes(line, extents, strides)
        rows = layout.tile[axis - work.m_axis]
        number = self._map(slot, line, extents, strides, (LINE, rows, *(1 for _ in axes)))

        def bring() -> None:
            first = self.top if axis == work.m_axis else self.left
            places = ", ".join([f"now * {LINE}", f"(int){first}", *self._positions(axes)])
            code.emit(f"bring_tile(map{number}, stage + {start}, counter, {places});")

        return bring

    def _batch_axes(self, line: Linear, extents: list[Dim], strides: list[Dim]) -> list[int]:
        """Axes of a batch along which a side differs, which become axes of its map."""
        work = self.work
        axes = [axis for axis in range(len(work.batch)) if line.coefficient(axis) != 0]
        extents += [work.batch[axis] for axis in axes]
        strides += [line.coefficient(axis) for axis in axes]
        return axes

    def _positions(self, axes: Sequence[int]) -> list[str]:
        return [f"(int){self.body.axes[axis]}" for axis in axes]

    def _map(self, slot: int, line: Linear, extents: list[Dim], strides: list[Dim], box: tuple[int, ...]) -> int:
        """The number of a map of a side."""
        made = TileMap(slot, self.work.a_dtype, line.const, tuple(extents), tuple(strides), box)
        self.code.maps.append(made)
        return len(self.code.maps) - 1


def takes(work: Contraction, language: Language) -> bool:
    """Whether maps can tell where both sides lie: rows and panels at fixed distances, of which no run moves any."""
    halves = (
        (not work.paired or work.dtype in HALVES)
        and work.a_dtype in HALVES
        and work.a_dtype is work.b_dtype
        and not work.float_parts
    )
    known = all(isinstance(d, int) for d in (work.k, work.n) if work.packed or d is work.k)
    moving: frozenset[str] = getattr(language, "moving", frozenset())
    still = not any(dims.symbols(dim) & moving for dim in work.dims())
    plain = not (work.taps or work.bounds or work.a.others or work.b.others)
    batched = [sum(side.coefficient(axis) != 0 for axis in range(len(work.batch))) for side in (work.a, work.b)]
    of_batch = batched[0] <= MOST_RANK - 2 and batched[1] <= MOST_RANK - (4 if work.packed else 2)
    return halves and known and still and plain and of_batch


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)  # asked by `takes`
    return dim
