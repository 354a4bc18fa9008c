"""What values have of NumPy's arrays beside operators: reductions over axes, other shapes and dtypes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from rlx.arguments import is_index, is_iterable
from rlx.elsewhere import METHODS
from rlx.errors import GraphError, ShapeError
from rlx.ir.spelling import lenient_method

if TYPE_CHECKING:
    from rlx.ir.dim import Dim
    from rlx.ir.value import Value

NAMES_OF_FUNCTIONS: list[Callable[[], set[str]]] = []
"""What gives the names of functions of ops, where there are any."""
Axes = int | Iterable[int] | None


class ArrayMethods:
    """Methods of values that are made of ops. An axis of None stands for all axes, as in NumPy."""

    __slots__ = ()

    @property
    def ndim(self) -> int:
        return _of(self).rank

    @property
    def size(self) -> Dim:
        """The number of elements."""
        return _of(self).type.size

    @lenient_method
    def sum(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """The sum over axes, in this dtype; of bools, how many hold (i64)."""
        x = _of(self)
        return _reduced(x.cast("i64") if x.dtype.kind == "bool" else x, "sum", axis, keepdims)

    @lenient_method
    def prod(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """The product over axes, in this dtype."""
        return _reduced(_of(self), "prod", axis, keepdims)

    @lenient_method
    def mean(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """The mean over axes, in this dtype: integers divide towards zero."""
        return _reduced(_of(self), "mean", axis, keepdims)

    @lenient_method
    def var(self, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Value:
        """The mean squared distance from the mean; `ddof` is taken off the number of elements: 1 for a sample."""
        return _reduced(_of(self), "variance", axis, keepdims, correction=ddof)

    @lenient_method
    def std(self, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Value:
        """The square root of `var`."""
        x = _of(self)
        return x.graph.build("sqrt", x.var(axis, keepdims, ddof))

    @lenient_method
    def max(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """The greatest over axes; NaN if any is NaN."""
        return _reduced(_of(self), "max", axis, keepdims)

    @lenient_method
    def min(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """The least over axes; NaN if any is NaN."""
        return _reduced(_of(self), "min", axis, keepdims)

    @lenient_method
    def all(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """Whether all are true, or not zero."""
        return _reduced(_truth(_of(self)), "all", axis, keepdims)

    @lenient_method
    def any(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """Whether one is true, or not zero."""
        return _reduced(_truth(_of(self)), "any", axis, keepdims)

    @lenient_method
    def astype(self, dtype: Any) -> Value:
        """This value in another dtype; itself if it has it."""
        return _of(self).cast(dtype)

    @lenient_method
    def clip(self, min: Any = None, max: Any = None) -> Value:
        """This value within bounds; None is no bound."""
        x = _of(self)
        above = x if min is None else x.graph.build("maximum", x, min)
        return above if max is None else x.graph.build("minimum", above, max)

    def ravel(self) -> Value:
        """All elements along one axis."""
        return _of(self).reshape(-1)

    @lenient_method
    def squeeze(self, axis: Axes = None) -> Value:
        """Without these axes of 1; without all that are known to be 1 if none are given. Raises ShapeError."""
        x = _of(self)
        at = [i for i, d in enumerate(x.shape) if d == 1] if axis is None else axes_of(axis, x.rank, "squeeze")
        for i in at:
            x.graph.equal(x.shape[i], 1, f"[squeeze] expected axis {i} of {x.type} to be 1")
        return x.reshape(tuple(d for i, d in enumerate(x.shape) if i not in at))

    @lenient_method
    def swapaxes(self, axis1: int, axis2: int) -> Value:
        """With two axes exchanged. Raises ShapeError."""
        x = _of(self)
        order = list(range(x.rank))
        first, second = _axis(axis1, x.rank, "swapaxes"), _axis(axis2, x.rank, "swapaxes")
        order[first], order[second] = second, first
        return x.transpose(*order) if order else x

    def __floordiv__(self, other: Any) -> Value:
        return _floor_divided(_of(self), _of(self), other)

    def __rfloordiv__(self, other: Any) -> Value:
        return _floor_divided(_of(self), other, _of(self))


def no_attribute(value: Value, name: str) -> AttributeError:
    """The error for an attribute that values have not, which says what does the same."""
    meant = METHODS.get(name)
    if meant is None and not name.startswith("_") and any(name in names() for names in NAMES_OF_FUNCTIONS):
        meant = f"rlx.{name}(x) does it"
    said = f"'Value' object has no attribute {name!r}{f': {meant}' if meant else ''}"
    return AttributeError(said, name=name, obj=value)


def _of(methods: ArrayMethods) -> Value:
    return cast("Value", methods)


def axes_of(axis: Axes, rank: int, name: str) -> tuple[int, ...]:
    """The axes that NumPy means: one, several, or all. Raises ShapeError, GraphError."""
    if axis is None:
        return tuple(range(rank))
    if is_index(axis):
        return (_axis(axis, rank, name),)
    if isinstance(axis, (str, bytes)) or not is_iterable(axis):
        raise GraphError(f"[{name}] expected an axis, several or None, got {axis!r}")
    several = tuple(_axis(one, rank, name) for one in axis)
    if len(set(several)) < len(several):
        raise ShapeError(f"[{name}] expected axes without repeats, got {several}")
    return several


def _axis(axis: Any, rank: int, name: str) -> int:
    if not is_index(axis):
        raise GraphError(f"[{name}] expected an int as the axis, got {axis!r}")
    at = operator.index(axis)
    if not -rank <= at < rank:
        raise ShapeError(f"[{name}] expected an axis in [{-rank}, {rank}), got {at}")
    return at % rank


def _reduced(x: Value, name: str, axis: Axes, keepdims: bool, **attributes: Any) -> Value:
    axes = axes_of(axis, x.rank, name)
    return x.graph.build(f"reduce_{name}", x, axes=axes, keepdims=keepdims, **attributes)


def _truth(x: Value) -> Value:
    return x if x.dtype.kind == "bool" else x.graph.build("ne", x, 0)


def _floor_divided(model: Value, dividend: Any, divisor: Any) -> Value:
    """⌊x / y⌋ as NumPy has it: integers by zero give 0, floats what x / y is."""
    build = model.graph.build
    x, y = (model.graph.operand(model, one) for one in (dividend, divisor))
    quotient = x / y
    if x.dtype.kind == "uint":
        return quotient
    rest = build("rem", x, y)
    below = build("ne", rest, 0) & ((rest < 0) ^ (y < 0))
    if x.dtype.kind == "int":
        return build("select", below, quotient - 1, quotient)
    exact = (x - rest) / y  # a whole number but for rounding
    whole = build("round", build("select", below, exact - 1, exact))
    return build("select", build("eq", y, 0), quotient, whole)
