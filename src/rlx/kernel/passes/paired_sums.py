"""Gates become the epilogue of the product that makes both of their sides: a map that reads of each row of a product
columns n and n + N is made where the product has both sums.

The workgroups of such a product have the same columns of both halves, so that it writes half as much, which no kernel
reads again. Few rows have gates elsewhere (`row_prologues.py`): where only a run knows how many rows there are, the
product and the map are there too, for as many rows as the target has no such tiles for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.ir.rewriting import Context
from rlx.kernel.ir.axes import replaced_expr
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import RowProduct
from rlx.kernel.ir.index import Linear, accumulated, offset_of
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Kernel, Program, storage_roots
from rlx.kernel.ir.slots import joined, nest_on_slots, product_on_slots
from rlx.kernel.passes.driver import KernelPass
from rlx.kernel.passes.row_prologues import few, many
from rlx.records import dataclass


@dataclass(frozen=True)
class Gate:
    """A product and a map that alone reads its results, in pairs of columns.

    both     the buffer of the results, [rows, 2 · columns]
    apart    the greatest number of rows that other kernels make, or for which they read the product's results
    """

    product: Kernel
    nest: Kernel
    both: int
    rows: Dim
    columns: int
    apart: int


class PairedSums(KernelPass):
    """Makes paired contractions of products and gates. `most_unpaired` tells of such a kernel the number of rows up to
    which the target has none, or None if it never has."""

    name = "paired-sums"

    def __init__(self, most_unpaired: Callable[[Program, Kernel], int | None]) -> None:
        self.most_unpaired = most_unpaired

    def run(self, program: Program, context: Context) -> None:
        for kernel in tuple(program.main):
            gate = _gate_of(program, kernel)
            paired = None if gate is None else _paired(gate)
            most = None if paired is None else self.most_unpaired(program, paired)
            if gate is None or paired is None or most is None or not self.spend(context, "gate", kernel):
                continue
            _replace(program, gate, paired, max(most, gate.apart))


def _replace(program: Program, gate: Gate, paired: Kernel, most: int) -> None:
    """Puts a paired contraction in the place of a product and a map where there are more than so many rows."""
    product, nest = gate.product.work, gate.nest.work
    assert isinstance(product, Contraction) and isinstance(nest, LoopNest) and isinstance(paired.work, Contraction)
    at = program.main.index(gate.nest)
    if isinstance(gate.rows, int) or most == 0:
        program.main.insert(at, paired)
        for each in (gate.product, gate.nest):
            program.main.remove(each)
        return
    own = dataclasses.replace(paired.work, m=dims.mul(gate.rows, many(gate.rows, most)), above=most)
    program.main.insert(at, dataclasses.replace(paired, work=own))
    live = few(gate.rows, most)
    left = dataclasses.replace(product, m=dims.mul(product.m, live), up_to=most)
    outer = (dims.mul(nest.outer[0], live), *nest.outer[1:])
    for each, rest in ((gate.product, left), (gate.nest, dataclasses.replace(nest, outer=outer))):
        program.main[program.main.index(each)] = dataclasses.replace(each, work=rest)


def _gate_of(program: Program, kernel: Kernel) -> Gate | None:
    """The gate that a product makes both sides of, if that is all that becomes of these."""
    work, both = kernel.work, kernel.slots[0]
    if not isinstance(work, Contraction) or not _makes_rows(work) or program.buffers[both].kind != "temp":
        return None
    columns = dims.exact_div(work.n, 2)
    rows = dims.exact_div(program.buffers[both].size, work.n)
    others = [k for k in program.main if both in k.slots and k is not kernel]
    nests = [k for k in others if isinstance(k.work, LoopNest)]
    if not isinstance(columns, int) or rows is None or len(nests) != 1 or kernel.slots.count(both) != 1:
        return None
    if both in program.outputs or any(both in inner for inner in program.holds.values()):
        return None
    limits = [_most_rows(other, rows) for other in others if other is not nests[0]]
    (nest,) = nests
    if None in limits or not _is_gate(nest, both, columns) or not _follows(program, kernel, nest, rows):
        return None
    known = [limit for limit in limits if limit is not None]
    of_product = work.above if _is_above(work.m, rows, work.above) else None
    assert isinstance(nest.work, LoopNest)
    of_nest = next((most for most in (0, *known) if _is_above(nest.work.outer[0], rows, most)), None)
    if of_product is None or of_nest is None:
        return None
    return Gate(kernel, nest, both, rows, columns, max(of_product, of_nest, *known, 0))


def _makes_rows(work: Contraction) -> bool:
    """Whether a product of one matrix, in panels, makes rows that lie one behind the other."""
    plain = not work.batch and work.packed > 0 and work.blocks is None and not work.paired and len(work.epilogue) == 1
    if not plain or work.b.axes or work.b.others:
        return False
    (store,) = work.epilogue
    return store.guard is None and store.offset == Linear(0, ((work.m_axis, work.n), (work.n_axis, 1)))


def _most_rows(kernel: Kernel, rows: Dim) -> int | None:
    """Up to how many rows a kernel works at all, if that is a product that makes its rows itself."""
    work = kernel.work
    if not isinstance(work, RowProduct) or work.product.m != dims.mul(few(rows, work.most_rows), rows):
        return None
    return work.most_rows


def _is_above(found: Dim, rows: Dim, most: int) -> bool:
    """Whether so many rows are those of a run that has more than `most`; all of them, if that is 0."""
    return found == (dims.mul(rows, many(rows, most)) if most else rows)


def _is_gate(kernel: Kernel, both: int, columns: int) -> bool:
    """Whether a nest is a map that reads both halves of its row of a buffer, and nothing else of it."""
    work = kernel.work
    if not isinstance(work, LoopNest) or work.inner or len(work.outer) != 2 or work.outer[1] != columns:
        return False
    if kernel.slots.count(both) != 1 or kernel.writes != 1 or kernel.slots[0] in (both, *kernel.slots[1:]):
        return False
    (statement,) = work.statements if len(work.statements) == 1 else (None,)
    if not isinstance(statement, Store) or statement.guard is not None:
        return False
    slot, row = kernel.slots.index(both), ((0, 2 * columns), (1, 1))
    read = [node for node in work.loads() if node.attr.slot == slot]
    lines = {offset_of(node) for node in read}
    plain = not statement.offset.others and not any(node.attr.guarded for node in read)
    return plain and lines == {Linear(c, row) for c in (0, columns)}


def _follows(program: Program, kernel: Kernel, nest: Kernel, rows: Dim) -> bool:
    """Whether the product could run where the nest does: nothing in between changes what it reads, but for kernels that
    have no rows then."""
    start, end = program.main.index(kernel), program.main.index(nest)
    read = {root for n in kernel.slots[kernel.writes :] for root in storage_roots(program, n)}
    between: Sequence[Kernel] = [k for k in program.main[start + 1 : end] if _most_rows(k, rows) is None]
    written = {root for k in between for n in k.slots[: k.writes] for root in storage_roots(program, n)}
    return start < end and not any(k.work.owns_kernels for k in between) and read.isdisjoint(written)


def _paired(gate: Gate) -> Kernel:
    """The product of all rows with the gate as its epilogue."""
    product, nest = gate.product.work, gate.nest.work
    assert isinstance(product, Contraction) and isinstance(nest, LoopNest)
    slots, writes = joined((gate.nest, gate.product), inside=(gate.both,))
    own = product_on_slots(product, gate.product.slots, slots)
    (store,) = nest_on_slots(nest, gate.nest.slots, slots).statements
    assert isinstance(store, Store)
    (made,) = own.bodies()
    sides = (made, _second(made, own, gate.columns))

    def rule(node: Expr, _: tuple[Expr, ...]) -> Expr | None:
        return sides[offset_of(node).const != 0] if node.kind == "load" and node.attr.slot == own.NO_SLOT else None

    store = dataclasses.replace(store, body=ex.rewrite(store.body, rule), per_element=False)
    work = dataclasses.replace(own, m=gate.rows, n=gate.columns, epilogue=(store,), paired=True)
    names = tuple(dict.fromkeys((*gate.product.sources, *gate.nest.sources)))
    return Kernel(f"{gate.product.name}_{gate.nest.name}", work, slots, writes, names)


def _second(made: Expr, work: Contraction, columns: int) -> Expr:
    """What a product stores of a column, so many columns further on."""
    moved = replaced_expr(made, {work.n_axis: Linear(columns, ((work.n_axis, 1),))})
    return ex.rewrite(moved, lambda node, _: accumulated(node.dtype, second=True) if node.kind == "acc" else None)
