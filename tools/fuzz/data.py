"""Arrays for leaves: what lies in them is said by a recipe, so that a seed and a few words bring them back."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array

KINDS = ("whole", "real", "special")
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -2.5, 1e-6, 1e-40, -1e-39, 6e-8, 20.0, -88.0, 65504.0)


@dataclass(frozen=True)
class Recipe:
    """How an array is made.

    kind   `whole` are integers from -4 to 4, whose sums and products are exact; `real` is normal; `special` has NaN,
           infinities, zeros of both signs and subnormals among them; `given` is `array` itself, whatever the shape
    low, high  what integers lie in, where indices or counts are meant
    """

    kind: str
    seed: int
    low: int | None = None
    high: int | None = None
    array: Array | None = None

    def make(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """The array for this shape, the same at each call."""
        if self.array is not None:
            return self.array
        random = np.random.default_rng(self.seed)
        if self.low is not None and self.high is not None:
            return random.integers(self.low, self.high, shape, endpoint=True).astype(dtype.numpy)
        if dtype is dtypes.bool_:
            return random.integers(0, 2, shape).astype(np.bool_)
        if dtype.is_integer:
            return _integers(self.kind, shape, dtype, random)
        array = _floats(self.kind, shape, dtype, random)
        if dtype.is_complex:
            return (array + 1j * _floats(self.kind, shape, dtype, random)).astype(dtype.numpy)
        return array.astype(dtype.numpy)


def _integers(kind: str, shape: tuple[int, ...], dtype: DType, random: np.random.Generator) -> Array:
    info = ml_dtypes.iinfo(dtype.numpy)
    low, high = max(info.min, -4), min(info.max, 4)
    numbers = random.integers(low, high, shape, endpoint=True).astype(dtype.numpy)
    if kind == "special":
        edges = np.array([info.min, info.max, 0, 1], dtype.numpy)
        numbers = np.where(random.random(shape) < 0.3, edges[random.integers(0, 4, shape)], numbers)
    return numbers


def _floats(kind: str, shape: tuple[int, ...], dtype: DType, random: np.random.Generator) -> Array:
    if kind == "real":
        return np.asarray(random.normal(size=shape) * 2)
    numbers = random.integers(-4, 4, shape, endpoint=True).astype(np.float64)
    if kind == "special":
        edges = np.array(SPECIAL)
        numbers = np.where(random.random(shape) < 0.3, edges[random.integers(0, len(edges), shape)], numbers)
    return np.asarray(numbers)
