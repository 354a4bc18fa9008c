"""A program as text, for people and for tests: buffers, then kernels as loops over statements.

%0 input f32[64*batch] 'x'
%1 output f32[64*batch] 'y'
main:
  relu(%1, %0): loop nest
    for a0 in 64*batch:
      %1[a0] = max(%0[a0], 0)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch

from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.expr import Expr
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.control import Branch, ByThreads, Loop, LoopGroup
from rlx.kernel.ir.fused import RowProduct, SideBySide
from rlx.kernel.ir.index import Linear, offset_of
from rlx.kernel.ir.irregular import (
    BitonicSort,
    FourierPart,
    FourierTransform,
    PrefixScan,
    Scatter,
    Suppression,
    TopKSelection,
)
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.winograd import WinogradConvolution
from rlx.kernel.ir.work import Place, Work

INDENT = "  "


def text_of(program: Program, schedule_of: Callable[[Kernel], object] = lambda kernel: "") -> str:
    """The whole program; `schedule_of` tells how a target runs each kernel."""
    lines = [_buffer(program, number) for number in range(len(program.buffers))]
    for name, kernels in (("prepare", program.prepare), ("main", program.main)):
        if kernels:
            lines.append(f"{name}:")
            lines.extend(_indented(line for kernel in kernels for line in kernel_lines(kernel, schedule_of)))
    return "\n".join(lines)


def kernel_lines(kernel: Kernel, schedule_of: Callable[[Kernel], object] = lambda kernel: "") -> list[str]:
    """One kernel; buffers stand for the slots of its work."""
    written = [f"%{n}" for n in kernel.slots[: kernel.writes]]
    read = [f"%{n}" for n in kernel.slots[kernel.writes :]]
    head = f"{kernel.name}({', '.join(written)}{' <- ' if read else ''}{', '.join(read)})"
    schedule = "" if kernel.work.owns_kernels else str(schedule_of(kernel))
    lines = [f"schedule: {schedule}"] * bool(schedule) + describe(kernel.work, _Writer(kernel))
    return [f"{head}: {kind_of(kernel.work)}", *_indented(lines)]


def kind_of(work: Work) -> str:
    """The kind of work in words: `LoopNest` is a "loop nest"."""
    name = type(work).__name__
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()


def _buffer(program: Program, number: int) -> str:
    buffer = program.buffers[number]
    line = f"%{number} {buffer.kind} {buffer.dtype.name}[{buffer.size}] {buffer.name!r}"
    if number in program.aliases:
        base, first = program.aliases[number]
        return f"{line} in %{base} from {first}"
    return f"{line} in {', '.join(f'%{n}' for n in program.holds[number])}" if number in program.holds else line


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (INDENT + line for line in lines)


class _Writer:
    """Names of a kernel's buffers, and its expressions: what is used twice gets a line and a name of its own."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names: dict[Expr, str] = {}

    def place(self, slot: int, line: Linear) -> str:
        where = f"%{self.kernel.slots[slot]}" if 0 <= slot < len(self.kernel.slots) else f"slot {slot}"
        return f"{where}[{self.line(line)}]"

    def line(self, line: Linear) -> str:
        terms = [_times(f"a{n}", c) for n, c in line.axes]
        terms += [_times(self.value(e), c) for e, c in line.others]
        if line.const != 0 or not terms:
            terms.append(str(line.const))
        return " + ".join(terms)

    def statements(self, body: Expr) -> list[str]:
        """Lines that name what the body uses more than once."""
        lines = []
        uses = Counter(arg for node in ex.walk([body]) for arg in set(node.args))
        for node in ex.walk([body]):
            if uses[node] > 1 and node.args and node not in self.names:
                text = self.value(node)
                self.names[node] = f"t{len(self.names)}"
                lines.append(f"{self.names[node]} = {text}")
        return lines

    def value(self, node: Expr) -> str:
        if node in self.names:
            return self.names[node]
        match node.kind:
            case "const":
                return str(ex.value_of(node))
            case "axis":
                return f"a{node.attr}"
            case "dim":
                return str(node.attr)
            case "row" | "temp":
                return f"s{node.attr}"
            case "acc":
                return "second sum" if node.attr else "sum"
            case "load":
                text = self.place(node.attr.slot, offset_of(node))
                return f"({text} if {self.value(node.args[0])} else 0)" if node.attr.guarded else text
        args = [self.value(arg) for arg in node.args]
        if node.kind in ("cast", "bitcast"):
            args.append(node.dtype.name)
        return f"{node.kind}({', '.join(args)})"


def _times(base: str, coefficient: Dim) -> str:
    if coefficient == 1:
        return base
    text = str(coefficient)
    return f"{base}*{text}" if isinstance(coefficient, int) else f"{base}*({text})"


