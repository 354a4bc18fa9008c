"""Products make the rows of their left side themselves: a norm, or an activation, whose result they alone read first.

Each workgroup of a product of few rows makes all rows of its tile: that is little work beside its weights, and costs
neither a kernel nor memory. Where a run has many rows, or only it knows how many, the nest and the product are there as
they were, too. Other kernels that read the rows find them where they were: one column of workgroups stores them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.rewriting import Context
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import RowProduct
from rlx.kernel.ir.index import Linear, contiguous
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.slots import joined, nest_on_slots, product_on_slots
from rlx.kernel.passes.driver import KernelPass
from rlx.kernel.passes.row_tails import is_in_the_way


class RowPrologues(KernelPass):
    """Merges nests into the contractions that read their rows. `most_rows` tells how many rows a target can make so,
    0 for products that it does not."""

    name = "row-prologues"

    def __init__(self, most_rows: Callable[[LoopNest, Contraction], int]) -> None:
        self.most_rows = most_rows

    def run(self, program: Program, context: Context) -> None:
        for kernel in tuple(program.main):
            product = _first_reader(program, kernel)
            most = 0 if product is None else self._most(kernel, product)
            if product is None or most == 0 or not self.spend(context, "rows", kernel):
                continue
            self._merge(program, kernel, product, most)

    def _most(self, kernel: Kernel, product: Kernel) -> int:
        """How many rows the product can make, 0 if it never will."""
        assert isinstance(kernel.work, LoopNest) and isinstance(product.work, Contraction)
        most = self.most_rows(kernel.work, product.work)
        return 0 if isinstance(product.work.m, int) and product.work.m > most else most

    def _merge(self, program: Program, kernel: Kernel, product: Kernel, most: int) -> None:
        nest, work = kernel.work, product.work
        assert isinstance(nest, LoopNest) and isinstance(work, Contraction)
        rows = product.slots[work.a_slot]
        kept = program.buffers[rows].kind != "temp" or len([k for k in program.main if rows in k.slots]) > 2
        live = few(work.m, most)
        at = program.main.index(product)
        program.main[at : at + 1] = [_merged(kernel, product, rows, kept, live, most)]
        if live == 1:
            program.main.remove(kernel)
            return
        rest = many(work.m, most)
        left = dataclasses.replace(_at_times(work, rest), above=most)
        program.main.insert(at, dataclasses.replace(product, work=left))
        outer = (dims.mul(nest.outer[0], rest), *nest.outer[1:])
        start = program.main.index(kernel)
        program.main[start] = dataclasses.replace(kernel, work=dataclasses.replace(nest, outer=outer))


def few(rows: Dim, most: int) -> Dim:
    """1 if there are at most so many rows, else 0."""
    return dims.maximum(dims.add(1, dims.mul(dims.floordiv(rows, most + 1), -1)), 0)


def many(rows: Dim, most: int) -> Dim:
    """1 if there are more rows, else 0."""
    return dims.add(1, dims.mul(few(rows, most), -1))


def _at_times(work: Contraction, live: Dim) -> Contraction:
    """The product, which has no rows where `live` is 0."""
    return dataclasses.replace(work, m=dims.mul(work.m, live))


def _row_stores(kernel: Kernel) -> tuple[Store, ...]:
    """The stores of a nest that makes rows and nothing else, each of whole rows."""
    work = kernel.work
    if not isinstance(work, LoopNest):
        return ()
    if not work.inner:  # a map: its last axis is the row
        if len(work.outer) < 2 or len(work.statements) != 1:
            return ()
    elif len(work.inner) != 1 or any(isinstance(s, Reduce) and s.argument for s in work.statements):
        return ()
    stores = tuple(work.stores())
    whole = all(s.guard is None and (s.per_element or not work.inner) and not s.offset.others for s in stores)
    return stores if whole else ()


def _first_reader(program: Program, kernel: Kernel) -> Kernel | None:
    """The first kernel that reads rows that a nest makes, if it is a product that reads them as its left side."""
    for store in _row_stores(kernel):
        work = kernel.work
        assert isinstance(work, LoopNest)
        number, extents = kernel.slots[store.slot], work.extents()
        users = [k for k in program.main if number in k.slots and k is not kernel]
        if store.offset != Linear(0, tuple(enumerate(contiguous(extents)))) or not users:
            continue
        product = users[0]
        start, end = program.main.index(kernel), program.main.index(product)
        others = {n for n in kernel.slots[: kernel.writes] if n != number}
        used = any(others & set(k.slots) for k in program.main[start + 1 : end + 1])
        if end < start or used or is_in_the_way(program, kernel, program.main[start + 1 : end]):
            continue
        if _reads_rows(product, number, dims.product(extents[:-1]), extents[-1]):
            return product
    return None


def _reads_rows(product: Kernel, number: int, rows: Dim, length: Dim) -> bool:
    work = product.work
    if not isinstance(work, Contraction) or work.batch or work.taps or product.slots.count(number) != 1:
        return False
    line = Linear(0, ((work.m_axis, length), (work.k_axis, 1)))
    elsewhere = any(node.attr.slot == work.a_slot for node in work.loads()) or work.b_slot == work.a_slot
    fits = product.slots[work.a_slot] == number and work.a == line and not elsewhere
    return fits and work.m == rows and work.k == length


def _merged(kernel: Kernel, product: Kernel, rows: int, kept: bool, live: Dim, most: int) -> Kernel:
    nest, work = kernel.work, product.work
    assert isinstance(nest, LoopNest) and isinstance(work, Contraction)
    slots, writes = joined((product, kernel), inside=() if kept else (rows,))
    own = nest_on_slots(nest, kernel.slots, slots)
    store = next(s for s, given in zip(own.stores(), nest.stores()) if kernel.slots[given.slot] == rows)
    statements = [s for s in own.statements if kept or s is not store]
    if not nest.inner:
        own = dataclasses.replace(own, outer=nest.outer[:-1], inner=nest.outer[-1:])
        statements = [dataclasses.replace(s, per_element=True) if isinstance(s, Store) else s for s in statements]
    made = dataclasses.replace(own, statements=(*statements, RowBuffer(store.body)))
    right = product_on_slots(work, product.slots, slots)
    joined_product = _at_times(dataclasses.replace(right, a_slot=Contraction.NO_SLOT), live)
    names = tuple(dict.fromkeys((*kernel.sources, *product.sources)))
    return Kernel(f"{kernel.name}_{product.name}", RowProduct(made, joined_product, most), slots, writes, names)
