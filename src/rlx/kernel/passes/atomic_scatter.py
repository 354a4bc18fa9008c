"""Long scatters as kernels whose updates come all at once, with the results of any order.

What integers give together is the same whichever update comes first: a device joins them by atomic instructions, as
far as it has them. Everything else is brought down to that:

- Replacing: the greatest position of the updates to a place is found first; that update alone writes.
- Least and greatest floats: by integers in their order (`order_keys.order_key`).
- Sums of narrow integers: in i32, where the device does not join theirs.
- Sums of floats: as integers of 64 bits in units of a place's greatest exponent, which are exact and cannot overflow.
  They keep 8 bits below the last digit of the greatest update, and so lose less than a sum in order may.

Products of floats and sums of f64 stay in order, and so does what a device has no atomics for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr, apply, bitcast, cast, const, select
from rlx.kernel.ir.index import Linear, axis, contiguous, index_of, linear, load
from rlx.kernel.ir.irregular import Scatter
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.order_keys import order_key
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.driver import LeafPass

GUARD_BITS = 8
"""Below the last digit of the greatest update. With its own 24, sums of 2^31 updates still fit in 63 bits."""
MOST_SHORT_POSITIONS = 1 << 31
"""Positions that an i32 counts."""
MANTISSA, EXPONENTS = 23, 255
"""Bits of an f32's fraction, and the exponent of infinities and NaN."""


HasAtomic = Callable[[str, DType], bool]
"""Whether a device joins elements of a dtype by an instruction of this name at once."""


class AtomicScatter(LeafPass):
    """Makes long scatters kernels with `Scatter.atomic`, where that can be done."""

    name = "atomic-scatter"

    def __init__(self, is_long: Callable[[Scatter], bool], has_atomic: HasAtomic) -> None:
        self.is_long = is_long
        self.has_atomic = has_atomic

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        work = kernel.work
        if not isinstance(work, Scatter) or not self.is_long(work):
            return None
        return self._way(work, program.buffers[kernel.slots[0]].dtype)

    def _way(self, work: Scatter, dtype: DType) -> str | None:
        """The name of the way in which updates can come at once with the results of any order, if there is one."""
        if work.combine is None:
            return "last-wins"
        if dtype.is_float:
            if work.combine == "add":
                return None if dtype is dtypes.f64 else "exact-sums"
            is_ordered = work.combine in ("min", "max") and self.has_atomic("max", _key_dtype(dtype))
            return "ordered-keys" if is_ordered else None
        if self.has_atomic(work.combine, dtype):
            return "atomics"
        return "wider-integers" if work.combine == "add" else None

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        assert isinstance(kernel.work, Scatter)
        return [dataclasses.replace(part, sources=kernel.sources) for part in self._parts(program, kernel, kernel.work)]

    def _parts(self, program: Program, kernel: Kernel, work: Scatter) -> list[Kernel]:
        spread, dtype = _Spread(program, kernel, work), program.buffers[kernel.slots[0]].dtype
        match self._way(work, dtype):
            case "last-wins":
                return spread.last_wins(self._position_dtype(work))
            case "wider-integers":
                return spread.through(dtypes.i32, lambda x: cast(x, dtypes.i32), lambda _, total: cast(total, dtype))
            case "exact-sums":
                return spread.float_sums()
            case "ordered-keys":
                key = _least_key if work.combine == "min" else order_key

                def back(x: Expr, greatest: Expr) -> Expr:
                    return select(apply("eq", key(x), greatest), x, _of_key(greatest, dtype))

                return spread.through(_key_dtype(dtype), key, back)
        return [dataclasses.replace(kernel, work=dataclasses.replace(work, atomic=True))]

    def _position_dtype(self, work: Scatter) -> DType:
        """What positions of updates are counted in; where atomics have 32 bits alone, so have all indices."""
        count = dims.product(work.inner)
        short = isinstance(count, int) and count <= MOST_SHORT_POSITIONS
        return dtypes.i32 if short or not self.has_atomic("max", dtypes.i64) else dtypes.i64


