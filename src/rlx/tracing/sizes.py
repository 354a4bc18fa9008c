"""Which axes of arguments have names instead of sizes: those that came with several sizes. Axes whose sizes were always
the same share a name. An axis of size 1 is a number always, for it broadcasts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlx.ir import dim as dims
from rlx.ir.dim import Dim

Shapes = tuple[tuple[int, ...], ...]


class Sizes:
    """What the calls with the same dtypes and ranks have shown.

    names   of the leaves of arguments
    """

    def __init__(self, names: Sequence[str], ranks: Sequence[int]) -> None:
        self.axes = [(leaf, axis) for leaf, rank in enumerate(ranks) for axis in range(rank)]
        self._labels = [f"axis {axis} of {names[leaf]!r}" for leaf, axis in self.axes]
        self._symbols = _identifiers(f"{names[leaf]}_{axis}" for leaf, axis in self.axes)
        self._group: list[int | None] = [None] * len(self.axes)
        self._last: list[int | None] = [None] * len(self.axes)
        self._varies: set[int] = set()
        self._fixed: set[int] = set()

    def learn(self, shapes: Shapes) -> str:
        """Takes the shapes of a call into account; tells what is new, for people."""
        sizes = [shapes[leaf][axis] for leaf, axis in self.axes]
        told = [*self._apart(sizes), *self._varied(sizes)]
        self._last = [last if size == 1 else size for last, size in zip(self._last, sizes)]
        return "; ".join(told)

    def _apart(self, sizes: list[int]) -> list[str]:
        """Axes of one group whose sizes differ go into several."""
        told = []
        new = max((g for g in self._group if g is not None), default=-1) + 1
        first: dict[tuple[int | None, int], int] = {}
        of_group: dict[int, int] = {}
        for i, size in enumerate(sizes):
            group = self._group[i]
            if size == 1 or group is None:
                continue
            if of_group.setdefault(group, size) != size:
                if (group, size) not in first:
                    first[group, size] = new
                    new += 1
                    other = next(j for j in range(i) if self._group[j] == group and sizes[j] == of_group[group])
                    told.append(f"{self._labels[other]} and {self._labels[i]} were equal so far, and are not now")
                self._group[i] = first[group, size]
        known = {size: group for group, size in of_group.items()}
        for i, size in enumerate(sizes):  # axes that had no size but 1 so far go with those of equal size
            if size != 1 and self._group[i] is None:
                if size not in known:
                    known[size] = new
                    new += 1
                self._group[i] = known[size]
        return told

    def _varied(self, sizes: list[int]) -> list[str]:
        told = []
        for i, (last, size) in enumerate(zip(self._last, sizes)):
            if last is not None and size not in (1, last) and i not in self._varies:
                self._varies.add(i)
                told.append(f"{self._labels[i]} came with {size} after {last}")
        return told

    def fix(self, symbols: set[str], shapes: Shapes) -> None:
        """Makes axes numbers that the function asks for as numbers."""
        for i, (leaf, axis) in enumerate(self.axes):
            if str(self._dim(i, shapes[leaf][axis])) in symbols:
                self._fixed.add(i)

    def declared(self, shapes: Shapes) -> list[tuple[Dim, ...]]:
        """The dims of each leaf for a call of these shapes."""
        declared: list[list[Dim]] = [[] for _ in shapes]
        for i, (leaf, axis) in enumerate(self.axes):
            declared[leaf].append(self._dim(i, shapes[leaf][axis]))
        return [tuple(each) for each in declared]

    def _dim(self, i: int, size: int) -> Dim:
        group = self._group[i]
        together = {j for j, of in enumerate(self._group) if of == group}
        if size == 1 or group is None or not together & self._varies or together & self._fixed:
            return size
        return dims.symbol(self._symbols[self._group.index(group)])


def fits(declared: Sequence[tuple[Dim, ...]], shapes: Shapes) -> dict[str, int] | None:
    """The sizes of the dims if a call of these shapes is one for which they were declared."""
    sizes: dict[str, int] = {}
    for of, shape in zip(declared, shapes):
        for dim, size in zip(of, shape):
            if isinstance(dim, int):
                if dim != size:
                    return None
            elif size == 1 or sizes.setdefault(str(dim), size) != size:
                return None
    return sizes


def _identifiers(texts: Iterable[str]) -> list[str]:
    """Names of dims, each another."""
    names: dict[str, None] = {}
    for text in texts:
        name = "".join(c if c.isalnum() else "_" for c in text)
        name = name if name.isidentifier() else f"_{name}"
        while name in names:
            name += "_"
        names[name] = None
    return list(names)
