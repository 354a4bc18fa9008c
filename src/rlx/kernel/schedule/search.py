"""Schedules that are worth trying for a kernel, beside the one that its generator chose: a few for each kind, which
every kernel of the kind can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rlx.kernel.schedule.tuned import USE_WINOGRAD, Tiles

WIDEST = 4
"""Vectors of sums in a row of a product's block."""
HEIGHTS = (14, 12, 10, 8, 6, 4)
MOST_BLOCKS = 8
IN_FLIGHT = (1, 2, 4, 8)
"""Vectors of elements side by side."""


def candidates(kind: str, tiles: Tiles, lanes: int, registers: int) -> list[dict[str, int]]:
    """Tiles to be changed, one dict for each schedule, the most promising first.

    tiles       of the schedule that the kernel has, by `level.axis`
    lanes       elements of a vector
    registers   vectors that the processor holds
    """
    found = _OF_KIND[kind](tiles, lanes, registers) if kind in _OF_KIND else ()
    changes = ({place: size for place, size in each.items() if tiles.get(place) != size} for each in found)
    distinct = {tuple(sorted(each.items())): each for each in changes if each}
    return list(distinct.values())


def _blocks(lanes: int, registers: int, widest: int = WIDEST) -> list[tuple[int, int]]:
    """Heights, and widths in vectors, of blocks of sums that leave registers for operands, the fullest first."""
    fitting = [
        (height, width) for width in range(1, widest + 1) for height in HEIGHTS
        if registers // 3 <= height * width <= registers - width - 1
    ]  # fmt: skip
    return sorted(fitting, key=lambda block: -block[0] * block[1])


def _contraction(tiles: Tiles, lanes: int, registers: int) -> Iterator[dict[str, int]]:
    for height, width in _blocks(lanes, registers)[:MOST_BLOCKS]:
        yield {"register.m": height, "register.n": width * lanes}
    for rows in (64, 256, 32, 512):
        yield {"cache.m": rows}
    yield {USE_WINOGRAD: 1}  # of no effect where it cannot be


def _winograd(tiles: Tiles, lanes: int, registers: int) -> Iterator[dict[str, int]]:
    yield {USE_WINOGRAD: 0}
    rows = tiles.get("thread.rows", 1)
    for count in (rows * 2, rows // 2, rows * 4):
        if count:
            yield {"thread.rows": count}
    for height in (6, 4, 12):
        yield {"register.tiles": height}


def _attention(tiles: Tiles, lanes: int, registers: int) -> Iterator[dict[str, int]]:
    for height, width in _blocks(lanes, registers)[:MOST_BLOCKS]:
        yield {"register.queries": height, "register.keys": width * lanes}


def _elements(tiles: Tiles, lanes: int, registers: int) -> Iterator[dict[str, int]]:
    for vectors in IN_FLIGHT:
        yield {"register.elements": vectors * lanes}


def _rows(tiles: Tiles, lanes: int, registers: int) -> Iterator[dict[str, int]]:
    for vectors in IN_FLIGHT:
        yield dict.fromkeys(tiles, vectors * lanes)


def _columns(tiles: Tiles, lanes: int, registers: int) -> Iterator[dict[str, int]]:
    yield from _elements(tiles, lanes, registers)
    terms = tiles.get("register.terms", 0)
    for count in (terms * 4, terms // 4):
        if count:
            yield {"register.terms": count}


def _windows(tiles: Tiles, lanes: int, registers: int) -> Iterator[dict[str, int]]:
    for vectors in (1, 2):
        for positions in (4, 2, 7, 3, 1, 5):
            yield {"register.positions": positions, "register.elements": vectors * lanes}


def _transpose(tiles: Tiles, lanes: int, registers: int) -> Iterator[dict[str, int]]:
    for squares in (2, 4, 1, 8):
        yield {"cache.rows": squares * lanes}


_OF_KIND: dict[str, Callable[[Tiles, int, int], Iterator[dict[str, int]]]] = {
    "attention": _attention,
    "columns": _columns,
    "contraction": _contraction,
    "map": _elements,
    "rows": _rows,
    "transpose": _transpose,
    "windows": _windows,
    "winograd": _winograd,
}
