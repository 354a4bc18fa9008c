"""Functions that accept NumPy arrays or values of a graph.

A formula written with them and with operators serves as an op's reference, as its definition, and for what is known
during decomposition.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.graph import Value
from rlx.ops import build


def floor_divide(n: Any, d: Any) -> Any:
    """⌊n / d⌋ of integers, d > 0."""
    return build.div(n - build.mod(n, d), d) if isinstance(n, Value) else n // d


def remainder(n: Any, d: Any) -> Any:
    """n - d · ⌊n / d⌋ of integers, d > 0."""
    return build.mod(n, d) if isinstance(n, Value) else n % d


def floor(x: Any) -> Any:
    return build.floor(x) if isinstance(x, Value) else np.floor(x)


def round_to_even(x: Any) -> Any:
    return build.round(x) if isinstance(x, Value) else np.rint(x)


def choose(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b."""
    return build.select(condition, a, b) if isinstance(condition, Value) else np.where(condition, a, b)


def clamp(x: Any, low: Any, high: Any) -> Any:
    """x within [low, high]; low where they cross."""
    return greatest(least(x, high), low)


def least(x: Any, y: Any) -> Any:
    return _extremum("minimum", min, x, y)


def greatest(x: Any, y: Any) -> Any:
    return _extremum("maximum", max, x, y)


def _extremum(name: str, plain: Any, x: Any, y: Any) -> Any:
    """Of values, arrays, or Python numbers; the last stay Python's, which have no dtype of their own."""
    if isinstance(x, Value) or isinstance(y, Value):
        return build.op(name)(x, y)
    arrays = isinstance(x, np.ndarray) or isinstance(y, np.ndarray)
    return getattr(np, name)(x, y) if arrays else plain(x, y)


def real(x: Any, dtype: DType) -> Any:
    """As floats: of this dtype in a graph, f64 in NumPy."""
    if isinstance(x, Value):
        return x.cast(dtype)
    return x.astype(np.float64) if isinstance(x, np.ndarray) else float(x)


def whole(x: Any) -> Any:
    """As i64."""
    return x.cast("i64") if isinstance(x, Value) else x.astype(np.int64)


def cubic(distance: Any, a: float) -> Any:
    """Keys' cubic convolution kernel of a distance (Keys 1981, doi:10.1109/TASSP.1981.1163711)."""
    x = abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return choose(x <= 1, near, choose(x < 2, far, 0.0))
