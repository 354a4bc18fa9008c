"""Kernels that name no target: loop nests with scalar bodies, contractions, and a few special shapes of work.

A kernel reads and writes buffers through *accesses*: a buffer's slot and an element offset that is linear in the loop
axes, with dims as coefficients, so that transposes, slices, broadcasts and reshapes of buffers cost nothing. Bodies are
`ir.expr` expressions whose leaves are made here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expect import Equality
from rlx.ir.expr import Expr

if TYPE_CHECKING:
    from rlx.kernel.special import Exchanges, SpecialWork
    from rlx.kernel.split import AttentionJoin, AttentionParts
    from rlx.kernel.winograd import WinogradWork

# Index arithmetic: `Expr`s of i64 with the leaves `axis` and `dim`.


def axis(number: int) -> Expr:
    """The current position along loop axis `number`."""
    return Expr("axis", dtypes.i64, (), number)


def dim_value(dim: Dim) -> Expr:
    """A dim as a number at run time."""
    return ex.const(dim, dtypes.i64) if isinstance(dim, int) else Expr("dim", dtypes.i64, (), dim)


def row(number: int, dtype: DType) -> Expr:
    """The result of stage `number`, a reduction: one value for the current row."""
    return Expr("row", dtype, (), number)


def temp(number: int, dtype: DType) -> Expr:
    """The element that stage `number`, a `Temp`, holds at the current position of the row."""
    return Expr("temp", dtype, (), number)


def accumulated(dtype: DType) -> Expr:
    """The contraction's sum at the current position, in an epilogue."""
    return Expr("acc", dtype)


@dataclass(frozen=True)
class Linear:
    """const + Σ coefficient·axis + Σ coefficient·expression, in elements. Axes are in ascending order."""

    const: Dim = 0
    axes: tuple[tuple[int, Dim], ...] = ()
    others: tuple[tuple[Expr, Dim], ...] = ()

    def plus(self, other: Linear) -> Linear:
        axes = dict(self.axes)
        for number, coefficient in other.axes:
            axes[number] = dims.add(axes.get(number, 0), coefficient)
        others = dict(self.others)
        for expression, coefficient in other.others:
            others[expression] = dims.add(others.get(expression, 0), coefficient)
        kept_axes = tuple(sorted((n, c) for n, c in axes.items() if c != 0))
        return Linear(dims.add(self.const, other.const), kept_axes, tuple((e, c) for e, c in others.items() if c != 0))

    def times(self, factor: Dim) -> Linear:
        if factor == 0:
            return Linear()
        return Linear(
            dims.mul(self.const, factor),
            tuple((n, dims.mul(c, factor)) for n, c in self.axes),
            tuple((e, dims.mul(c, factor)) for e, c in self.others),
        )

    def coefficient(self, number: int) -> Dim:
        """Step of this offset along a loop axis."""
        return next((c for n, c in self.axes if n == number), 0)


def linear(index: Expr) -> Linear:
    """Splits an index into its linear parts; whatever is not linear becomes an `others` term."""
    match index.kind:
        case "const":
            return Linear(ex.value_of(index))
        case "dim":
            return Linear(index.attr)
        case "axis":
            return Linear(0, ((index.attr, 1),))
        case "add":
            return linear(index.args[0]).plus(linear(index.args[1]))
        case "sub":
            return linear(index.args[0]).plus(linear(index.args[1]).times(-1))
        case "mul":
            left, right = linear(index.args[0]), linear(index.args[1])
            if not left.axes and not left.others:
                return right.times(left.const)
            if not right.axes and not right.others:
                return left.times(right.const)
    return Linear(0, (), ((index, 1),))


def index_of(line: Linear) -> Expr:
    """The expression of a linear index."""
    total: Expr | None = None if line.const == 0 and (line.axes or line.others) else dim_value(line.const)
    for base, coefficient in [*((axis(n), c) for n, c in line.axes), *line.others]:
        term = base if coefficient == 1 else base * dim_value(coefficient)
        total = term if total is None else total + term
    assert total is not None  # one of const, axes, others is there
    return total


@dataclass(frozen=True)
class Access:
    """Where a load or store goes: slot of the buffer in the kernel, and the offset's linear part.

    Coefficients of the offset's other terms stand in `scales`, one for each argument of the load behind the guard.
    """

    slot: int
    const: Dim
    axes: tuple[tuple[int, Dim], ...]
    scales: tuple[Dim, ...] = ()
    guarded: bool = False

    def coefficient(self, number: int) -> Dim:
        return next((c for n, c in self.axes if n == number), 0)