def _key_dtype(dtype: DType) -> DType:
    return dtypes.i64 if dtype is dtypes.f64 else dtypes.i32


def _least_key(x: Expr) -> Expr:
    """`order_key`, but NaN is the least."""
    key = order_key(x)
    return select(apply("ne", x, x), const(-(1 << (key.dtype.bits - 1)), key.dtype), key)


def _of_key(key: Expr, dtype: DType) -> Expr:
    """The float of a key."""
    sign = key.dtype.bits - 1
    greatest = (1 << sign) - 1
    turned = apply("xor", key, apply("and", apply("shr", key, sign), greatest))
    number = cast(bitcast(turned, dtypes.f64 if dtype is dtypes.f64 else dtypes.f32), dtype)
    edge = apply("or", apply("eq", key, greatest), apply("eq", key, -greatest - 1))
    return select(edge, const(float("nan"), dtype), number)


def _axes_of(bodies: Sequence[Expr]) -> set[int]:
    """Axes along which the values may vary."""
    axes: set[int] = set()
    for node in ex.walk(bodies):
        if node.kind == "axis":
            axes.add(node.attr)
        elif node.kind == "load":
            axes.update(number for number, _ in node.attr.axes)
    return axes


class _Spread:
    """One scatter on its way. Slot 0 of the new kernels is what they write; what the updates read keeps its slot."""

    def __init__(self, program: Program, kernel: Kernel, work: Scatter) -> None:
        self.program, self.kernel, self.work = program, kernel, work
        self.target = program.buffers[kernel.slots[0]]

    def through(self, dtype: DType, there: Callable[[Expr], Expr], back: Callable[[Expr, Expr], Expr]) -> list[Kernel]:
        """Joins in another dtype: elements go `there`; `back` makes one of what it was and what was found."""
        other = self._temp(dtype, "joined")
        join = dataclasses.replace(self.work, body=there(self.work.body), atomic=True)
        return [
            self._map("there", (other, self.target.number), there(self._element(1))),
            self._kernel("", join, (other, *self.kernel.slots[1:])),
            self._map("back", (self.target.number, other), back(self._element(0), self._element(1, dtype))),
        ]

    def last_wins(self, counted_in: DType) -> list[Kernel]:
        work, inner = self.work, len(self.work.outer)
        place = Linear()
        for number, stride in enumerate(contiguous(work.inner)):
            place = place.plus(linear(axis(inner + number)).times(stride))
        position = cast(index_of(place), counted_in)
        # axes along which neither places nor guards vary have the same winners
        read = _axes_of([work.guard, *(e for e, _ in work.offset.others)])
        kept = tuple((n, c) for n, c in work.offset.axes if n >= inner or n in read)
        where = Linear(work.offset.const, kept, work.offset.others)
        outer = tuple(extent if number in read else 1 for number, extent in enumerate(work.outer))
        winners = self._temp(counted_in, "winners")
        find = Scatter(outer, work.inner, where, work.guard, position, "max", True)
        won = apply("eq", load(len(self.kernel.slots), where, counted_in, work.guard), position)
        write = Scatter((*work.outer, *work.inner), (), work.offset, apply("and", work.guard, won), work.body, None)
        return [
            self._map("none", (winners,), const(-1, counted_in)),
            self._kernel("winners", find, (winners, *self.kernel.slots[1:])),
            self._kernel("", write, (*self.kernel.slots, winners)),
        ]

    def float_sums(self) -> list[Kernel]:
        work, slots = self.work, self.kernel.slots
        tops, sums = self._temp(dtypes.i32, "exponents"), self._temp(dtypes.i64, "sums")
        raise_tops = dataclasses.replace(work, body=_exponent(_f32(work.body)), combine="max", atomic=True)
        top = load(len(slots), work.offset, dtypes.i32)
        add = dataclasses.replace(work, body=_in_units(_f32(work.body), top), atomic=True)
        before, top_here = _f32(self._element(0)), self._element(2, dtypes.i32)
        total = self._element(1, dtypes.i64)
        changed = apply("ne", total, _in_units(before, top_here))
        after = select(changed, cast(_from_units(total, top_here), self.target.dtype), self._element(0))
        return [
            self._map("exponents", (tops, self.target.number), _exponent(_f32(self._element(1)))),
            self._kernel("exponents", raise_tops, (tops, *slots[1:])),
            self._map(
                "units",
                (sums, self.target.number, tops),
                _in_units(_f32(self._element(1)), self._element(2, dtypes.i32)),
            ),
            self._kernel("", add, (sums, *slots[1:], tops)),
            self._map("sums", (self.target.number, sums, tops), after),
        ]

    def _temp(self, dtype: DType, what: str) -> int:
        return self.program.new_buffer("temp", dtype, self.target.size, f"{self.kernel.name}.{what}").number

    def _element(self, slot: int, dtype: DType | None = None) -> Expr:
        return load(slot, linear(axis(0)), dtype or self.target.dtype)

    def _map(self, what: str, slots: tuple[int, ...], body: Expr) -> Kernel:
        """A kernel over all places."""
        nest = LoopNest((self.target.size,), (), (Store(0, linear(axis(0)), body, False),))
        return Kernel(f"{self.kernel.name}_{what}", nest, slots, 1)

    def _kernel(self, what: str, work: Scatter, slots: tuple[int, ...]) -> Kernel:
        return Kernel(f"{self.kernel.name}_{what}" if what else self.kernel.name, work, slots, 1)


