"""How a Fourier transform of a known length is split into small ones, and the constant matrices that these need.

Angles are reduced exactly, in integers, before their cosines and sines are computed in float64, so that long transforms
keep their accuracy.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rlx.records import dataclass

Array = np.ndarray[Any, Any]

STAGE = 24.0
"""Cost of one more pass over the data, in the unit of one term of a direct sum: passes read and write memory."""
MAX_LENGTH = 1 << 24


@dataclass(frozen=True)
class Plan:
    """A transform of `length`: directly, in steps of length `factor` and then length / factor, or by a convolution.

    factor  0 for a direct sum, -1 for Bluestein's algorithm through a transform of length `padded`
    """

    length: int
    cost: float
    factor: int = 0
    padded: int = 0


@cache
def plan(length: int) -> Plan:
    """The cheapest way that is known to transform this length."""
    best = Plan(length, float(length))
    for factor in range(2, min(length // 2, 64) + 1):
        if length % factor == 0 and plan(length // factor).factor >= 0:  # a convolution takes the whole length as well
            cost = factor + plan(length // factor).cost + STAGE
            best = min(best, Plan(length, cost, factor), key=lambda p: p.cost)
    if best.cost > STAGE * 8:
        best = min(best, _bluestein(length), key=lambda p: p.cost)
    return best


def _bluestein(length: int) -> Plan:
    """Two transforms of a smooth length that holds the convolution, and three products."""
    least = 2 * length - 1
    sizes = [base << (-(-least // base) - 1).bit_length() for base in (1, 3, 5, 15)]
    plans = [Plan(length, 2 * plan(size).cost * size / length + 3 * STAGE, -1, size) for size in sizes]
    return min(plans, key=lambda p: p.cost)


def roots(numerators: Array, length: int, sign: int) -> tuple[Array, Array]:
    """Real and imaginary part of e^(sign · 2πi · numerator / length), float64; `numerators` are integers."""
    turned = np.mod(numerators, length)
    turned = np.where(2 * turned > length, turned - length, turned)
    # in eighths of a turn, so that the exact values (0, ±1) are exact
    eighth = np.rint(4 * turned / length).astype(np.int64)
    rest = (4 * turned - eighth * length) * (np.pi / (2 * length))
    cosine, sine = np.cos(rest), np.sin(rest)
    quarter = np.mod(eighth, 4)
    real = np.select([quarter == 0, quarter == 1, quarter == 2], [cosine, -sine, -cosine], sine)
    imaginary = np.select([quarter == 0, quarter == 1, quarter == 2], [sine, cosine, -sine], -cosine)
    return real, sign * imaginary


def matrix(length: int, sign: int, bins: int | None = None) -> tuple[Array, Array]:
    """Real and imaginary part of the transform's matrix, [length, bins]."""
    grid = np.outer(np.arange(length), np.arange(length if bins is None else bins))
    return roots(grid, length, sign)


def chirp(length: int, sign: int) -> tuple[Array, Array]:
    """e^(sign · πi · k² / length) for k below length; k² is taken modulo 2 · length before it grows."""
    k = np.arange(length, dtype=np.int64)
    return roots(k * k, 2 * length, sign)
