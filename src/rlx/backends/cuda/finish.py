"""What follows a product that a library makes, in the memory of its result: activations, which the library has not, or
not exactly. A map of our own, that reads each element and puts another in its place; or two, and puts one elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cuda.build import Plan
from rlx.backends.cuda.device import Device, Function
from rlx.backends.cuda.launches import Launch, launches
from rlx.backends.cuda.moving import Sizes
from rlx.backends.cuda.plain import compiled
from rlx.backends.simt_unroll import Unroller
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.axes import collapse
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, load
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.slots import nest_on_slots

ALIGNMENT = 16
"""Of where buffers begin, as kernels in pieces want them."""


@dataclass(frozen=True)
class Finish:
    """A map over results: its nest, whose slot 0 has them, the contraction's slot of each of its own, and dtypes."""

    nest: LoopNest
    slots: tuple[int, ...]
    dtypes: tuple[DType, ...]


def of_product(work: Contraction, rest: Expr, kept: DType, dtypes: Sequence[DType]) -> Finish:
    """What makes of a product's results, of dtype `kept`, what its contraction stores.

    rest     the stored value, with what the library makes in the place of the contraction's sum
    dtypes   of the contraction's slots, and behind them that of [m, columns] results of pairs, if it has such
    """
    (store,) = work.epilogue
    made = [load(store.slot, store.offset, kept)]
    if work.paired:
        rows = ((work.m_axis, work.columns), (work.n_axis, 1))
        made = [load(len(dtypes) - 1, Linear(first, rows), kept) for first in (0, work.n)]

    def rule(node: Expr, _: tuple[Expr, ...]) -> Expr | None:
        return ex.cast(made[1 if node.attr else 0], node.dtype) if node.kind == "acc" else None

    body = ex.rewrite(rest, rule)
    extents = (*work.batch, work.m, work.n)
    nest = collapse(LoopNest(extents, (), (Store(store.slot, store.offset, body, False),)))
    read = {node.attr.slot for node in ex.walk([body]) if node.kind == "load"}
    slots = (store.slot, *sorted(read - {store.slot}))
    return Finish(nest_on_slots(nest, tuple(range(len(dtypes))), slots), slots, tuple(dtypes[slot] for slot in slots))


def program_of(finish: Finish) -> Program:
    """The map alone."""
    program = Program(())
    kinds = ["output", *["input"] * (len(finish.slots) - 1)]
    buffers = [program.new_buffer(kind, dtype, 0, "operand") for kind, dtype in zip(kinds, finish.dtypes)]
    program.outputs, program.inputs = [buffers[0].number], [buffer.number for buffer in buffers[1:]]
    program.main = [Kernel("finish", finish.nest, tuple(buffer.number for buffer in buffers), 1)]
    return program


class Finisher:
    """Launches of such maps on a device, whose kernels are compiled once for all sizes."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._ready: dict[Finish, tuple[Plan, dict[str, Function]]] = {}

    def launch(self, finish: Finish, starts: Sequence[int], sizes: Sizes, cache: bool) -> Launch | None:
        """A launch on buffers that begin there; None where one begins at no multiple of 16 bytes. Call it within
        `Device.work`. Raises CompileError.

        starts   by the contraction's slots
        cache    whether the kernel's code is kept on disk
        """
        own = [starts[slot] for slot in finish.slots]
        if any(start % ALIGNMENT for start in own):
            return None
        if finish not in self._ready:
            self._ready[finish] = compiled(self.device, program_of(finish), cache)
        plan, functions = self._ready[finish]
        program = plan.program
        places = dict(zip((*program.outputs, *program.inputs), own))
        unroller = Unroller(program, places, sizes.binding, lambda dtype: dtype.itemsize)
        (made,) = launches(plan, functions, unroller.go(program.main), sizes)
        assert isinstance(made, Launch)
        return made
