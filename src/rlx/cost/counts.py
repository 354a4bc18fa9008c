"""Counts the work of a kernel in numbers that every target can price: elements, instructions by kind, bytes.

Everything is counted at known dims. Targets multiply the counts by their own rates (`backends/*/cost.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import INSTRUCTIONS, Expr
from rlx.kernel.ir.control import Branch, ByThreads, Loop, LoopGroup
from rlx.kernel.ir.index import Access, Linear, offset_of
from rlx.kernel.ir.program import Kernel, Program, leaves

Binding = Mapping[str, int]
SLOW = ("div", "sqrt", "rem")
"""Instructions that take many cycles."""
SHORT_ROW_BYTES = 1 << 15
"""Of rows that stay in the nearest cache, wherever in one of them is read."""
CLOSE_BYTES = 32
"""Elements that lie so far apart, at most, share lines of the cache with their neighbours."""
DIVISIONS = ("div", "rem")
ANGLES = ("sin", "cos", "tan")
MULTIPLIED = 3
"""Instructions that a division of integers by a constant is made of."""


@dataclass
class Counts:
    """Instructions for one element of a loop, by what they cost.

    plain     arithmetic, comparisons, selections, conversions
    slow      divisions, remainders and roots
    library   calls of the C library (transcendental functions in f64)
    angles    of these the functions of angles, which some libraries work out more exactly, and slowly
    contiguous, stored   loads and stores of neighbours along the vector axis
    strided   both with any other stride
    near      those at places that are close together, though no stride leads from one to the next: rows read again and
              again, channels of a group
    divided   quotients and remainders of integers by others that are no constants
    """

    plain: float = 0.0
    slow: float = 0.0
    library: float = 0.0
    contiguous: float = 0.0
    strided: float = 0.0
    near: float = 0.0
    divided: float = 0.0
    stored: float = 0.0
    angles: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        mine, its = vars(self), vars(other)
        return Counts(**{name: mine[name] + its[name] for name in mine})

    def times(self, factor: float) -> Counts:
        return Counts(**{name: value * factor for name, value in vars(self).items()})


def count(body: Expr, axis: int, inside: Iterable[int] = (), rows_vary: bool = True) -> tuple[Counts, Counts]:
    """(what every position along loop axis `axis` costs, what is worked out once before it).

    `inside` are axes of loops within: what varies along them counts with the first part.
    Without `rows_vary` the axis is that of a row, along which results of earlier passes stay what they are.
    """
    axes = {axis, *inside}
    varying: set[Expr] = set()
    along: set[Expr] = set()
    each, once = Counts(), Counts()
    for node in ex.walk([body]):
        if any(a in along for a in node.args) or _varies(node, {axis}, rows_vary):
            along.add(node)
        moves = any(a in varying for a in node.args) or _varies(node, axes, rows_vary)
        if moves:
            varying.add(node)
        _add(each if moves else once, node, axis, along)
    return each, once


def _varies(node: Expr, axes: set[int], rows_vary: bool) -> bool:
    match node.kind:
        case "axis":
            return node.attr in axes
        case "load":
            return any(number in axes for number, _ in node.attr.axes)
        case "row":
            return rows_vary
        case "temp" | "acc":
            return True
    return False


def _add(to: Counts, node: Expr, axis: int, along: set[Expr]) -> None:
    """`along` are the expressions that have other values at neighbours along the axis."""
    width = max(1.0, node.dtype.bits / 32)
    if node.kind == "load":
        access: Access = node.attr
        line = offset_of(node)
        elsewhere = [e for e, _ in line.others if e in along]
        stride = access.coefficient(axis)
        if stride not in (0, 1):
            close = isinstance(stride, int) and abs(stride) * node.dtype.itemsize <= CLOSE_BYTES and not elsewhere
            to.near += width if close else 0.0
            to.strided += 0.0 if close else width
        elif elsewhere and (all(map(_is_step, elsewhere)) or _in_short_rows(node.dtype.itemsize, line)):
            to.near += width
        elif elsewhere:
            to.strided += width
        else:
            to.contiguous += width
        if node.dtype.is_float and node.dtype.bits < 32:
            to.plain += 2 if node.dtype.bits == 16 else 8  # decoding
    elif node.kind in INSTRUCTIONS:
        if INSTRUCTIONS[node.kind].transcendental:
            to.library += 1
            to.angles += node.kind in ANGLES
        elif node.kind in DIVISIONS and node.dtype.is_integer:
            if node.args[1].kind == "const":
                to.plain += MULTIPLIED * width
            else:
                to.divided += width
        elif node.kind in SLOW:
            to.slow += width
        else:
            to.plain += width


def _in_short_rows(itemsize: int, line: Linear) -> bool:
    """Whether positions that data or arithmetic decide lie in rows, by an axis of their own, that a near cache
    holds."""
    inside = [c for _, c in line.others]
    return all(isinstance(c, int) for c in inside) and any(
        isinstance(row, int) and max(inside) < row <= SHORT_ROW_BYTES // itemsize for _, row in line.axes
    )


def _is_step(index: Expr) -> bool:
    """Whether neighbours along an axis have the same place, or neighbouring ones, as where an axis is divided by a
    number."""
    return index.kind == "div" and index.args[1].kind == "const" and index.args[0].kind in ("axis", "add", "mul")


def store_counts(offset: Linear, body: Expr, axis: int) -> Counts:
    """What writing the body's value costs."""
    width = max(1.0, body.dtype.bits / 32)
    narrow = {16: 5.0, 8: 10.0, 4: 10.0}.get(body.dtype.bits, 0.0) if body.dtype.is_float else 0.0
    strided = bool(offset.others) or offset.coefficient(axis) not in (0, 1)
    return Counts(plain=narrow, stored=0 if strided else width, strided=width if strided else 0)


