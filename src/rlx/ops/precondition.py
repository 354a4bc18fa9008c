"""Conditions that a format demands and that only the data of a run can satisfy or violate."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir import dim as dims
from rlx.ir import expect
from rlx.ir.check import Violation
from rlx.ir.dim import Dim
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Range, op
from rlx.ir.type import TensorType

Array = np.ndarray[Any, Any]


@op
class Require(Composite):
    """x, of a run whose `numbers` all lie in [low, high). Any other fails, with words that `label` and `what` begin.

    x        any [...]
    numbers  int [...]

    The check is the runtime's (`passes/checks.py`); to a backend this is x.
    """

    label: str
    what: str
    low: Dim
    high: Dim

    def infer(self, x: TensorType, numbers: TensorType) -> TensorType:
        expect.integer(numbers, "numbers")
        return x

    def ranges(self, x: TensorType, numbers: TensorType) -> tuple[Range, ...]:
        return (Range(1, self.low, self.high, self.what),)

    def reference(self, x: Array, numbers: Array) -> Array:
        low, high = dims.evaluate(self.low, {}), dims.evaluate(self.high, {})
        for number in numbers.reshape(-1).tolist():
            if not low <= number < high:
                raise Violation(self.label, self.what, self.label).error(low, high, number)
        return x

    def decompose(self, x: Value, numbers: Value) -> Value:
        return x
