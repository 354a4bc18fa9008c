"""Checks on the data of a run, and the errors for data that violate them. The last output of a program serves these
checks."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.errors import InputError
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.records import dataclass


@dataclass(frozen=True)
class Violation:
    """A number of a run that lies outside of what it must lie in, as words."""

    label: str
    what: str
    source: str

    def error(self, low: int, high: int, actual: int) -> InputError:
        expected = f"[{low}, {high})" if high > low + 1 else str(low)
        between = " in " if high > low + 1 else " of "
        return InputError(
            f"[{self.label}] expected {self.what}{between}{expected}, got {actual}, at node {self.source!r}"
        )


@dataclass(frozen=True)
class Check:
    """Numbers of which the runtime gets the greatest n - low, modulo 2⁶⁴, and what they must lie in; `count` is how
    many there are, None where that hangs on what runs."""

    low: Dim
    high: Dim
    words: Violation
    count: Dim | None = None

    def most(self, binding: Mapping[str, int]) -> int:
        """The greatest result of a run in which all is in range. Of no numbers it is 0, as of the least in range."""
        span = dims.evaluate(self.high, binding) - dims.evaluate(self.low, binding)
        nothing = self.count is None or dims.evaluate(self.count, binding) == 0
        return max(span - 1, 0) if nothing else span - 1

    def error(self, number: int, binding: Mapping[str, int]) -> InputError:
        """What to say of a result that is greater."""
        low, high = dims.evaluate(self.low, binding), dims.evaluate(self.high, binding)
        actual = (number + low + (1 << 63)) % (1 << 64) - (1 << 63)
        return self.words.error(low, high, actual)
