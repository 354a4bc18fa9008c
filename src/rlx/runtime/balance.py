"""Shares of an operand's range for its channels, so that bytes of narrow channels have finer steps.

An operand and a weight stay their product when a channel of one is divided by a number and the same channel of the
other multiplied by it. Where ranges of channels differ, that makes steps of one side finer and those of the other
coarser, and the noise of both is known from the weight and from what the operand was in the runs of a calibration.
Source: Xiao et al. 2023, SmoothQuant, arXiv:2211.10438, eq. 4; their exponent is chosen here for each operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlx.ir.literal import Array
from rlx.passes.quantise import LEVELS

EXPONENTS = (0.25, 0.5, 0.75, 1.0)
LEAST_RANGE = 1 / 16
"""The least range of a channel that counts, of the widest one's: others may be wider in runs to come."""
NOISY = 0.02**2
"""Power of rounding, as a part of a product's own, above which its operand is to have other steps."""
LEAST_ROWS = 256
"""Rows of an operand below which its channels may be wider in runs to come than they were."""
WORTH = 0.8
"""Shares leave at most so much of the noise's power, or there are none."""


@dataclass
class Seen:
    """Of each channel of an operand: the ends of its range, the sum of squares of its elements, and their number."""

    low: Array
    high: Array
    squares: Array
    count: int

    @classmethod
    def of(cls, array: Array, axes: Sequence[int]) -> Seen:
        """Of an array whose `axes` are its channels, one behind the other."""
        rows = np.moveaxis(array, axes, range(array.ndim - len(axes), array.ndim))
        rows = rows.reshape(-1, int(np.prod([array.shape[axis] for axis in axes])))
        squares = np.einsum("rc,rc->c", rows, rows, dtype=np.float64)
        return cls(rows.min(0, initial=0.0), rows.max(0, initial=0.0), squares, len(rows))

    @property
    def ends(self) -> tuple[float, float]:
        """Of the range of all channels."""
        return float(self.low.min(initial=0.0)), float(self.high.max(initial=0.0))

    def and_(self, other: Seen) -> Seen:
        """Of both arrays."""
        ends = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Seen(*ends, self.squares + other.squares, self.count + other.count)


def shares(seen: Seen, weights: Sequence[Array]) -> Array | None:
    """What part of the widest channel's range each channel has; None where that would not lessen the noise enough.

    weights  f32 [columns, taps, channels], of all products that have the operand
    """
    widest = np.maximum(seen.high, -seen.low).astype(np.float64)
    heaviest = np.max([np.abs(w).max((0, 1), initial=0.0) for w in weights], axis=0).astype(np.float64)
    if seen.count < LEAST_ROWS or not (widest.any() and heaviest.any()):
        return None
    widest, heaviest = (np.maximum(each, each.max() * LEAST_RANGE) for each in (widest, heaviest))
    best, least = None, WORTH * noise(np.ones_like(widest), seen, weights)
    for exponent in EXPONENTS:
        found = widest**exponent / heaviest ** (1 - exponent)
        found = (found / found.max()).astype(np.float32)
        if (power := noise(found, seen, weights)) < least:
            best, least = found, power
    return best


def noise(parts: Array, seen: Seen, weights: Sequence[Array]) -> float:
    """The power of what rounding adds to products, as a part of their own power, if elements hang on no others: the sum
    over `weights`, whose elements are finite."""
    step = (float((seen.high / parts).max()) - float((seen.low / parts).min())) / LEVELS
    power = seen.squares / max(seen.count, 1)
    rounding = np.minimum((step * parts) ** 2 / 12, power)  # what is less than half a step becomes 0
    total = 0.0
    for w in weights:
        squares = np.einsum("otc,otc->c", w, w, dtype=np.float64)
        if not (whole := float((power * squares).sum())):
            continue
        steps = np.abs(w * parts.astype(np.float32)).max((1, 2)).astype(np.float64) / 127
        of_weight = (steps**2).sum() / 12 * w.shape[1] * power / parts**2
        total += float((rounding * squares + of_weight).sum()) / whole
    return total
