"""Winograd's convolution F(4x4, 3x3): 4x4 results of a 3x3 window with stride 1 from 36 products instead of 144.

    Y = Aᵀ [ (G g Gᵀ) ⊙ (Bᵀ d B) ] A

with interpolation at 0, ±3/4, ±3/2 and infinity: a third of the error of the usual points 0, ±1, ±2 (relative error of
results about 1e-6; Source: Lavin & Gray 2015, arXiv:1509.09308; the choice of points: Barabasz et al. 2018,
arXiv:1803.10986). A NaN or infinity in a tile of 6x6 reaches all 16 results of the tile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.kernel.nest import (
    Buffer,
    Contraction,
    Kernel,
    Linear,
    Nest,
    Program,
    Store,
    axis,
    contiguous,
    dim_value,
    linear,
    load,
)

TILE = 4
WINDOW = 3
POINTS = TILE + WINDOW - 1
Matrix = tuple[tuple[float, ...], ...]


def _matrices() -> tuple[Matrix, Matrix, Matrix]:
    """Aᵀ [4, 6], G [6, 3], Bᵀ [6, 6], worked out with fractions."""
    finite = [Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)]

    def powers(point: Fraction, count: int) -> list[Fraction]:
        return [point**i for i in range(count)]

    evaluate = [powers(p, POINTS) for p in finite] + [[Fraction(0)] * (POINTS - 1) + [Fraction(1)]]
    inverse = _inverse(evaluate)
    # rows of G and Bᵀ are scaled so that Bᵀ has small numbers; the products stay
    scales = []
    for p in finite:
        scale = Fraction(1)
        for q in finite:
            scale *= p - q if p != q else 1
        scales.append(scale)
    scales.append(Fraction(1))
    kernel = [powers(p, WINDOW) for p in finite] + [[Fraction(0)] * (WINDOW - 1) + [Fraction(1)]]
    g = [[v / s for v in row] for row, s in zip(kernel, scales)]
    b = [[inverse[i][j] * scales[j] for i in range(POINTS)] for j in range(POINTS)]
    a = [[evaluate[j][i] for j in range(POINTS - 1)] + [Fraction(int(i == TILE - 1))] for i in range(TILE)]
    return _floats(a), _floats(g), _floats(b)


def _inverse(rows: list[list[Fraction]]) -> list[list[Fraction]]:
    """Gauss and Jordan, exactly."""
    size = len(rows)
    work = [row[:] + [Fraction(int(i == j)) for j in range(size)] for i, row in enumerate(rows)]
    for column in range(size):
        pivot = next(r for r in range(column, size) if work[r][column] != 0)
        work[column], work[pivot] = work[pivot], work[column]
        work[column] = [v / work[column][column] for v in work[column]]
        for r in range(size):
            if r != column and work[r][column] != 0:
                work[r] = [v - work[r][column] * w for v, w in zip(work[r], work[column])]
    return [row[size:] for row in work]


def _floats(rows: list[list[Fraction]]) -> Matrix:
    return tuple(tuple(float(v) for v in row) for row in rows)


OUTPUT, KERNEL, INPUT = _matrices()


def combine(row: tuple[float, ...], values: list[Expr]) -> Expr:
    """Σ row[i]·values[i], zeros left out."""
    total: Expr | None = None
    for factor, value in zip(row, values):
        if factor == 0:
            continue
        if total is None:
            total = value if factor == 1 else value * factor
        elif factor == 1:
            total = total + value
        else:
            total = ex.fma(value, ex.const(factor, dtypes.f32), total)
    assert total is not None  # no row of the matrices is zero
    return total


def transform(matrix: Matrix, square: list[list[Expr]]) -> list[list[Expr]]:
    """M · square · Mᵀ."""
    columns = len(square[0])
    half = [[combine(row, [square[r][c] for r in range(len(square))]) for c in range(columns)] for row in matrix]
    return [[combine(row, line) for row in matrix] for line in half]


@dataclass(frozen=True)
class WinogradWork:
    """A convolution whose weights are transformed: slot `conv.b_slot` holds [6·6][⌈n / packed⌉][k][packed].

    Of `conv` the batch axes are (image, row), m is the column, n the output channel, k the input channel.
    """

    conv: Contraction


def use_winograd(program: Program, wanted: Callable[[Contraction], int]) -> None:
    """Turns contractions with 3x3 taps and stride 1 whose weights are static; `wanted` gives a panel width, or 0."""
    static = {*program.params, *program.constants, *(n for k in program.prepare for n in k.slots[: k.writes])}
    made: dict[tuple[int, Linear, int], Buffer] = {}
    for position, kernel in enumerate(program.main):
        work = kernel.work
        if not isinstance(work, Contraction) or not _fits(work) or kernel.slots[work.b_slot] not in static:
            continue
        width = wanted(work)
        if width:
            source = program.buffers[kernel.slots[work.b_slot]]
            key = (source.number, work.b, width)
            if key not in made:
                made[key] = _transformed(program, work, source, width)
            slots = (*kernel.slots, made[key].number)
            conv = dataclasses.replace(work, b_slot=len(slots) - 1, b=Linear(), packed=width)
            program.main[position] = dataclasses.replace(kernel, work=WinogradWork(conv), slots=slots)


def _fits(work: Contraction) -> bool:
    """3x3 taps over two spatial axes with stride 1."""
    if work.dtype is not dtypes.f32 or work.taps != (WINDOW, WINDOW) or len(work.batch) != 2:
        return False
    rows, columns = work.tap_axes
    a = work.a
    straight = a.coefficient(1) == a.coefficient(rows) and a.coefficient(work.m_axis) == a.coefficient(columns)
    known = isinstance(work.n, int) and isinstance(work.k, int)
    return straight and known and not a.others and not work.b.others and a.coefficient(work.k_axis) == 1


def _transformed(program: Program, work: Contraction, source: Buffer, width: int) -> Buffer:
    """Prepares G g Gᵀ of every window, as 36 sums of 9 weights by numbers from a table: short code that runs once."""
    panels = dims.ceildiv(work.n, width)
    extents = (panels, work.k, width)
    buffer = program.new_buffer(
        "temp", source.dtype, dims.mul(dims.product(extents), POINTS * POINTS), f"{source.name}.winograd"
    )
    channel = Linear(0, ((1, width), (3, 1)))
    base = Linear(work.b.const).plus(channel.times(work.b.coefficient(work.n_axis)))
    base = base.plus(linear(axis(2)).times(work.b.coefficient(work.k_axis)))
    ragged = not (isinstance(work.n, int) and work.n % width == 0)
    inside = ex.apply("lt", axis(1) * width + axis(3), dim_value(work.n)) if ragged else None
    rows, columns = (work.b.coefficient(number) for number in work.tap_axes)
    body: Expr = ex.const(0, dtypes.f32)
    for tap in range(WINDOW * WINDOW):
        place = dims.add(dims.mul(rows, tap // WINDOW), dims.mul(columns, tap % WINDOW))
        weight = load(1, base.plus(Linear(place)), source.dtype, inside)
        body = ex.fma(weight, load(2, Linear(tap, ((0, WINDOW * WINDOW),)), dtypes.f32), body)
    every = (POINTS * POINTS, *extents)
    nest = Nest(every, (), (Store(0, Linear(0, tuple(enumerate(contiguous(every)))), body, False),))
    slots = (buffer.number, source.number, _table(program))
    program.prepare.append(Kernel("winograd_weights", nest, slots, 1, (source.name,)))
    return buffer


def _table(program: Program) -> int:
    """The number of the buffer with G ⊗ G, [36][9]; one for a program."""
    name = "winograd.table"
    for number in program.constants:
        if program.buffers[number].name == name:
            return number
    table = np.kron(np.array(KERNEL), np.array(KERNEL)).astype(np.float32)
    made = program.new_buffer("constant", dtypes.f32, table.size, name)
    program.constants[made.number] = table
    return made.number
