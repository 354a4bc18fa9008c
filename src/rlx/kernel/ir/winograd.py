"""Winograd's convolution F(4x4, 3x3): 4x4 results of a 3x3 window with stride 1 from 36 products instead of 144.

    Y = Aᵀ [ (G g Gᵀ) ⊙ (Bᵀ d B) ] A

with interpolation at 0, ±3/4, ±3/2 and infinity: a third of the error of the usual points 0, ±1, ±2 (relative error of
results about 1e-6; Source: Lavin & Gray 2015, arXiv:1509.09308; the choice of points: Barabasz et al. 2018,
arXiv:1803.10986). A NaN or infinity in a tile of 6x6 reaches all 16 results of the tile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import Self

from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Shape
from rlx.ir.expr import Expr
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.work import Place, Renderable
from rlx.records import dataclass

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
class WinogradConvolution(Renderable):
    """A convolution whose weights are transformed: slot `conv.b_slot` holds [6·6][⌈n / packed⌉][k][packed].

    Of `conv` the batch axes are (image, row), m is the column, n the output channel, k the input channel.
    """

    conv: Contraction

    def extents(self) -> Shape:
        return self.conv.extents()

    def bodies(self) -> tuple[Expr, ...]:
        return self.conv.bodies()

    def writes(self) -> tuple[Place, ...]:
        return self.conv.writes()

    def reads(self) -> tuple[Place, ...]:
        return self.conv.reads()

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        return dataclasses.replace(self, conv=self.conv.map_bodies(change))
