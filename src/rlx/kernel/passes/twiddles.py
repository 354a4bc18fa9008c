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
from functools import cache, partial
from typing import Any

import numpy as np

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.ir.rewriting import Context
from rlx.kernel.ir.control import ByThreads
from rlx.kernel.ir.irregular import FourierPart, FourierTransform
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
LONG = 1 << 14
"""Points of a row that is worth kernels of its own for the halves of its steps."""
FEW_ROWS = 8
"""More rows are shared by threads as they are."""
ODD_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
"""Of lengths that are taken: a step by a prime takes as many products as it is long, and as many registers."""


@dataclass(frozen=True)
class Step:
    """One step. `table` is where its twiddles begin, -1 where there are none (m = 1).

    form   how vectors lie: "along" q, where s fills them; over p and q as "one" axis, where s divides a vector, so that
           results change places in registers; else "over" the end of q, where each result covers what was too much of
           the one before; "across" columns of the first half. Twiddles are single numbers [p][j - 1][part], for "one"
           vectors [j - 1][part][p·s + q], for "across" vectors [columns][p][j - 1][part], as they are read.
    columns   of "across"; p is (row, column) there
    """

    radix: int
    before: int
    after: int
    form: str
    table: int = -1
    columns: int = 0

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
    if step.form == "across":
        return -(-step.columns // lanes) * lanes * (step.after // step.columns)
    return max(step.apart, lanes) if step.form == "one" else step.after


@cache
def halves(length: int, lanes: int, most: int = RADIX) -> tuple[tuple[Step, ...], tuple[Step, ...]] | None:
    """The steps in two halves of about the same length, for vectors of columns. The data of length n1 · n2 are rows of
    n2 first: the first half transforms columns of these, of n1 elements each, and writes each as a row. The second half
    transforms columns of rows of n1. None where rows would be shorter than a vector."""
    plan = steps(length, lanes, most)
    cuts = [k for k in range(1, len(plan)) if plan[k].before >= lanes and length // plan[k].before >= lanes]
    if not cuts:
        return None
    cut = min(cuts, key=lambda k: max(plan[k].before, length // plan[k].before))
    made: list[Step] = []
    for number, step in enumerate(plan):
        form, columns = ("across", length // plan[cut].before) if number < cut else ("along", 0)
        table = twiddles_end(made, lanes) if step.after > 1 else -1
        made.append(Step(step.radix, step.before, step.after, form, table, columns))
    return tuple(made[:cut]), tuple(made[cut:])


def halves_of(work: FourierTransform, chosen: Schedule) -> tuple[tuple[Step, ...], tuple[Step, ...]] | None:
    """The halves that a schedule says."""
    width, radix = (chosen.static_tile("register", axis) for axis in ("signal", "radix"))
    return halves(points(work), width, radix)


def is_long(work: FourierTransform) -> bool:
    """Whether threads, where there are several, share each row: rows are few, and long."""
    rows = dims.product(work.outer)
    few = isinstance(rows, int) and rows <= FEW_ROWS
    return few and points(work) >= LONG and all(result is not None for result in work.results)


def part_room(work: FourierTransform, plan: Sequence[Step], width: int) -> int:
    """Elements between the real and the imaginary parts of a row that parts leave to one another. Rows of transforms
    are a vector longer than need be: a power of two apart they would want the same few lines of a cache."""
    return points(work) + width * max(step.columns for step in plan)


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
    if step.form == "across":
        first = np.minimum(np.arange(0, step.columns, lanes), step.columns - lanes)
        p = (first[:, None, None] + np.arange(0, step.after, step.columns)[:, None] + np.arange(lanes)).reshape(-1)
    else:
        p = np.arange(_columns(step, lanes)) // (step.before if step.form == "one" else 1)
    factors = np.arange(1, step.radix)
    real, imaginary = roots(np.outer(factors, p), step.radix * step.after, -1)
    both = np.stack([real, imaginary], 1)  # [j - 1][part][p]
    if step.form == "across":
        return both.reshape(step.radix - 1, 2, -1, lanes).transpose(2, 0, 1, 3)
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
        work = kernel.work
        assert isinstance(work, FourierTransform)
        chosen = schedule(work, self.lanes)
        width = chosen.static_tile("register", "signal")
        table = self._table(program, work, scheduled_steps(work, chosen), width)
        made = dataclasses.replace(work, table=len(kernel.slots))
        alone = dataclasses.replace(kernel, work=made, slots=(*kernel.slots, table))
        cut = halves_of(work, chosen) if is_long(work) else None
        if cut is None:
            return [alone]
        several = self._parts(program, kernel, work, (*cut[0], *cut[1]), width)
        tables = {number for each in several for number in each.slots if program.buffers[number].kind == "constant"}
        slots = tuple(dict.fromkeys((*alone.slots, *sorted(tables))))
        return [dataclasses.replace(kernel, work=ByThreads(tuple(several), (alone,)), slots=slots)]

    def _table(self, program: Program, work: FourierTransform, plan: Sequence[Step], width: int) -> int:
        """The buffer with the twiddles."""
        table = table_of(work, plan, width)
        key = table.tobytes(), work.real.dtype.name
        if key not in self._tables:
            buffer = program.new_buffer("constant", work.real.dtype, table.size, "twiddles")
            program.constants[buffer.number] = table
            self._tables[key] = buffer.number
        return self._tables[key]

    def _parts(
        self, program: Program, kernel: Kernel, work: FourierTransform, plan: Sequence[Step], width: int
    ) -> list[Kernel]:  # fmt: skip
        """The kernels of a long transform, in order."""
        parts = {"complex": ("rows", "columns", "nan"), "to bins": ("rows", "columns", "pairs")}
        order = parts.get(work.kind, ("pairs", "rows", "columns"))
        table = self._table(program, work, plan, width)
        size = dims.mul(dims.product(work.outer), 2 * part_room(work, plan, width))
        writer = {"complex": "columns", "to bins": "pairs"}.get(work.kind, "columns")
        results, signal = kernel.slots[: kernel.writes], kernel.slots[kernel.writes :]
        made, source = [], -1
        for number, part in enumerate(order):
            writes = part in (writer, "nan")
            target = -1 if writes else program.new_buffer("temp", work.real.dtype, size, f"{kernel.name}.{part}").number
            targets = results if writes else (target,)
            reads = [*(signal if number == 0 else ()), *((source,) if number and part != "nan" else ())]
            if part != "nan":
                reads.append(table)
            of = dataclasses.replace(work, table=-1 if part == "nan" else len(targets) + len(reads) - 1)
            of = of.map_bodies(partial(_slots_moved, by=len(targets) - kernel.writes) if number == 0 else _nothing)
            if not writes:
                of = dataclasses.replace(of, results=(None,) * len(work.results))
            between = len(targets) + len(reads) - 2 if number and part != "nan" else -1
            one = FourierPart(of, part, between, -1 if writes else 0)
            name = kernel.name if writes and part != "nan" else f"{kernel.name}_{part}"
            made.append(Kernel(name, one, (*targets, *reads), len(targets), kernel.sources))
            source = target
        return made


def _nothing(body: Expr) -> Expr:
    return ex.const(0, body.dtype)


def _slots_moved(body: Expr, by: int) -> Expr:
    """A body whose loads read slots further on."""

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind != "load":
            return None
        return Expr("load", node.dtype, args, dataclasses.replace(node.attr, slot=node.attr.slot + by))

    return ex.rewrite(body, rule)