def _loops(extents: Shape, first: int = 0) -> str:
    return "for " + ", ".join(f"a{first + i} in {extent}" for i, extent in enumerate(extents)) + ":"


def _nested(extents: Shape, lines: Iterable[str], first: int = 0) -> list[str]:
    return [_loops(extents, first), *_indented(lines)] if extents else list(lines)


def _places(places: Sequence[Place], writer: _Writer) -> list[str]:
    return [writer.place(place.slot, place.offset) for place in places]


@singledispatch
def describe(work: Work, writer: _Writer) -> list[str]:
    """Lines that tell what a piece of work does."""
    raise NotImplementedError(f"no text for {type(work).__name__}")


@describe.register
def _(work: LoopNest, writer: _Writer) -> list[str]:
    lines: list[str] = []
    row = ", ".join(f"a{len(work.outer) + i} in {extent}" for i, extent in enumerate(work.inner))
    over = f" over {row}" if row else ""
    for number, statement in enumerate(work.statements):
        lines += writer.statements(statement.body)
        value = writer.value(statement.body)
        match statement:
            case Reduce(combine=combine, argument=argument):
                what = f"position of {combine}" if argument else combine
                lines.append(f"s{number} = {what}({value}){over}")
            case RowBuffer():
                lines.append(f"s{number} = {value}{over}")
            case Store(slot=slot, offset=offset, per_element=each, guard=guard):
                when = "" if guard is None else f"if {writer.value(guard)}: "
                lines.append(f"{when}{writer.place(slot, offset)} = {value}{over if each else ''}")
    return _nested(work.outer, lines)


@describe.register
def _(work: Contraction, writer: _Writer) -> list[str]:
    places = _places(work.reads(), writer)
    a = places.pop(0) if work.a_slot != work.NO_SLOT else "the rows"
    b = places[0]
    if work.blocks is not None:
        kind = "panels" if work.packed else "rows"
        scales = " and ".join(f"%{writer.kernel.slots[slot]}" for slot in work.blocks.slots())
        each = f"blocks of {work.blocks.block} x {work.blocks.bits} bits"
        b = f"%{writer.kernel.slots[work.b_slot]} in {kind} of {each}, scaled by {scales}"
    elif work.packed:
        b = f"%{writer.kernel.slots[work.b_slot]} in panels of {work.packed}" + (f"x{work.group}" * (work.group > 1))
    summed = tuple(zip((*work.tap_axes, work.k_axis), (*work.taps, work.k)))
    over = ", ".join(f"a{n} in {extent}" for n, extent in summed)
    parts = " (as parts)" * work.float_parts
    sums = f"sum, and second sum {work.n} columns further on," if work.paired else "sum"
    guard = work.guard()
    lines = [] if guard is None else writer.statements(guard)
    where = "" if guard is None else f" where {writer.value(guard)}"
    lines.append(f"{sums} = {work.dtype.name} sum of {a} * {b}{parts} over {over}{where}")
    for store in work.epilogue:
        lines += writer.statements(store.body)
        lines.append(f"{writer.place(store.slot, store.offset)} = {writer.value(store.body)}")
    return _nested((*work.batch, work.m, work.n), lines)


@describe.register
def _(work: RowProduct, writer: _Writer) -> list[str]:
    rows = ["rows:", *_indented(describe(work.nest, writer)), "product:"]
    writer.names.clear()
    return [*rows, *_indented(describe(work.product, writer))]


@describe.register
def _(work: SideBySide, writer: _Writer) -> list[str]:
    lines: list[str] = []
    for part in work.works:
        writer.names.clear()
        lines += ["at once:", *_indented(describe(part, writer))]
    return lines


@describe.register
def _(work: WinogradConvolution, writer: _Writer) -> list[str]:
    return ["F(4x4, 3x3) of", *_indented(describe(work.conv, writer))]


@describe.register
def _(work: FusedAttention, writer: _Writer) -> list[str]:
    (out,) = _places(work.writes(), writer)
    read = _places(work.reads(), writer)
    traits = [f"scale {work.scale:g}", *(["causal"] if work.causal else [])]
    traits += [f"window {work.window}"] * (work.window is not None) + [f"softcap {work.softcap}"] * bool(work.softcap)
    traits += [f"live {work.live}"] * (work.live != 1) + ["products as parts"] * work.float_parts
    shape = f"{work.batch} x {work.heads} heads, {work.queries} queries, {work.keys} keys, {work.features} features"
    whole = f"attention({', '.join(read)}) of {shape}, {', '.join(traits)}"
    return [f"{out} = {whole}"] if work.tail is None else [f"sum = {whole}", f"{out} = {writer.value(work.tail)}"]


@describe.register
def _(work: SplitKvPartial, writer: _Writer) -> list[str]:
    return [f"partial results of {', '.join(_places(work.reads(), writer))}"]


