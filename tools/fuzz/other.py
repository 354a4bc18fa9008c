"""Every op of the registry that has cases, with the attributes of a case, between nodes like all others."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from ops.case import Case
from ops.cases import cases_of
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Value
from rlx.ir.op import REGISTRY
from tools.fuzz.generate import Maker, Refused, all_int, family

MOST = 5000
WITHOUT = {
    "input": "a leaf", "param": "a leaf", "constant": "a leaf", "dims_tensor": "has no operand",
    "iota": "has a family", "if": "has a family", "while": "has a family", "scan": "has a family",
    "measured": "ends a stage of its own; tests/runtime/test_stages.py has graphs with it",
    "fft": "complex numbers", "rfft": "complex numbers", "irfft": "complex numbers", "stft": "complex numbers",
    "istft": "complex numbers", "state": "a leaf", "require": "made by the checks around a program",
}  # fmt: skip
"""Ops that no case is taken of, and why. Complex results are refused on most devices."""


@cache
def usable(name: str) -> tuple[Case, ...]:
    """Cases that are small enough."""
    cases = [c for c in cases_of(REGISTRY[name]) if sum(a.size for a in c.arrays) <= MOST]
    return tuple(c for c in cases if c.arrays and not any(np.iscomplexobj(a) for a in c.arrays))


@family(14)
def of_the_registry(make: Maker) -> None:
    name = make.random.choice([n for n in REGISTRY if n not in WITHOUT])
    cases = usable(name)
    if not cases:
        raise Refused("no case")
    case = make.random.choice(cases)
    make.clamp()  # some cases have places that are none
    operands = []
    for array in case.arrays:
        dtype = dtypes.of(array.dtype)
        if dtype.is_float and make.chance(0.5):
            operands.append(coerced(make, array.shape, dtype))
        else:
            operands.append(make.leaf(array.shape, dtype, array=array))
    results = make.graph.add(case.op, *operands)
    values = make.known(results if isinstance(results, tuple) else (results,))
    if values[0].dtype.is_float and make.chance(0.5):
        make.add(
            make.random.choice(("add", "mul", "maximum")), values[0], make.operand(values[0].shape, values[0].dtype)
        )


def coerced(make: Maker, shape: tuple[int, ...], dtype: DType) -> Value:
    """A value of this type made of one that is there: flat, cut or repeated, and cast."""
    fits = [v for v in make.pool if v.dtype.is_float and v.dtype.bits >= 16 and all_int(v.shape) and make.size(v.shape)]
    count = math.prod(shape)
    if not fits or not count or dtype.bits < 16:
        return make.operand(shape, dtype)
    value = make.random.choice(fits[-5:])
    size = make.size(value.shape)
    flat = make.add("reshape", value, shape=(size,))
    if size < count:
        flat = make.add("broadcast_to", flat, shape=(-(-count // size), size))
        flat = make.add("reshape", flat, shape=(-(-count // size) * size,))
    if make.size(flat.shape) > count:
        start = make.random.randrange(make.size(flat.shape) - count + 1)
        flat = make.slice(flat, 0, start, start + count)
    reshaped = make.add("reshape", flat, shape=shape)
    return reshaped if reshaped.dtype is dtype else make.add("cast", reshaped, to=dtype)
