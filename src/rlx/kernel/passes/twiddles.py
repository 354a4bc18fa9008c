"""How a whole Fourier transform of a known length is cut into steps for vectors, and the tables that the steps read.

The steps are Stockham's: each goes through all the data once, from one buffer into another, and the result comes out in
order. A step of `radix` r finds s = `before` transforms side by side, of m·r elements each, and leaves r·s of length m:

    y[(p·r + j)·s + q] = e^(-2πi·p·j / (m·r)) · Σᵢ x[(i·m + p)·s + q] · e^(-2πi·i·j / r)

Source: Stockham 1966, doi:10.1145/1464182.1464209.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from rlx.ir.rewriting import Context
from rlx.kernel.ir.irregular import FourierTransform
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.driver import LeafPass
from rlx.kernel.schedule.overrides import overridden, unfit
from rlx.kernel.schedule.schedule import Schedule, Tile
from rlx.ops.fourier_plan import roots
from rlx.records import dataclass

Array = np.ndarray[Any, Any]

LEAST = 16
"""Shorter transforms are products with a matrix."""
RADIX = 8
"""The power of two that a step joins, at most, unless a schedule set by hand says otherwise."""
ODD_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
"""Of lengths that are taken: a step by a prime takes as many products as it is long, and as many registers."""


@dataclass(frozen=True)
class Step:
    """One step. `table` is where its twiddles begin, -1 where there are none (m = 1).

    form   how vectors lie: "along" q, where s fills them; over p and q as "one" axis, where s divides a vector, so that
           results change places in registers; else "over" the end of q, where each result covers what was too much of
           the one before. Twiddles are single numbers [p][j - 1][part] or, for "one", vectors [j - 1][part][p·s + q].
    """

    radix: int
    before: int
    after: int
    form: str
    table: int = -1

    @property
    def apart(self) -> int:
        """Elements between those that a transform joins."""
        return self.before * self.after


def gains(length: int) -> bool:
    """Whether a complex transform of this length has several steps, by small primes only."""
    factors = radices(length)
    return length >= LEAST and len(factors) > 1 and math.prod(factors) == length


def points(work: FourierTransform) -> int:
    """The length of the complex transform: a real signal is one of half the length."""
    return work.length if work.kind == "complex" else work.length // 2


def schedule(work: FourierTransform, lanes: int) -> Schedule:
    """Elements of the vectors to use, where a register holds `lanes` f32, and the greatest power of two that a step
    joins. Short transforms take short vectors: those that are not filled, or lie across two that were just written,
    wait for memory. Raises RlxError for what is set by hand and no register, or step, has."""
    least, most = 16 // work.real.dtype.itemsize, lanes * 4 // work.real.dtype.itemsize
    width = most
    while width > least and not all(_fills(step.apart, width) for step in steps(points(work), width)):
        width //= 2
    tiles = (Tile("register", "signal", width), Tile("register", "radix", RADIX))
    chosen = overridden("fourier", Schedule(tiles, spaces=(("passes", "cache"),)))
    for axis, low, high in (("signal", least, most), ("radix", 2, 2 * RADIX)):
        size = chosen.static_tile("register", axis)
        if not low <= size <= high or size & (size - 1):
            raise unfit("fourier", "register", axis, size, f"a power of two from {low} to {high}")
    return dataclasses.replace(chosen, vector=("signal", chosen.static_tile("register", "signal")))


def scheduled_steps(work: FourierTransform, chosen: Schedule) -> tuple[Step, ...]:
    """The steps that a schedule says."""
    width, radix = (chosen.static_tile("register", axis) for axis in ("signal", "radix"))
    return steps(points(work), width, radix)


def _fills(count: int, width: int) -> bool:
    return count % width == 0 or count >= 2 * width


@cache
def steps(length: int, lanes: int, most: int = RADIX) -> tuple[Step, ...]:
    """The steps for vectors of so many lanes, in order; powers of two are joined to `most` at most."""
    plan: list[Step] = []
    before, table = 1, 0
    for radix in radices(length, most):
        after = length // (before * radix)
        form = "along" if before >= lanes else "one" if lanes % before == 0 else "over"
        step = Step(radix, before, after, form, table if after > 1 else -1)
        plan.append(step)
        table = twiddles_end(plan, lanes)
        before *= radix
    return tuple(plan)


def twiddles_end(plan: Sequence[Step], lanes: int) -> int:
    """Numbers in the table for these steps."""
    return sum(2 * (step.radix - 1) * _columns(step, lanes) for step in plan if step.table >= 0)


def _columns(step: Step, lanes: int) -> int:
    return max(step.apart, lanes) if step.form == "one" else step.after


def radices(length: int, most: int = RADIX) -> list[int]:
    """Factors of a length: powers of two first, so that the others find vectors that are full; of these the small ones
    first, whose results lie between one another."""
    twos = (length & -length).bit_length() - 1
    count = -(-twos // (most.bit_length() - 1))
    factors = [1 << (twos + number) // count for number in range(count)]
    odd = length >> twos
    for radix in ODD_PRIMES:
        while odd % radix == 0:
            factors.append(radix)
            odd //= radix
    return factors


def passes(work: FourierTransform, plan: Sequence[Step], width: int) -> int:
    """Complex vectors that the steps read and write for a row, all together; the pass over pairs of bins among them."""
    total = 0
    for step in plan:
        across = {"one": -(-step.apart // width), "along": step.after * -(-step.before // width), "over": step.after}
        total += step.radix * across[step.form]
    return total if work.kind == "complex" else total + 2 * -(-pair_count(work) // width)


def pair_count(work: FourierTransform) -> int:
    """Of a transform to bins or from bins: how many pairs of bins k and n/2 - k there are."""
    return points(work) // 2 + 1


def table_of(work: FourierTransform, plan: Sequence[Step], lanes: int) -> Array:
    """Twiddles of all steps, and behind them those of the pass over pairs, [part][k]."""
    parts = [_twiddles(step, lanes) for step in plan if step.table >= 0]
    if work.kind != "complex":
        cosine, sine = roots(np.arange(max(pair_count(work), lanes)), work.length, 1)
        # to bins: e^(-2πi·k/n) · -i/2; from bins: e^(2πi·k/n) · i
        parts.append(np.stack([-sine / 2, -cosine / 2] if work.kind == "to bins" else [-sine, cosine]))
    return np.concatenate([part.reshape(-1) for part in parts] or [np.zeros(0)]).astype(work.real.dtype.numpy)


def _twiddles(step: Step, lanes: int) -> Array:
    p = np.arange(_columns(step, lanes)) // (step.before if step.form == "one" else 1)
    factors = np.arange(1, step.radix)
    real, imaginary = roots(np.outer(factors, p), step.radix * step.after, -1)
    both = np.stack([real, imaginary], 1)  # [j - 1][part][p]
    return both if step.form == "one" else both.transpose(2, 0, 1)


class Twiddles(LeafPass):
    """Gives every transform of the program its table, a constant; equal ones share it. A register holds `lanes` f32."""

    name = "twiddles"
    required = True  # transforms read the table

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._tables: dict[tuple[bytes, str], int] = {}

    def regions(self, program: Program) -> tuple[list[Kernel], ...]:
        return (program.main, program.prepare)

    def run(self, program: Program, context: Context) -> None:
        self._tables = {}
        super().run(program, context)

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        return "table" if isinstance(kernel.work, FourierTransform) and kernel.work.table < 0 else None

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        assert isinstance(kernel.work, FourierTransform)
        chosen = schedule(kernel.work, self.lanes)
        width = chosen.static_tile("register", "signal")
        table = table_of(kernel.work, scheduled_steps(kernel.work, chosen), width)
        key = table.tobytes(), kernel.work.real.dtype.name
        if key not in self._tables:
            buffer = program.new_buffer("constant", kernel.work.real.dtype, table.size, "twiddles")
            program.constants[buffer.number] = table
            self._tables[key] = buffer.number
        work = dataclasses.replace(kernel.work, table=len(kernel.slots))
        return [dataclasses.replace(kernel, work=work, slots=(*kernel.slots, self._tables[key]))]
