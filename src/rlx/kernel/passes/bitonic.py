"""Orders of elements as orders of integers, and long rankings as kernels that any renderer can split over its lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.expr import Expr, cast
from rlx.kernel.ir.index import Linear, axis, contiguous, linear, load
from rlx.kernel.ir.irregular import BitonicSort, TopKSelection
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.order_keys import order_key, value_at
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.driver import LeafPass


class Bitonic(LeafPass):
    """Makes three kernels of every long selection: a map to keys and positions, the network that sorts them, and a map
    that reads the elements in their order."""

    name = "bitonic"
    required = True  # generators that ask for it have no other way to select from long rows

    def __init__(self, is_long: Callable[[TopKSelection], bool]) -> None:
        self.is_long = is_long

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        return "long-selection" if isinstance(kernel.work, TopKSelection) and self.is_long(kernel.work) else None

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        assert isinstance(kernel.work, TopKSelection)
        return _parts(program, kernel, kernel.work)


def _parts(program: Program, kernel: Kernel, work: TopKSelection) -> list[Kernel]:
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
    first = Kernel(f"{kernel.name}_keys", LoopNest(rows, (), stores), (keys.number, positions.number, *reads), 2)
    sorting = Kernel(f"{kernel.name}_sort", BitonicSort(work.outer, work.length), (keys.number, positions.number), 2)
    position = cast(load(len(kernel.slots), place, dtypes.i32), dtypes.i64)
    given = []
    if work.values is not None:
        given.append(Store(*work.values, value_at(work.body, at, position), False))
    if work.indices is not None:
        given.append(Store(*work.indices, position, False))
    last = Kernel(
        kernel.name, LoopNest((*work.outer, work.k), (), tuple(given)), (*kernel.slots, positions.number), kernel.writes
    )
    return [dataclasses.replace(part, sources=kernel.sources) for part in (first, sorting, last)]


def _with_slot(node: Expr, args: tuple[Expr, ...], shift: int) -> Expr | None:
    """A load from another slot."""
    if node.kind != "load" or shift == 0:
        return None
    return Expr("load", node.dtype, args, dataclasses.replace(node.attr, slot=node.attr.slot + shift))