# sums of floats, in units of 2^(exponent - bias - MANTISSA - GUARD_BITS)


def _f32(x: Expr) -> Expr:
    return x if x.dtype is dtypes.f32 else cast(x, dtypes.f32)


def _exponent(x: Expr) -> Expr:
    """The exponent's bits; those of zeros and subnormals count as 1, which is what they are multiples of."""
    bits = apply("and", apply("shr", bitcast(x, dtypes.i32), MANTISSA), EXPONENTS)
    return apply("max", bits, 1)


_INFINITY, _MINUS_INFINITY = 1, 1 << 31
"""What stands for them in the sum of a place with the exponent EXPONENTS: they are counted apart. A NaN is both."""


def _in_units(x: Expr, top: Expr) -> Expr:
    """A float in the units of a place, towards zero."""
    bits = bitcast(x, dtypes.i32)
    fraction = apply("and", bits, (1 << MANTISSA) - 1)
    exponent = apply("and", apply("shr", bits, MANTISSA), EXPONENTS)
    whole = apply("or", fraction, select(apply("eq", exponent, 0), const(0, dtypes.i32), 1 << MANTISSA))
    wide = apply("shl", cast(whole, dtypes.i64), GUARD_BITS)
    size = apply("shr", wide, cast(top - apply("max", exponent, 1), dtypes.i64))
    negative = apply("lt", bits, 0)
    number = select(negative, apply("neg", size), size)
    infinity = select(negative, const(_MINUS_INFINITY, dtypes.i64), _INFINITY)
    special = select(apply("ne", fraction, 0), const(_INFINITY + _MINUS_INFINITY, dtypes.i64), infinity)
    ordinary = select(apply("eq", top, EXPONENTS), const(0, dtypes.i64), number)
    return select(apply("eq", exponent, EXPONENTS), special, ordinary)


def _from_units(total: Expr, top: Expr) -> Expr:
    """The f32 of a sum. The scale is put on in two parts: as one power of two it may leave the range."""
    scale = top - (127 + MANTISSA + GUARD_BITS)
    half = apply("shr", scale, 1)
    number = cast(total, dtypes.f32) * _power(half) * _power(scale - half)
    plus = apply("ne", apply("and", total, _MINUS_INFINITY - 1), 0)
    minus = apply("ne", apply("shr", total, 31), 0)
    infinity = select(plus, const(float("inf"), dtypes.f32), float("-inf"))
    special = select(apply("and", plus, minus), const(float("nan"), dtypes.f32), infinity)
    return select(apply("eq", top, EXPONENTS), special, number)


def _power(exponent: Expr) -> Expr:
    return bitcast(apply("shl", exponent + 127, MANTISSA), dtypes.f32)
