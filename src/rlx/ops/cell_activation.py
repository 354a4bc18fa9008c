"""The functions that gates of recurrent nets apply, by the names that ONNX gives them in lower case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.errors import GraphError
from rlx.ir.graph import Value
from rlx.ops import build
from rlx.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Form:
    """A function of x, alpha and beta: in NumPy on float64, in values, and the defaults of alpha and beta.

    A default of None says that the function has no such number.
    """

    exact: Callable[[Array, float, float], Array]
    formula: Callable[[Value, float, float], Value]
    alpha: float | None = None
    beta: float | None = None


FORMS: dict[str, Form] = {
    "relu": Form(lambda x, a, b: np.maximum(x, 0), lambda x, a, b: build.relu(x)),
    "tanh": Form(lambda x, a, b: np.tanh(x), lambda x, a, b: build.tanh(x)),
    "sigmoid": Form(lambda x, a, b: 1 / (1 + np.exp(-x)), lambda x, a, b: build.sigmoid(x)),
    "affine": Form(lambda x, a, b: a * x + b, lambda x, a, b: x * a + b, 1.0, 0.0),
    "leakyrelu": Form(lambda x, a, b: np.where(x < 0, a * x, x), lambda x, a, b: build.leaky_relu(x, alpha=a), 0.01),
    "thresholdedrelu": Form(
        lambda x, a, b: np.where(x > a, x, 0), lambda x, a, b: build.thresholded_relu(x, alpha=a), 1.0
    ),
    "scaledtanh": Form(lambda x, a, b: a * np.tanh(b * x), lambda x, a, b: build.tanh(x * b) * a, 1.0, 1.0),
    "hardsigmoid": Form(
        lambda x, a, b: np.clip(a * x + b, 0, 1), lambda x, a, b: build.hard_sigmoid(x, alpha=a, beta=b), 0.2, 0.5
    ),
    "elu": Form(lambda x, a, b: np.where(x < 0, a * np.expm1(x), x), lambda x, a, b: build.elu(x, alpha=a), 1.0),
    "softsign": Form(lambda x, a, b: x / (1 + np.abs(x)), lambda x, a, b: build.softsign(x)),
    "softplus": Form(lambda x, a, b: np.logaddexp(0, x), lambda x, a, b: build.softplus(x)),
}


@dataclass(frozen=True)
class Gate:
    """One function with its numbers, and what its argument is clipped to."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    clip: float | None = None

    def exact(self, x: Array) -> Array:
        """In NumPy, on float64."""
        with np.errstate(all="ignore"):
            return FORMS[self.name].exact(x if self.clip is None else np.clip(x, -self.clip, self.clip), *self._numbers)

    def formula(self, x: Value) -> Value:
        """In values."""
        if self.clip is not None:
            x = build.minimum(build.maximum(x, -self.clip), self.clip)
        return FORMS[self.name].formula(x, *self._numbers)

    @property
    def _numbers(self) -> tuple[float, float]:
        return self.alpha, self.beta


def check(names: tuple[str, ...], count: int) -> None:
    """Raises GraphError unless these are so many functions that there are."""
    unknown = [name for name in names if name not in FORMS]
    if unknown or len(names) != count:
        raise GraphError(f"expected {count} activations among {', '.join(FORMS)}, got {list(names)}")