def load(slot: int, offset: Linear, dtype: DType, guard: Expr | None = None) -> Expr:
    """An element of a buffer; 0 where the guard is false (memory is not touched there)."""
    access = Access(slot, offset.const, offset.axes, tuple(c for _, c in offset.others), guard is not None)
    args = tuple(e for e, _ in offset.others)
    return Expr("load", dtype, ((guard, *args) if guard is not None else args), access)


def offset_of(node: Expr) -> Linear:
    """The offset of a `load`."""
    access: Access = node.attr
    others = node.args[1:] if access.guarded else node.args
    return Linear(access.const, access.axes, tuple(zip(others, access.scales)))


# Stages: what a nest does in one row.


@dataclass(frozen=True)
class Reduce:
    """Joins `body` over the inner axes with an instruction (add mul min max and or), starting from its identity.

    `argument` is set for argmax and argmin: `combine` is then max or min, and the result is the position along the
    inner axis; `last` prefers the last of equals.
    """

    combine: str
    body: Expr
    dtype: DType
    argument: bool = False
    last: bool = False


@dataclass(frozen=True)
class Temp:
    """Keeps `body` for every position of the row, for later stages."""

    body: Expr


@dataclass(frozen=True)
class Store:
    """Writes `body` at `offset` of the buffer in `slot`: for every position of the row, or once per row."""

    slot: int
    offset: Linear
    body: Expr
    whole_row: bool


Stage = Reduce | Temp | Store


@dataclass(frozen=True)
class Nest:
    """A loop nest: `outer` axes are parallel (numbers 0 …), `inner` axes make a row (the next numbers); stages run in
    order for each outer position."""

    outer: Shape
    inner: Shape
    stages: tuple[Stage, ...]

    @property
    def reduces(self) -> bool:
        """Whether any stage sums up, or the like, over the row."""
        return any(isinstance(stage, Reduce) for stage in self.stages)


@dataclass(frozen=True)
class Contraction:
    """out[batch, m, n] = epilogue(Σ_k a[batch, m, k] · b[batch, k, n]); `dtype` is the sum's.

    The sum runs over `taps` (the window of a convolution) and k. Axes are numbered batch, then m, n, taps, k.
    `epilogue` stages are whole-row-less `Store`s whose bodies use `accumulated` and loads at the axes. `packed` is the
    panel width (in elements) if slot `b_slot` holds panels [⌈n / packed⌉][taps...][⌈k / group⌉][packed][group] with
    zeros behind n and k; `b` then says where the panels of a matrix begin that data choose, one for each of the batch.
    """

    batch: Shape
    m: Dim
    n: Dim
    k: Dim
    dtype: DType
    a_slot: int
    a: Linear
    a_dtype: DType
    b_slot: int
    b: Linear
    b_dtype: DType
    epilogue: tuple[Store, ...]
    packed: int = 0
    group: int = 1
    taps: Shape = ()

    @property
    def m_axis(self) -> int:
        return len(self.batch)

    @property
    def n_axis(self) -> int:
        return len(self.batch) + 1

    @property
    def tap_axes(self) -> tuple[int, ...]:
        return tuple(range(len(self.batch) + 2, len(self.batch) + 2 + len(self.taps)))

    @property
    def k_axis(self) -> int:
        return len(self.batch) + 2 + len(self.taps)

    def as_nest(self) -> Nest:
        """The same as a plain nest with one reduction: what any renderer can take."""
        a = load(self.a_slot, self.a, self.a_dtype)
        b = load(self.b_slot, self.b, self.b_dtype)
        total = dtypes.accumulator(self.dtype)
        body = ex.cast(a, total) * ex.cast(b, total)
        done = ex.cast(row(0, total), self.dtype)
        stores = tuple(
            Store(s.slot, s.offset, ex.rewrite(s.body, lambda e, _: done if e.kind == "acc" else None), False)
            for s in self.epilogue
        )
        return Nest((*self.batch, self.m, self.n), (*self.taps, self.k), (Reduce("add", body, total), *stores))


