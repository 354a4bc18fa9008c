"""Bitwise operations on integers by arithmetic, because MIL has no instructions for them. If no mask allows a shortcut,
they go digit by digit."""

from __future__ import annotations

import numpy as np

from rlx.backends.coreml.library import Value, constant, mb
from rlx.ir.dtype import DType

WIDTH = 32
"""Bits of MIL's integers, which i64 is kept in too."""
POWERS = np.array([1 << i for i in range(WIDTH - 1)] + [-(1 << (WIDTH - 1))], np.int32)


def both(x: Value, y: Value, of: DType) -> Value:
    """The bits that two integers have in common."""
    for one, other in ((x, y), (y, x)):
        mask = int(one.val) if one.val is not None and np.ndim(one.val) == 0 else -1
        if 0 <= mask < (1 << (WIDTH - 1)) - 1 and mask & (mask + 1) == 0:  # the low bits
            return mb.mod(x=other, y=np.int32(mask + 1))
    last = min(of.bits, WIDTH) - 1
    total: Value = None
    for i in range(last):
        bit = mb.mul(x=mb.mul(x=mb.mod(x=x, y=np.int32(2)), y=mb.mod(x=y, y=np.int32(2))), y=POWERS[i])
        total = bit if total is None else mb.add(x=total, y=bit)
        x, y = (mb.floor_div(x=rest, y=np.int32(2)) for rest in (x, y))
    # what is left is the highest bit: 1, or -1 where that is the sign
    high = POWERS[last] if of.kind == "uint" else np.int32(-(1 << last))
    return mb.add(x=total, y=mb.mul(x=mb.mul(x=x, y=y), y=high))


def either(x: Value, y: Value, of: DType) -> Value:
    """The bits that one of two integers has: nothing is carried, so that no sum is too large."""
    return mb.add(x=x, y=mb.sub(x=y, y=both(x, y, of)))


def one_of(x: Value, y: Value, of: DType) -> Value:
    """The bits that just one of two integers has."""
    common = both(x, y, of)
    return mb.add(x=mb.sub(x=x, y=common), y=mb.sub(x=y, y=common))


def left(x: Value, by: Value, of: DType) -> Value:
    """x shifted up, which may leave its range; by less than 0 or by all of its bits it is 0."""
    inside, safe = _inside(by, of)
    product = mb.mul(x=x, y=_power(safe))
    return mb.mul(x=product, y=mb.cast(x=inside, dtype="int32"))


def right(x: Value, by: Value, of: DType) -> Value:
    """x shifted down with its sign; by less than 0 or by all of its bits the sign alone is left."""
    inside, safe = _inside(by, of)
    outside = mb.cast(x=mb.logical_not(x=inside), dtype="int32")
    most = mb.add(x=safe, y=mb.mul(x=outside, y=np.int32(WIDTH)))
    first = mb.floor_div(x=most, y=np.int32(2))  # in two steps, as 2³¹ is no i32
    second = mb.sub(x=most, y=first)
    return mb.floor_div(x=mb.floor_div(x=x, y=_power(first)), y=_power(second))


def _inside(by: Value, of: DType) -> tuple[Value, Value]:
    """Whether amounts are within an integer's bits, and the amounts, 0 where they are not."""
    above = mb.less_equal(x=np.int32(0), y=by)
    inside = mb.logical_and(x=above, y=mb.less(x=by, y=np.int32(min(of.bits, WIDTH))))
    return inside, mb.mul(x=by, y=mb.cast(x=inside, dtype="int32"))


def _power(exponent: Value) -> Value:
    """2 to small exponents."""
    return mb.gather(x=constant(POWERS), indices=exponent, axis=0, validate_indices=False)
