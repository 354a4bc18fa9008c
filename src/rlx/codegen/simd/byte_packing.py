"""Packs panels of bytes that are known only at run time: [⌈k / 4⌉][columns][4], as the core for bytes reads them.

Where columns are neighbours in memory, vectors of four rows are interleaved. Where a column's elements are, four of
them are a word, and squares of words are transposed in registers. What neither covers is put together word by word.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.codegen.simd.body import Body, lane_mask
from rlx.codegen.simd.packing import Source
from rlx.codegen.simd.transpose import transpose

GROUP = 4
"""Elements of a column that lie together."""


def pack_byte_panel(
    body: Body, work_axes: tuple[int, int], vectors: int, extents: tuple[str, str], source: Source
) -> None:  # fmt: skip
    """Copies a panel of a matrix of bytes into scratch, with zeros behind k.

    Columns behind the last are whatever scratch holds, or repeat the last one. Whole squares are written behind k: a
    panel needs room for `lanes - 1` more groups.

    work_axes  loop axes (k, n) that the source's offset is linear in
    extents    (k, columns left from the panel's first one)
    """
    _BytePanel(body, work_axes, vectors, extents, source).write()


class _BytePanel:
    def __init__(
        self, body: Body, work_axes: tuple[int, int], vectors: int, extents: tuple[str, str], source: Source
    ) -> None:  # fmt: skip
        self.body, self.f, self.lanes, self.vectors = body, body.f, body.lanes, vectors
        self.depth, self.columns = extents
        self.source, self.width = source, vectors * body.lanes
        f, (k_axis, n_axis) = self.f, work_axes
        self.k_step, self.n_step = (f.dim(source.offset.coefficient(axis)) for axis in work_axes)
        self.groups = f.divide(self.depth, str(GROUP))
        body.push()
        body.axes[k_axis], body.axes[n_axis] = "0", source.column
        self.first = body.pointer(source.slot, source.dtype, source.offset)
        body.pop()
        self.last = f.smax(f.sub(self.columns, "1"), "0")
        self.last_row = f.sub(self.depth, "1")

    def write(self) -> None:
        if self.n_step == "1":
            if not self.source.ragged:
                self._interleaved(range(self.vectors), "")
                return
            whole = self.f.value(f"icmp sge i64 {self.columns}, {self.width}")
            self.f.branch(whole, lambda: self._interleaved(range(self.vectors), ""), self._interleaved_rest)
        elif self.k_step == "1":
            self._turned()
            self._words(self.groups)
        else:
            self._words("0")

    def _at(self, k: str, column: str) -> str:
        """Address of an element of the matrix, by its row and its column in the panel."""
        f = self.f
        return f.offset(self.first, "i8", f.add(f.mul(k, self.k_step), f.mul(column, self.n_step)))

    def _target(self, group: str, column: str) -> str:
        return self.f.offset(self.source.target, "i32", self.f.add(self.f.mul(group, str(self.width)), column))

    def _ends(self) -> str:
        """Groups of a panel, the last of which may lack rows."""
        return self.f.ceil_divide(self.depth, str(GROUP))

    # columns side by side

    def _interleaved_rest(self) -> None:
        """The last panel: vectors of which there are all columns, and one of which there are some."""
        f = self.f
        for j in range(self.vectors):
            left = f.sub(self.columns, str(j * self.lanes))
            whole = f.value(f"icmp sge i64 {left}, {self.lanes}")

            def some(j: int = j, left: str = left) -> None:
                mask = lane_mask(self.body, left)
                f.branch(f.value(f"icmp sgt i64 {left}, 0"), lambda: self._interleaved(range(j, j + 1), mask))

            f.branch(whole, lambda j=j: self._interleaved(range(j, j + 1), ""), some)  # type: ignore[misc]

    def _interleaved(self, numbers: range, mask: str) -> None:
        """These vectors of the panel, from neighbouring columns."""
        f = self.f

        def group(rows: Callable[[str, int, int], str]) -> Callable[[str, list[str]], list[str]]:
            def one(at: str, _: list[str]) -> list[str]:
                for j in numbers:
                    self._store(at, j, [rows(f.mul(at, str(GROUP)), i, j) for i in range(GROUP)])
                return []

            return one

        def inside(first: str, i: int, j: int) -> str:
            return self._row(f.add(first, str(i)), j, mask)

        def at_the_end(first: str, i: int, j: int) -> str:
            row = f.add(first, str(i))
            wide = self._row(f.smin(row, self.last_row), j, mask)
            kind = self.body.kind("i32", True)
            there = f.value(f"icmp sle i64 {row}, {self.last_row}")
            return f.value(f"select i1 {there}, {kind} {wide}, {kind} zeroinitializer")

        f.loop("0", self.groups, 1, [], group(inside))
        ends = self._ends()
        if ends != self.groups:
            f.loop(self.groups, ends, 1, [], group(at_the_end))

    def _row(self, k: str, j: int, mask: str) -> str:
        """A vector of a row, each byte in 32 bits."""
        wide, kind = self.body.kind("i8", True), self.body.kind("i32", True)
        raw = self.body.load_vector(self._at(k, str(j * self.lanes)), "i8", 1, mask or None)
        return self.f.value(f"zext {wide} {raw} to {kind}")

    def _store(self, group: str, j: int, rows: list[str]) -> None:
        f, kind = self.f, self.body.kind("i32", True)
        word = rows[0]
        for i, row in enumerate(rows[1:], 1):
            places = "<" + ", ".join([f"i32 {8 * i}"] * self.lanes) + ">"
            word = f.value(f"or {kind} {word}, {f.value(f'shl {kind} {row}, {places}')}")
        f.emit(f"store {kind} {word}, ptr {self._target(group, str(j * self.lanes))}, align 4")

    # elements of a column side by side

    def _turned(self) -> None:
        """All groups that have four rows, as squares of words."""
        f, lanes = self.f, self.lanes
        whole = f.mul(f.divide(self.groups, str(lanes)), str(lanes))
        f.loop("0", whole, lanes, [], lambda at, _: self._square(at, None))
        if whole != self.groups:
            f.loop(whole, self.groups, lanes, [], lambda at, _: self._square(at, lane_mask(self.body, self._left(at))))

    def _left(self, at: str) -> str:
        return self.f.sub(self.groups, at)

    def _square(self, group: str, mask: str | None) -> list[str]:
        """As many groups of each column as a vector has lanes, or those in the mask, and zeros."""
        f, kind = self.f, self.body.kind("i32", True)
        first = f.mul(group, str(GROUP))
        for j in range(self.vectors):
            columns = (f.smin(str(j * self.lanes + lane), self.last) for lane in range(self.lanes))
            words = [self.body.load_vector(self._at(first, column), "i32", 1, mask) for column in columns]
            for lane, row in enumerate(transpose(self.body, words, "i32")):
                place = self._target(f.add(group, str(lane)), str(j * self.lanes))
                f.emit(f"store {kind} {row}, ptr {place}, align 4")
        return []

    # word by word

    def _words(self, first: str) -> None:
        """Groups from this one on, wherever their bytes lie."""
        ends = self._ends()
        if ends == first:
            return
        f = self.f

        def group(at: str, _: list[str]) -> list[str]:
            k = f.mul(at, str(GROUP))
            rows = [f.add(k, str(i)) for i in range(GROUP)]
            near = [f.smin(row, self.last_row) for row in rows]
            there = [f.value(f"icmp sle i64 {row}, {self.last_row}") for row in rows]

            def column(number: str, _: list[str]) -> list[str]:
                inside, word = f.smin(number, self.last), "0"
                for i in range(GROUP):
                    byte = f.value(f"load i8, ptr {self._at(near[i], inside)}, align 1")
                    known = f.value(f"select i1 {there[i]}, i8 {byte}, i8 0")
                    shifted = f.value(f"shl i32 {f.value(f'zext i8 {known} to i32')}, {8 * i}")
                    word = shifted if i == 0 else f.value(f"or i32 {word}, {shifted}")
                f.emit(f"store i32 {word}, ptr {self._target(at, number)}, align 4")
                return []

            f.loop("0", str(self.width), 1, [], column)
            return []

        f.loop(first, ends, 1, [], group)
