"""Where elements lie: offsets that are linear in loop axes, and the leaves of scalar bodies.

A kernel reads and writes buffers through *accesses*: a buffer's slot and an element offset that is linear in the loop
axes, with dims as coefficients, so that transposes, slices, broadcasts and reshapes of buffers cost nothing. Bodies are
`ir.expr` expressions whose leaves are made here.
"""

from __future__ import annotations

from functools import lru_cache

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.records import dataclass

MOST_PLACES = 1 << 12
"""That are remembered: kernels of a program find their elements in the same few ways."""

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


def accumulated(dtype: DType, second: bool = False) -> Expr:
    """The contraction's sum at the current position, in an epilogue; of a paired one its `second` sum too."""
    return Expr("acc", dtype, (), 1 if second else None)


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


@lru_cache(MOST_PLACES)
def place(index: tuple[Expr, ...], strides: tuple[Dim, ...], start: Dim = 0) -> Linear:
    """start + Σ index·stride."""
    offset = Linear(start)
    for part, stride in zip(index, strides):
        offset = offset.plus(linear(part).times(stride))
    return offset


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


@lru_cache(MOST_PLACES)
def contiguous(shape: Shape) -> Shape:
    """Row-major strides in elements."""
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(shape):
        strides.append(step)
        step = dims.mul(step, extent)
    return tuple(reversed(strides))