@describe.register
def _(work: SplitKvCombine, writer: _Writer) -> list[str]:
    return [f"{', '.join(_places(work.writes(), writer))} = combined partial results"]


@describe.register
def _(work: Scatter, writer: _Writer) -> list[str]:
    lines = writer.statements(work.guard) + writer.statements(work.body)
    (target,) = _places(work.writes(), writer)
    value = writer.value(work.body)
    join = f"{work.combine}({target}, {value})" if work.combine else value
    how = "atomically " if work.atomic else ""
    lines.append(f"if {writer.value(work.guard)}: {how}{target} = {join}")
    return _nested(work.outer, _nested(work.inner, lines, len(work.outer)))


@describe.register
def _(work: PrefixScan, writer: _Writer) -> list[str]:
    (target,) = _places(work.writes(), writer)
    traits = " exclusive" * work.exclusive + " reversed" * work.reverse
    value = writer.value(work.body)
    scan = f"{target} = prefix {work.combine} of {value} over a{len(work.outer)} in {work.length}{traits}"
    return _nested(work.outer, [*writer.statements(work.body), scan])


@describe.register
def _(work: TopKSelection, writer: _Writer) -> list[str]:
    targets = ", ".join(_places(work.writes(), writer))
    order = "greatest" if work.largest else "least"
    of = f"{writer.value(work.body)} over a{len(work.outer)} in {work.length}"
    return _nested(work.outer, [*writer.statements(work.body), f"{targets} = {work.k} {order} of {of}"])


@describe.register
def _(work: FourierTransform, writer: _Writer) -> list[str]:
    targets = ", ".join(_places(work.writes(), writer))
    parts = ", ".join(writer.value(body) for body in work.bodies())
    kind = f"inverse {work.kind}" if work.inverse else work.kind
    return _nested(work.outer, [f"{targets} = {kind} transform of {work.length}: {parts}"])


@describe.register
def _(work: Suppression, writer: _Writer) -> list[str]:
    targets = ", ".join(_places(work.writes(), writer))
    lines = [line for body in work.bodies() for line in writer.statements(body)]
    where = "" if work.counts is None else f" where {writer.value(work.counts)}"
    sides = ", ".join(map(writer.value, work.sides))
    most = f"{writer.value(work.most)} and {work.limit}"
    by = f"by {writer.value(work.score)} over a{len(work.outer)} in {work.length}{where}"
    lines.append(f"{targets} = {most} boxes at most of ({sides}) {by}, overlap {writer.value(work.overlap)}")
    return _nested(work.outer, lines)


@describe.register
def _(work: FourierPart, writer: _Writer) -> list[str]:
    targets = ", ".join(_places(work.writes(), writer))
    return _nested(work.of.outer, [f"{targets} = {work.part} of a {work.of.kind} transform of {work.of.length}"])


@describe.register
def _(work: BitonicSort, writer: _Writer) -> list[str]:
    return _nested(work.outer, [f"sort {work.length} of {', '.join(_places(work.writes(), writer))}"])


@describe.register
def _(work: Branch, writer: _Writer) -> list[str]:
    yes = (line for kernel in work.yes for line in kernel_lines(kernel))
    no = (line for kernel in work.no for line in kernel_lines(kernel))
    return [f"if %{work.predicate}:", *_indented(yes), "else:", *_indented(no)]


@describe.register
def _(work: ByThreads, writer: _Writer) -> list[str]:
    several = (line for kernel in work.several for line in kernel_lines(kernel))
    alone = (line for kernel in work.alone for line in kernel_lines(kernel))
    return ["on several threads:", *_indented(several), "on one:", *_indented(alone)]


@describe.register
def _(work: Loop, writer: _Writer) -> list[str]:
    direction = " from the last" if work.reverse else ""
    lines = [f"for t in {work.trips}{direction}:" if work.trips is not None else "forever:"]
    for value in work.carried:
        turns = ", ".join(f"%{n}" for n in value.ping_pong)
        lines.append(f"{INDENT}%{value.now} = %{value.start}, then %{value.following} ({turns}); last %{value.last}")
    lines += [f"{INDENT}%{v.number} = %{v.base} from {v.offset} + t*({v.step})" for v in work.views]
    if work.condition is not None:
        lines += _indented(line for kernel in work.test for line in kernel_lines(kernel))
        lines.append(f"{INDENT}while %{work.condition}:")
    return lines + list(_indented(line for kernel in work.body for line in kernel_lines(kernel)))


@describe.register
def _(work: LoopGroup, writer: _Writer) -> list[str]:
    lines: list[str] = []
    for loop, cut in zip(work.loops, work.cuts):
        lines.append("at once:" if cut is None else f"at once, some of {cut.rows} rows each:")
        lines += _indented(kernel_lines(loop))
    return lines
