"""Integers that depend only on their position: positions, ranges, flat indices, and comparisons of them.

A value is affine if it is Σ coefficient · (index along an axis) + constant. Axes count from the back (-1 is the last),
so that broadcasting changes nothing. Coefficients and constants are dims. Signed integers of 32 bits or more are
assumed not to overflow, since indices do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from rlx.ir import dim as dims
from rlx.ir.dim import Bounds, Dim, Shape
from rlx.ir.graph import Value
from rlx.ir.literal import Array
from rlx.ops.elementwise import Add, Cast, Ge, Gt, Le, Lt, Mul, Neg, Sub
from rlx.ops.shape import BroadcastTo, DimsTensor, Iota, Reshape, Slice, Transpose
from rlx.records import dataclass

MAX_DEPTH = 24
MAX_CONSTANT = 1 << 16  # elements of a constant that is looked into


@dataclass(frozen=True)
class Affine:
    """Σ coefficients[axis] · index[axis] + constant."""

    constant: Dim = 0
    coefficients: Mapping[int, Dim] = field(default_factory=dict)

    def __add__(self, other: Affine) -> Affine:
        axes = {*self.coefficients, *other.coefficients}
        coefficients = {a: dims.add(self.coefficients.get(a, 0), other.coefficients.get(a, 0)) for a in axes}
        return Affine(dims.add(self.constant, other.constant), {a: c for a, c in coefficients.items() if c != 0})

    def scaled(self, factor: Dim) -> Affine:
        if factor == 0:
            return Affine()
        return Affine(dims.mul(self.constant, factor), {a: dims.mul(c, factor) for a, c in self.coefficients.items()})

    def __neg__(self) -> Affine:
        return self.scaled(-1)

    def __sub__(self, other: Affine) -> Affine:
        return self + -other

    def least(self, shape: Shape, known: Bounds) -> int:
        """A number that no element of an array of this shape is below."""
        low: Dim = self.constant
        for axis, coefficient in self.coefficients.items():
            smallest, greatest = dims.bounds(coefficient, known)
            if smallest >= 0:
                continue
            if greatest is None or greatest > 0:
                return -(1 << 62)
            low = dims.add(low, dims.mul(coefficient, dims.add(shape[axis], -1)))
        return dims.bounds(low, known)[0]


def affine(value: Value, depth: int = MAX_DEPTH) -> Affine | None:
    """The value as an affine form of its indices; None if it is not one, or is no integer."""
    if not _is_wide(value) or depth == 0:
        return None
    array = value.constant
    if array is not None:
        return _of_array(array)
    inputs, op = value.node.inputs, value.op
    if isinstance(op, Iota):
        axis = op.axis % value.rank - value.rank
        return Affine(0, {axis: 1} if value.shape[axis] != 1 else {})
    if isinstance(op, DimsTensor):
        return Affine(op.values[0]) if len(set(op.values)) == 1 else None
    parts = [affine(v, depth - 1) for v in inputs]
    known = [part for part in parts if part is not None]
    if not inputs or len(known) != len(inputs):
        return None
    match op:
        case Add():
            return known[0] + known[1]
        case Sub():
            return known[0] - known[1]
        case Neg():
            return -known[0]
        case Mul() if not known[1].coefficients:
            return known[0].scaled(known[1].constant)
        case Mul() if not known[0].coefficients:
            return known[1].scaled(known[0].constant)
        case BroadcastTo():
            return known[0]
        case Cast():
            return known[0]
    return _moved(value, known[0])


def _is_wide(value: Value) -> bool:
    return value.dtype.kind == "int" and value.dtype.bits >= 32


def _moved(value: Value, of: Affine) -> Affine | None:
    """The form behind an op that moves axes."""
    source = value.node.inputs[0]
    match value.op:
        case Reshape():
            places = _places(source.shape, value.shape)
            if places is None:
                return None
            return Affine(of.constant, {places[a]: c for a, c in of.coefficients.items()})
        case Transpose(permutation=order):
            back = {old - source.rank: new - value.rank for new, old in enumerate(order)}
            return Affine(of.constant, {back[a]: c for a, c in of.coefficients.items()})
        case Slice(starts=starts, steps=steps):
            constant = of.constant
            coefficients: dict[int, Dim] = {}
            for axis, coefficient in of.coefficients.items():
                constant = dims.add(constant, dims.mul(coefficient, starts[axis]))
                if value.shape[axis] != 1:
                    coefficients[axis] = dims.mul(coefficient, steps[axis])
            return Affine(constant, coefficients)
    return None


def _places(old: Shape, new: Shape) -> dict[int, int] | None:
    """Where each axis that is not 1 goes in a reshape that only adds and removes axes of 1."""
    before = [i - len(old) for i, d in enumerate(old) if d != 1]
    after = [i - len(new) for i, d in enumerate(new) if d != 1]
    if [old[i] for i in before] != [new[i] for i in after]:
        return None
    return dict(zip(before, after))


def _of_array(array: Array) -> Affine | None:
    """A constant that is one number, or that steps evenly along one axis."""
    if array.size == 0 or array.size > MAX_CONSTANT:
        return None
    flat = array.reshape(-1).astype(np.int64)
    if (flat == flat[0]).all():
        return Affine(int(flat[0]))
    wide = [i - array.ndim for i, d in enumerate(array.shape) if d != 1]
    steps = np.diff(flat)
    if len(wide) != 1 or not (steps == steps[0]).all():
        return None
    return Affine(int(flat[0]), {wide[0]: int(steps[0])})


def not_negative(comparison: Value) -> Affine | None:
    """The affine form that is ≥ 0 exactly where an integer comparison holds; None if it is not of affine values."""
    if not isinstance(comparison.op, (Ge, Gt, Le, Lt)):
        return None
    left, right = (affine(v) for v in comparison.node.inputs)
    if left is None or right is None:
        return None
    gap = left - right if isinstance(comparison.op, (Ge, Gt)) else right - left
    return gap if isinstance(comparison.op, (Ge, Le)) else gap + Affine(-1)
