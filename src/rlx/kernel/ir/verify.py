"""The rules of programs, as code: `verify` raises CompileError that names the kernel which breaks one.

1. Slots of a kernel are buffers of the program; every slot that its work speaks of is bound.
2. A kernel writes through its first `writes` slots alone, and only to outputs, temporaries and aliases.
3. What is read was written before, or is there from the start: inputs, params, constants. `prepare` reads nothing of a
   run.
4. Elements that are read and written have their buffer's dtype.
5. Bodies speak of loop axes that there are, and of statements that came before.
6. Places at known sizes lie inside their buffers. (What data decide is checked by the graph, `passes.checks`.)
7. An alias lies in buffers of its dtype that are there, and the whole of it inside of them; or it is all of one of u8.
8. Every output is written.
9. Behind a kernel that writes into a state nobody reads what the state held before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlx.errors import CompileError
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.control import Branch, ByThreads, Loop, LoopGroup
from rlx.kernel.ir.index import Linear, offset_of
from rlx.kernel.ir.irregular import Scatter
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Store
from rlx.kernel.ir.program import Kernel, Program, storage_roots
from rlx.kernel.ir.work import Place, Work

WRITABLE = ("output", "temp", "alias")


def verify(program: Program, after: str = "lowering") -> None:
    """Checks every rule; `after` names the pass that made the program what it is. Raises CompileError."""
    Verifier(program, after).run()


class Verifier:
    """One walk over a program.

    ready    the buffers that hold something, by the memory that they lie in
    latest   the alias through which each state was written last
    """

    def __init__(self, program: Program, after: str) -> None:
        self.program = program
        self.after = after
        self.ready: set[int] = set()
        self.latest: dict[int, int] = {}

    def run(self) -> None:
        program = self.program
        self._aliases()
        self.ready = {*program.params, *program.constants}
        self._kernels(program.prepare)
        self.ready |= set(program.inputs)
        self._kernels(program.main)
        for number in program.outputs:
            buffer = program.buffers[number]
            if not self._holds(number) and buffer.size != 0:
                raise CompileError(f"[kernel/{self.after}] expected the output {buffer.name!r} to be written")

    def _fail(self, kernel: Kernel, what: str) -> CompileError:
        nodes = f", at node {', '.join(kernel.sources)}" if kernel.sources else ""
        return CompileError(f"[kernel/{self.after}] {what}, in kernel {kernel.name!r}{nodes}")

    def _holds(self, number: int) -> bool:
        """Whether all memory that a buffer may lie in holds something, or in a loop will."""
        return bool(storage_roots(self.program, number) & self.ready) or number in self.ready

    def _kernels(self, kernels: Iterable[Kernel]) -> None:
        for kernel in kernels:
            self._slots(kernel)
            if kernel.work.owns_kernels:
                self._owner(kernel)
            else:
                self._reads(kernel)
                for part in kernel.work.parts():
                    _Bodies(self, kernel, part).check()
            for number in kernel.slots[: kernel.writes]:
                roots = storage_roots(self.program, number)
                self.ready |= {number, *roots}
                self.latest |= {root: number for root in roots if self.program.buffers[root].kind == "state"}

    def _slots(self, kernel: Kernel) -> None:
        count = len(self.program.buffers)
        for number in kernel.slots:
            if not 0 <= number < count:
                raise self._fail(kernel, f"expected one of {count} buffers, got number {number}")
        for number in kernel.slots[: kernel.writes]:
            buffer = self.program.buffers[number]
            if buffer.kind not in WRITABLE:
                raise self._fail(kernel, f"expected to write an output or a temporary, got the {buffer.kind} {number}")

    def _reads(self, kernel: Kernel) -> None:
        work = kernel.work
        read = {place.slot for place in work.reads()} | {node.attr.slot for node in work.loads()}
        written = {place.slot for place in work.writes()}
        for slot in read | written:
            if not 0 <= slot < len(kernel.slots):
                raise self._fail(kernel, f"expected a slot below {len(kernel.slots)}, got {slot}")
        for slot in written:
            if slot >= kernel.writes:
                raise self._fail(kernel, f"expected to write {kernel.writes} slots, got a write to slot {slot}")
        if isinstance(work, Scatter):
            read.add(0)  # what no update replaces stays
        nests = [part for part in work.parts() if isinstance(part, LoopNest)]
        read |= {store.slot for nest in nests for store in nest.stores() if store.guard is not None}
        for slot in read:
            number = kernel.slots[slot]
            overwritten = self._states_of(number) & self.latest.keys()
            if any(self.latest[state] not in self._around(number) for state in overwritten) and slot >= kernel.writes:
                name = self.program.buffers[number].name
                raise self._fail(kernel, f"expected state {name!r} to be read before it is written over")
            if not self._holds(number) and self.program.buffers[number].size != 0:
                name = self.program.buffers[number].name
                raise self._fail(kernel, f"expected buffer {number} ({name!r}) to be written before it is read")

    def _states_of(self, number: int) -> set[int]:
        return {root for root in storage_roots(self.program, number) if self.program.buffers[root].kind == "state"}

    def _around(self, number: int) -> set[int]:
        """The buffer and all that it may lie in."""
        return {number}.union(*(self._around(inner) for inner in self.program.holds.get(number, ())))

    def _owner(self, kernel: Kernel) -> None:
        work = kernel.work
        if isinstance(work, Branch):
            self._must_hold(kernel, work.predicate)
            self._either(work.yes, work.no)
        elif isinstance(work, ByThreads):
            self._either(work.several, work.alone)
        elif isinstance(work, Loop):
            for value in work.carried:
                self._must_hold(kernel, value.start)
                self.ready |= {value.start, value.now, value.last, *value.ping_pong}
            for view in work.views:
                if view.base not in kernel.slots[: kernel.writes]:
                    self._must_hold(kernel, view.base)
            self._kernels(work.test)
            if work.condition is not None:
                self._must_hold(kernel, work.condition)
            self._kernels(work.body)
        elif isinstance(work, LoopGroup):
            self._kernels(work.loops)

    def _either(self, some: Iterable[Kernel], others: Iterable[Kernel]) -> None:
        """Kernels of which a run has the ones or the others: what both have written is there afterwards."""
        before = set(self.ready)
        self._kernels(some)
        after_some, self.ready = self.ready, before
        self._kernels(others)
        self.ready &= after_some

    def _must_hold(self, kernel: Kernel, number: int) -> None:
        if not self._holds(number):
            name = self.program.buffers[number].name
            raise self._fail(kernel, f"expected buffer {number} ({name!r}) to be written before it is read")

    def _is_view(self, number: int, base: int) -> bool:
        """Whether an alias and what it lies in have one dtype, or it is all bytes of that as words."""
        alias, held = self.program.buffers[number], self.program.buffers[base]
        whole = self.program.aliases.get(number) == (base, 0) and alias.nbytes == held.nbytes
        return alias.dtype is held.dtype or (held.dtype is dtypes.u8 and alias.dtype.kind == "uint" and whole)

    def _aliases(self) -> None:
        program = self.program
        for number, holders in program.holds.items():
            buffer = program.buffers[number]
            if buffer.kind != "alias":
                raise CompileError(f"[kernel/{self.after}] expected an alias, got the {buffer.kind} {number}")
            for base in holders:
                if not 0 <= base < len(program.buffers) or not self._is_view(number, base):
                    held = f"expected buffer {number} ({buffer.name!r}) to lie in one of {buffer.dtype}"
                    raise CompileError(f"[kernel/{self.after}] {held}, got buffer {base}")
        for number, (base, first) in program.aliases.items():
            part, whole = program.buffers[number].size, program.buffers[base].size
            if program.buffers[number].dtype is not program.buffers[base].dtype:
                continue
            known = isinstance(first, int) and isinstance(part, int) and isinstance(whole, int)
            if known and not 0 <= first <= whole - part:
                raise CompileError(
                    f"[kernel/{self.after}] expected buffer {number} to lie in buffer {base} of {whole} elements, "
                    f"got {part} elements from {first} on"
                )


class _Bodies:
    """The scalar side of one kernel, or of a part of it."""

    def __init__(self, verifier: Verifier, kernel: Kernel, work: Work) -> None:
        self.verifier = verifier
        self.kernel = kernel
        self.work = work
        self.buffers = [verifier.program.buffers[number] for number in kernel.slots]
        self.extents = work.extents()

    def check(self) -> None:
        work = self.work
        if isinstance(work, LoopNest):
            self._statements(work)
        for node in ex.walk(list(work.bodies())):
            if node.kind == "axis" and not 0 <= node.attr < len(self.extents):
                raise self._fail(f"expected an axis below {len(self.extents)}, got {node.attr}")
            if node.kind == "acc" and node.attr and not (isinstance(work, Contraction) and work.paired):
                raise self._fail("expected a second sum in the epilogue of a paired contraction, got one elsewhere")
        for place in (*work.reads(), *work.writes()):
            self._place(place)
        for node in work.loads():
            access = node.attr
            self._dtype(access.slot, node.dtype)
            if not access.guarded:
                self._bounds(access.slot, offset_of(node), self.extents)

    def _fail(self, what: str) -> CompileError:
        return self.verifier._fail(self.kernel, what)

    def _statements(self, nest: LoopNest) -> None:
        for position, statement in enumerate(nest.statements):
            earlier = nest.statements[:position]
            for node in ex.walk(statement.needs() if isinstance(statement, Store) else [statement.body]):
                if node.kind in ("row", "temp"):
                    self._earlier(node, earlier)

    def _earlier(self, node: Expr, earlier: Sequence[Reduce | RowBuffer | Store]) -> None:
        kind = Reduce if node.kind == "row" else RowBuffer
        if not 0 <= node.attr < len(earlier) or not isinstance(earlier[node.attr], kind):
            raise self._fail(f"expected statement {node.attr} to be an earlier {kind.__name__}")

    def _place(self, place: Place) -> None:
        self._dtype(place.slot, place.dtype)
        outside = [number for number, _ in place.offset.axes if place.extents and number >= len(place.extents)]
        if outside:
            raise self._fail(f"expected an axis below {len(place.extents)}, got {outside[0]}")
        if place.extents:
            self._bounds(place.slot, place.offset, place.extents)

    def _dtype(self, slot: int, dtype: DType | None) -> None:
        held = self.buffers[slot].dtype
        if dtype is not None and dtype is not held:
            raise self._fail(f"expected {held} in slot {slot} ({self.buffers[slot].name!r}), got {dtype}")

    def _bounds(self, slot: int, line: Linear, extents: Shape) -> None:
        """What is known of where an offset lies, against the buffer's size."""
        size = self.buffers[slot].size
        if line.others or not isinstance(size, int) or not isinstance(line.const, int):
            return
        least = most = line.const
        for number, coefficient in line.axes:
            extent: Dim = extents[number]
            if not isinstance(extent, int) or not isinstance(coefficient, int):
                return
            if extent <= 0:
                return  # no element is touched
            least += min(coefficient * (extent - 1), 0)
            most += max(coefficient * (extent - 1), 0)
        if any(extent == 0 for extent in extents):
            return
        if least < 0 or most >= size:
            raise self._fail(f"expected offsets within {size} elements of slot {slot}, got {least} to {most}")
