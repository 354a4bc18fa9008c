"""bf16 in MIL, which lacks it: values are held in f32 and rounded after every instruction that may need it.

MIL has no access to the bits of a number, so rounding is arithmetic: a product with 2¹⁶ + 1 and two differences leave
the first eight digits (Dekker 1971, doi:10.1007/BF01397083). A model that computes in f16 does not round: f16 has three
digits more, and its own range.
"""

from __future__ import annotations

import numpy as np

from rlx import flags
from rlx.backends.coreml.library import Value, mb

DROPPED = 16
"""Binary digits of f32 that bf16 has not."""
LARGE, DOWN = np.float32(2.0**100), np.float32(2.0**-64)
"""From where on the product would overflow, and by how much such numbers are scaled."""
NORMAL = np.float32(2.0**-126)
"""The least number that has all eight digits; those below are multiples of 2⁻¹³³."""
SHIFT = np.float32(1.5 * 2.0**-110)
"""What, added and subtracted, rounds to such multiples."""
GREATEST = np.float32(np.finfo(np.float32).max)


def rounded(x: Value) -> Value:
    """The nearest numbers of bf16, of two the even one; infinities, NaN and signs of zeros stay."""
    if flags.coreml_precision() == "f16":
        return x
    size = mb.abs(x=x)
    large, small = mb.less(x=LARGE, y=size), mb.less(x=size, y=NORMAL)
    inside = mb.select(cond=large, a=mb.mul(x=x, y=DOWN), b=x)
    near = _digits(inside, DROPPED)
    rest = mb.sub(x=inside, y=near)
    other = mb.add(x=near, y=mb.mul(x=rest, y=np.float32(2)))  # as near, where it has eight digits too
    tie = mb.logical_and(x=mb.not_equal(x=rest, y=np.float32(0)), y=mb.equal(x=_digits(other, DROPPED), y=other))
    odd = mb.not_equal(x=_digits(near, DROPPED + 1), y=near)
    even = mb.select(cond=mb.logical_and(x=tie, y=odd), a=other, b=near)
    scaled = mb.select(cond=large, a=mb.mul(x=even, y=np.float32(1 / DOWN)), b=even)
    multiple = mb.sub(x=mb.add(x=x, y=SHIFT), y=SHIFT)
    nearest = mb.select(cond=small, a=multiple, b=scaled)
    nearest = mb.select(cond=mb.equal(x=nearest, y=np.float32(0)), a=mb.mul(x=x, y=np.float32(0)), b=nearest)
    return mb.select(cond=mb.less_equal(x=size, y=GREATEST), a=nearest, b=x)


def _digits(x: Value, dropped: int) -> Value:
    """x without so many of its last digits, rounded to one of the nearest."""
    wide = mb.mul(x=x, y=np.float32(2.0**dropped + 1))
    return mb.sub(x=wide, y=mb.sub(x=wide, y=x))