@dataclass(frozen=True)
class Footprint:
    """Bytes of the buffers that a kernel reads and writes, each once, as far as it touches them; `warm` are those of
    what the run itself makes, which other kernels have just written or will read next."""

    total: int
    warm: int


def made_by_runs(program: Program) -> set[int]:
    """Buffers that kernels of `main` write, and parts of them; weights and what `prepare` makes are not among them."""
    written = {n for kernel in leaves(program.main) for n in kernel.slots[: kernel.writes]}
    inside = {n for n, holds in program.holds.items() if written.intersection(holds)}
    return (written | inside) - set(program.outputs)


def footprint(program: Program, kernel: Kernel, binding: Binding, points: int, runs: set[int]) -> Footprint:
    """The footprint at known dims; `points` bounds what one access can touch, `runs` are `made_by_runs`."""
    total = warm = 0
    for number in kernel.slots:
        buffer = program.buffers[number]
        size = min(dims.evaluate(buffer.size, binding), max(points, 1)) * buffer.dtype.itemsize
        total += size
        warm += size if number in runs else 0
    return Footprint(total, warm)


@dataclass(frozen=True)
class Placed:
    """A kernel that does something itself, and how often it runs: 1, or what loops around it say.

    chance   of running at all: a half inside a branch
    """

    kernel: Kernel
    times: float
    chance: float = 1.0
    number: int = field(default=0, compare=False)


UNKNOWN_TRIPS = 8.0
"""What is taken for a loop whose end data decide."""


def _trips(loop: Loop, binding: Binding) -> float:
    if loop.trips is None or loop.condition is not None:
        return UNKNOWN_TRIPS
    return float(max(dims.evaluate(loop.trips, binding), 0))


def placed(kernels: Iterable[Kernel], binding: Binding, threads: int = 1) -> list[Placed]:
    """The kernels in the order of `kernel.ir.program.leaves`, with how often each runs in a run on so many threads."""
    result: list[Placed] = []

    def visit(kernel: Kernel, times: float, chance: float) -> None:
        work = kernel.work
        if isinstance(work, Branch):
            for inner in (*work.yes, *work.no):
                visit(inner, times, chance / 2)
        elif isinstance(work, ByThreads):
            for side, runs in ((work.several, threads > 1), (work.alone, threads <= 1)):
                for inner in side:
                    visit(inner, times, chance * runs)
        elif isinstance(work, Loop):
            trips = _trips(work, binding)
            for inner in (*work.test, *work.body):
                visit(inner, times * trips, chance)
        elif isinstance(work, LoopGroup):
            for inner in work.loops:
                visit(inner, times, chance)
        else:
            result.append(Placed(kernel, times, chance, len(result)))

    for kernel in kernels:
        visit(kernel, 1.0, 1.0)
    assert [id(p.kernel) for p in result] == [id(k) for k in leaves(kernels)]
    return result


def host_syncs(kernels: Iterable[Kernel], binding: Binding) -> float:
    """How often data decide in a run which kernels come next, as far as that can be predicted."""
    total = 0.0
    for kernel in kernels:
        match kernel.work:
            case Branch() as work:
                total += 1 + (host_syncs(work.yes, binding) + host_syncs(work.no, binding)) / 2
            case ByThreads() as work:
                total += host_syncs(work.alone, binding)
            case Loop() as work:
                trips = _trips(work, binding)
                decisions = trips + 1 if work.condition is not None else 0.0
                total += decisions + trips * host_syncs((*work.test, *work.body), binding)
            case LoopGroup() as work:
                total += host_syncs(work.loops, binding)
    return total


def extents(shape: Iterable[Dim], binding: Binding) -> tuple[int, ...]:
    return tuple(dims.evaluate(d, binding) for d in shape)
