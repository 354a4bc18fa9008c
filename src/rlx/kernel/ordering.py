"""Orders of elements as orders of integers, and long rankings as kernels that any renderer can split over its lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr, apply, bitcast, cast, const, select
from rlx.kernel.flatten import replace_leaves
from rlx.kernel.nest import (
    Kernel,
    Linear,
    Nest,
    Program,
    Store,
    axis,
    contiguous,
    linear,
    load,
    offset_of,
)
from rlx.kernel.special import Exchanges, Ranking


def order_key(x: Expr, largest: bool = False) -> Expr:
    """A signed integer (i32, or i64 for dtypes of 64 bits) that is in the order of x, or in the opposite one if
    `largest`; NaN is the greatest element."""
    key = _ascending(x)
    return apply("not", key) if largest else key


def _ascending(x: Expr) -> Expr:
    if x.dtype.is_float:
        return _float_key(x if x.dtype is dtypes.f64 else cast(x, dtypes.f32))
    if x.dtype.bits < 32:
        return cast(x, dtypes.i32)
    if x.dtype.kind == "int":
        return x
    high = const(1 << (x.dtype.bits - 1), x.dtype)
    return bitcast(apply("xor", x, high), dtypes.i64 if x.dtype.bits == 64 else dtypes.i32)


def _float_key(x: Expr) -> Expr:
    whole: DType = dtypes.i64 if x.dtype is dtypes.f64 else dtypes.i32
    greatest = (1 << (whole.bits - 1)) - 1
    bits = bitcast(x, whole)
    # of negative numbers the greater magnitude is the lesser number; -0.0 is 0.0, which is asked of the bits, because
    # a comparison may take a subnormal number for 0
    turned = apply("xor", bits, apply("and", apply("shr", bits, whole.bits - 1), greatest))
    key = select(apply("eq", apply("and", bits, greatest), 0), const(0, whole), turned)
    return select(apply("ne", x, x), const(greatest, whole), key)


def spread_rankings(program: Program, is_long: Callable[[Ranking], bool]) -> None:
    """Makes three kernels of every long ranking: a map to keys and positions, the network that sorts them, and a map
    that reads the elements in their order."""

    def spread(kernel: Kernel) -> list[Kernel] | None:
        work = kernel.work
        return _parts(program, kernel, work) if isinstance(work, Ranking) and is_long(work) else None

    replace_leaves(program, spread)


def _parts(program: Program, kernel: Kernel, work: Ranking) -> list[Kernel]:
    rows = (*work.outer, work.length)
    at = len(work.outer)
    place = Linear()
    for number, stride in enumerate(contiguous(rows)):
        place = place.plus(linear(axis(number)).times(stride))
    key = order_key(work.body, work.largest)
    size = dims.product(rows)
    keys = program.new_buffer("temp", key.dtype, size, f"{kernel.name}.keys")
    positions = program.new_buffer("temp", dtypes.i32, size, f"{kernel.name}.positions")
    reads = kernel.slots[kernel.writes :]
    shift = 2 - kernel.writes
    stores = (
        Store(0, place, ex.rewrite(key, lambda node, args: _with_slot(node, args, shift)), False),
        Store(1, place, cast(axis(at), dtypes.i32), False),
    )
    first = Kernel(f"{kernel.name}_keys", Nest(rows, (), stores), (keys.number, positions.number, *reads), 2)
    sorting = Kernel(f"{kernel.name}_sort", Exchanges(work.outer, work.length), (keys.number, positions.number), 2)
    found = cast(load(len(kernel.slots), place, dtypes.i32), dtypes.i64)
    given = []
    if work.values is not None:
        given.append(Store(*work.values, value_at(work.body, at, found), False))
    if work.indices is not None:
        given.append(Store(*work.indices, found, False))
    last = Kernel(
        kernel.name, Nest((*work.outer, work.k), (), tuple(given)), (*kernel.slots, positions.number), kernel.writes
    )
    return [dataclasses.replace(made, sources=kernel.sources) for made in (first, sorting, last)]


def _with_slot(node: Expr, args: tuple[Expr, ...], shift: int) -> Expr | None:
    """A load from another slot."""
    if node.kind != "load" or shift == 0:
        return None
    return Expr("load", node.dtype, args, dataclasses.replace(node.attr, slot=node.attr.slot + shift))


def line_at(line: Linear, number: int, position: Expr) -> Linear:
    """An offset with `position` in the place of an axis."""
    others = tuple((value_at(e, number, position), c) for e, c in line.others)
    rest = Linear(line.const, tuple((n, c) for n, c in line.axes if n != number), others)
    return rest.plus(linear(position).times(line.coefficient(number)))


def value_at(value: Expr, number: int, position: Expr) -> Expr:
    """An expression with `position` in the place of an axis."""

    def replaced(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind == "axis" and node.attr == number:
            return position
        if node.kind != "load":
            return None
        guard = args[0] if node.attr.guarded else None
        line = line_at(offset_of(Expr("load", node.dtype, args, node.attr)), number, position)
        return load(node.attr.slot, line, node.dtype, guard)

    return ex.rewrite(value, replaced)
