"""What follows attention element by element is made by the kernel that has the elements: rounding to bytes, a cast."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.ir.rewriting import Context
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.index import Linear, accumulated, contiguous, load, offset_of
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.driver import KernelPass
from rlx.kernel.passes.row_tails import is_in_the_way

STORED = (dtypes.u8, dtypes.i8, dtypes.f8e4m3, dtypes.f16, dtypes.bf16, dtypes.f32)


class AttentionTails(KernelPass):
    """Takes maps into the attention whose result they alone read, where `takes` says that its kernels can have them."""

    name = "attention-tails"

    def __init__(self, takes: Callable[[FusedAttention], bool]) -> None:
        self.takes = takes

    def run(self, program: Program, context: Context) -> None:
        for kernel in tuple(program.main):
            work = kernel.work
            if not isinstance(work, FusedAttention) or work.tail is not None or not self.takes(work):
                continue
            reader = _only_reader(program, kernel)
            tail = None if reader is None else _tail(program, kernel, reader)
            if reader is None or tail is None or not self.spend(context, "tail", kernel):
                continue
            names = tuple(dict.fromkeys((*kernel.sources, *reader.sources)))
            more = tuple(number for number in reader.slots[1:] if number != kernel.slots[0])
            slots = (reader.slots[0], *kernel.slots[1:], *more)
            made = Kernel(f"{kernel.name}_{reader.name}", dataclasses.replace(work, tail=tail), slots, 1, names)
            program.main[program.main.index(kernel)] = made
            program.main.remove(reader)


def _only_reader(program: Program, kernel: Kernel) -> Kernel | None:
    """The map that alone reads what an attention writes, if it could do so as early as that is there."""
    made = kernel.slots[0]
    readers = [each for each in program.main if made in each.slots and each is not kernel]
    aliased = any(made in roots for roots in program.holds.values())
    if len(readers) != 1 or program.buffers[made].kind != "temp" or made in program.outputs or aliased:
        return None
    (reader,) = readers
    start, end = program.main.index(kernel), program.main.index(reader)
    if end < start or reader.writes != 1 or is_in_the_way(program, reader, program.main[start + 1 : end]):
        return None
    return reader


def _tail(program: Program, kernel: Kernel, reader: Kernel) -> Expr | None:
    """What a map stores of each element, if that lies where the element would, and it reads nothing else but static
    vectors along the last axis."""
    work, nest = kernel.work, reader.work
    assert isinstance(work, FusedAttention)
    if not isinstance(nest, LoopNest) or nest.inner or len(nest.statements) != 1 or not nest.outer:
        return None
    (store,) = nest.statements
    everywhere = Linear(0, tuple(enumerate(contiguous(nest.outer))))
    whole = dims.product(nest.outer) == program.buffers[kernel.slots[0]].size
    if not isinstance(store, Store) or store.guard is not None or store.offset != everywhere or not whole:
        return None
    places = _vector_places(work, nest.outer[-1])
    others = [number for number in reader.slots[1:] if number != kernel.slots[0]]
    static, changed = program.static_buffers(), {}
    for node in ex.walk([store.body]):
        if node.kind in ("axis", "dim"):
            return None
        if node.kind != "load":
            continue
        number, line = reader.slots[node.attr.slot], offset_of(node)
        if number == kernel.slots[0] and line == everywhere and not node.attr.guarded:
            changed[node] = accumulated(node.dtype)
        elif places and number in static and line == Linear(0, ((len(nest.outer) - 1, 1),)) and not node.attr.guarded:
            changed[node] = load(len(kernel.slots) + others.index(number), places, node.dtype)
        else:
            return None
    return ex.rewrite(store.body, lambda node, _: changed.get(node)) if store.body.dtype in STORED else None


def _vector_places(work: FusedAttention, length: Dim) -> Linear | None:
    """Where in a vector along rows of so many results an element is, in axes of the work; None if rows are no such
    heads and features."""
    line = work.out[1]
    inside = tuple((n, c) for n, c in line.axes if dims.exact_div(c, length) is None)
    near = {1: work.value_features, 3: 1} if length != work.value_features else {3: 1}
    if not isinstance(length, int) or dict(inside) != near or line.others or line.const != 0:
        return None
    if 1 in near and dims.mul(work.heads, work.value_features) != length:
        return None
    return Linear(0, tuple((FusedAttention.TAIL_FEATURE if n == 3 else n, c) for n, c in inside))