@dataclass(frozen=True)
class AttentionWork:
    """softmax(scale·q·kᵀ, masked)·v over batch and heads; every operand is a strided view.

    Offsets are linear in axes 0 batch, 1 head, 2 query or key position, 3 feature. `mask` uses axes 0 batch, 1 head,
    2 query, 3 key; it is added, or where it is bool, `fill` takes the place of scores at false. Head h reads the keys
    and values of head h // `repeat`. A row whose every score is -inf gives 0 if `empty_zero`, else NaN.
    `window` and `softcap` are as in `ops.transformer.Attention`. `live` is 1, or 0 at sizes at which other kernels do
    the same (`kernel.split`).
    """

    batch: Dim
    heads: Dim
    queries: Dim
    keys: Dim
    features: int
    value_features: int
    repeat: int
    scale: float
    causal: bool
    offset: Dim
    fill: float
    empty_zero: bool
    dtype: DType
    q: tuple[int, Linear]
    k: tuple[int, Linear]
    v: tuple[int, Linear]
    out: tuple[int, Linear]
    mask: tuple[int, Linear, DType] | None = None
    window: int | None = None
    softcap: float | None = None
    live: Dim = 1


@dataclass(frozen=True)
class Branch:
    """Runs the kernels `yes` if the bool in buffer `predicate` holds, else `no`.

    `yes_checks` and `no_checks` are numbers of `Program.checks` that must hold, else the run has failed.
    """

    predicate: int
    yes: tuple[Kernel, ...]
    no: tuple[Kernel, ...]
    yes_checks: tuple[int, ...] = ()
    no_checks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Row:
    """Buffer `number` is, in trip t of a loop, element offset + t·step of `base`."""

    number: int
    base: int
    offset: Dim
    step: Dim


@dataclass(frozen=True)
class Carried:
    """A value that a loop carries on, by pointers: nothing is copied.

    The body reads `now`, which is `start` in the first trip, and writes `following`; `last` is what is left. Two spare
    buffers take turns as `following`, unless that is a row of a stacked result.
    """

    start: int
    now: int
    following: int
    last: int
    spares: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """Runs `body` for trips 0 … trips - 1 (from the last to the first if `reverse`), while `condition` holds.

    `test` are the kernels that make the bool in buffer `condition`; without one the trips alone decide.
    """

    body: tuple[Kernel, ...]
    trips: Dim | None
    carried: tuple[Carried, ...]
    rows: tuple[Row, ...] = ()
    reverse: bool = False
    test: tuple[Kernel, ...] = ()
    condition: int | None = None


Work: TypeAlias = (
    "Nest | Contraction | AttentionWork | AttentionParts | AttentionJoin | SpecialWork | Exchanges | WinogradWork"
    " | Branch | Loop"
)


@dataclass(frozen=True)
class Buffer:
    """Memory of a program. `kind`: input, param, constant, output, temp, or alias (part of another, see
    `Program.holds`). Sizes are in elements."""

    number: int
    kind: str
    dtype: DType
    size: Dim
    name: str

    @property
    def nbytes(self) -> Dim:
        return dims.mul(self.size, self.dtype.itemsize)


@dataclass(frozen=True)
class Kernel:
    """A piece of work bound to buffers: slot i of the work is buffer `slots[i]`; the first `writes` slots are written.

    `name` tells the ops that it came from, `sources` the nodes.
    """

    name: str
    work: Work
    slots: tuple[int, ...]
    writes: int
    sources: tuple[str, ...] = ()


@dataclass
class Program:
    """Kernels in order over buffers. `prepare` depends on params alone and runs once when they are set.

    aliases   buffers that lie in others: (the other, first element)
    holds     buffers in whose memory an alias may lie
    checks    what regions need of dims when they run
    """

    symbols: tuple[str, ...]
    buffers: list[Buffer] = field(default_factory=list)
    prepare: list[Kernel] = field(default_factory=list)
    main: list[Kernel] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    params: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)
    aliases: dict[int, tuple[int, Dim]] = field(default_factory=dict)
    holds: dict[int, tuple[int, ...]] = field(default_factory=dict)
    checks: list[Equality] = field(default_factory=list)

    def new_buffer(self, kind: str, dtype: DType, size: Dim, name: str) -> Buffer:
        made = Buffer(len(self.buffers), kind, dtype, size, name)
        self.buffers.append(made)
        return made


def contiguous(shape: Iterable[Dim]) -> tuple[Dim, ...]:
    """Row-major strides in elements."""
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(tuple(shape)):
        strides.append(step)
        step = dims.mul(step, extent)
    return tuple(reversed(strides))
