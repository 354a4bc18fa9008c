"""Predicts the time of kernels of one kind at any size from the times of some sizes.

Amounts that cost time (operations, bytes of each operand, a launch) have rates, which are fitted to the measured sizes.
The residual of a measured size applies near it and fades with distance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlx.cost.estimate import Rates
from rlx.ir.literal import Array

SWEEPS = 60
"""Of the descent along coordinates."""
PULL = 1e-3
"""Of every rate's share towards nothing, against the squares of the relative errors."""
FADE = 0.05, 0.02
"""Squared distance (in powers of two) up to which a measured size speaks for itself; what the fit weighs beside it."""
START_BYTES = 4096.0
"""What the column of starts is scaled to; any number does."""


@dataclass(frozen=True)
class Surface:
    """Times in ns as amounts times `costs`, times what the nearest of the measured sizes are off.

    costs  ns of one of each amount
    at     logarithms of the measured sizes, [size, axis]
    off    logarithm of measured over fitted time
    """

    costs: Array
    at: Array
    off: Array

    def ns(self, amounts: Sequence[float], at: Sequence[float]) -> float:
        """Of a kernel with these amounts, at this size."""
        fitted = float(np.dot(self.costs, amounts))
        place = np.log2(np.maximum(np.asarray(at, float), 1.0))
        weights = 1.0 / (((self.at - place) ** 2).sum(1) + FADE[0]) ** 2
        return fitted * math.exp(float(weights @ self.off) / (float(weights.sum()) + FADE[1]))


def fit(amounts: Array, sizes: Array, ns: Array) -> Surface:
    """Costs that are at least 0 and make the relative errors small: least squares, one coordinate after the other.

    amounts [size, amount], sizes [size, axis], ns [size]
    """
    rows = amounts / ns[:, None]
    scale = np.maximum(rows.max(0), 1e-300)
    rows = rows / scale
    gram = rows.T @ rows + PULL * np.eye(rows.shape[1])
    target = rows.sum(0)
    scaled_costs = np.zeros(rows.shape[1])
    for _ in range(SWEEPS):
        for i in range(len(scaled_costs)):
            scaled_costs[i] = max(0.0, scaled_costs[i] + (target[i] - gram[i] @ scaled_costs) / gram[i, i])
    costs = scaled_costs / scale
    fitted = np.maximum(amounts @ costs, 1e-9)
    return Surface(costs, np.log2(np.maximum(sizes, 1.0)), np.log(ns / fitted))


def product_amounts(batch: float, m: float, n: float, k: float) -> tuple[float, ...]:
    """Of a product, or a convolution as one (k: taps times channels): operations, what is read of either side and
    written, by how often it is walked over, and the start."""
    return (2.0 * batch * m * n * k, 4.0 * batch * n * k, 4.0 * batch * m * k, 4.0 * batch * m * n, START_BYTES)


OVERLAP = 0.25
"""Of the shorter of two that go on at the same time, the part that does not hide behind the longer."""


def overlapped(one: float, other: float) -> float:
    """What two take side by side."""
    return max(one, other) + OVERLAP * min(one, other)


def rest_of_overlap(one: float, both: float) -> float:
    """What the other takes, if together they take `both`, and at least `one`."""
    longer = both - OVERLAP * one
    return longer if longer > one else max(both - one, 0.0) / OVERLAP


SIZED = re.compile(r"([a-z]+)_(\d+(?:x\d+)*)_per_ns")
"""Of rates that were measured at several sizes."""


def points_of(rates: Rates) -> dict[str, list[tuple[tuple[float, ...], float]]]:
    """Rates that were measured at several sizes: by kind, (size, rate)."""
    points: dict[str, list[tuple[tuple[float, ...], float]]] = {}
    for name, rate in rates.items():
        parts = SIZED.fullmatch(name)
        if parts:
            size = tuple(float(part) for part in parts[2].split("x"))
            points.setdefault(parts[1], []).append((size, max(rate, 1e-9)))
    return points


def _sizes(kind: str, size: tuple[float, ...]) -> tuple[float, ...]:
    """(batch, m, n, k) of a measured product."""
    match kind:
        case "gemm":
            return (1, *size)
        case "conv":
            positions, outputs, channels, taps = size
            return (1, positions, outputs, channels * taps)
    return size


def surfaces_of(rates: Rates) -> dict[str, Surface]:
    """Of products by kind: gemm (m, n, k), batched (batch, m, n, k), conv (positions, channels out and in, taps)."""
    surfaces: dict[str, Surface] = {}
    for kind, points in points_of(rates).items():
        if kind in ("gemm", "batched", "conv"):
            sizes = np.array([_sizes(kind, size) for size, _ in points])
            amounts = np.array([product_amounts(*size) for size in sizes])
            surfaces[kind] = fit(amounts, sizes, amounts[:, 0] / np.array([rate for _, rate in points]))
    return surfaces
