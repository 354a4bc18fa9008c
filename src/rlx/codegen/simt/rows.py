"""What happens at one outer position of a nest: passes over its row, by one invocation or by a workgroup's lanes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rlx.codegen.simt.body import Body
from rlx.codegen.simt.code import WORKGROUP, Code
from rlx.codegen.simt.language.wgsl.types import is_wide
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.shared import Shared, halves
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Statement, Store, is_once_a_row, row_passes
from rlx.kernel.schedule.schedule import Schedule
from rlx.ops.reduce import identity

BLOCK = 64
"""Terms of a float sum that are added up on their own, unless a schedule set by hand says otherwise; one long chain
would lose digits."""

LIBRARY_LOOP = 280
"""Iterations of the loops in the library's functions, at most (`float_rem` takes one for each power of two)."""


class Rows(ABC):
    """The stages of one outer position.

    iterations   how many times an invocation goes through loops, at most
    """

    def __init__(self, body: Body, nest: LoopNest, stages: Sequence[Statement]) -> None:
        self.body = body
        self.code = body.code
        self.language = body.language
        self.nest = nest
        self.statements = stages
        self.inner = list(range(len(nest.outer), len(nest.outer) + len(nest.inner)))
        self.length: Dim = dims.product(nest.inner)
        self.iterations: Dim = 0
        self._iterations_a_place = iterations_of([e for s in stages for e in needs(s)])

    @abstractmethod
    def write(self) -> None:
        """Writes all passes."""

    @abstractmethod
    def walk(self, group: Sequence[int], totals: dict[int, Reg]) -> None:
        """Loops over the row; `visit` at every place of it."""

    def passes(self) -> Iterator[Sequence[int]]:
        """Groups of stages, each hoisted out of the loop that is to follow."""
        walked = {n: s for n, s in enumerate(self.statements) if not isinstance(s, RowBuffer)}
        for group in row_passes(walked):
            self.body.hoist([e for n in group for e in needs(self.statements[n])], self._varies)
            yield group

    def count(self, places: Dim) -> None:
        """Notes that a loop over so many places was written; each also takes its last test, at every level."""
        once = dims.add(dims.mul(places, 2 + self._iterations_a_place), 4)
        self.iterations = dims.add(self.iterations, once)

    def _varies(self, node: Expr) -> bool:
        if node.kind == "axis":
            return node.attr in self.inner
        return node.kind == "load" and any(n in self.inner for n, _ in node.attr.axes)

    def reduces(self, group: Sequence[int]) -> dict[int, Reduce]:
        return {n: s for n in group if isinstance(s := self.statements[n], Reduce)}

    def visit(self, group: Sequence[int], totals: dict[int, Reg]) -> None:
        """The stages of a pass at one place of the row."""
        stages = [(n, self.statements[n]) for n in group]
        guarded = [s for _, s in stages if isinstance(s, Store) and s.guard is not None]
        values = [(n, s, self.body.gen(s.body)) for n, s in stages if s not in guarded]
        for number, stage, value in values:
            match stage:
                case Reduce():
                    self.join(totals[number], stage.combine, value)
                case Store():
                    self.body.store(stage.slot, stage.offset, value)
        for store in guarded:
            self.put(store)

    def put(self, store: Store) -> None:
        """Makes and stores what a statement stores, where its guard holds."""
        with ExitStack() as scopes:
            if store.guard is not None:
                scopes.enter_context(self.body.scope(f"if ({self.body.gen(store.guard).name})"))
            self.body.store(store.slot, store.offset, self.body.gen(store.body))

    def variable(self, stage: Reduce, stem: str) -> Reg:
        """A variable that holds the identity of a reduction."""
        return identity_variable(self.code, stage.combine, stage.dtype, stem)

    def join(self, total: Reg, combine: str, value: Reg) -> None:
        self.code.emit(f"{total.name} = {self.body.apply(combine, total, value).name};")

    @contextmanager
    def loop(self, axis: int, low: str, high: str) -> Iterator[None]:
        name = self.code.fresh("k")
        self.body.axes[axis] = name
        with self.body.scope(self.language.loop(name, low, high)):
            yield

    def consider(self, stage: Reduce, best: Reg, place: Reg) -> None:
        """Takes the element at the current position if it beats the best one so far."""
        body, code, axis = self.body, self.code, self.inner[0]
        value = body.gen(stage.body)
        value = value.widened() if best.wide else value
        value = value.like(code.let(value.name))
        first = Reg(code.let(f"{place.name} < {self.language.index(0)}"), dtypes.bool_, False)
        better = self.body.through(
            lambda new, old, none: ex.apply("or", _better(stage, new, old), none), value, best, first
        )
        with body.scope(f"if ({better.name})"):
            code.emit(f"{best.name} = {value.name};")
            code.emit(f"{place.name} = {body.axes[axis]};")

    def best_variables(self, stage: Reduce) -> tuple[Reg, Reg]:
        """Variables for the best element so far, and for its position: -1 before there is one."""
        dtype = stage.body.dtype
        best = Reg(self.code.fresh("best"), dtype, self.language.is_wide(dtype))
        place = Reg(self.code.fresh("found"), dtypes.i64, False)
        self.code.emit(self.language.variable(best.name, self.language.register_type(dtype, best.wide)))
        self.code.emit(self.language.mutable(place.name, self.language.index(-1)))
        return best, place


class AloneRows(Rows):
    """One invocation walks the row."""

    def __init__(self, body: Body, nest: LoopNest, stages: Sequence[Statement], schedule: Schedule) -> None:
        super().__init__(body, nest, stages)
        self.terms = schedule.static_tile("register", "terms") if nest.inner else 1

    def write(self) -> None:
        for group in self.passes():
            first = self.statements[group[0]]
            if isinstance(first, Store) and is_once_a_row(first):
                self.put(first)
            elif isinstance(first, Reduce) and first.argument:
                best, place = self.best_variables(first)
                with self.loop(self.inner[0], self.language.index(0), self.body.record.dim(self.nest.inner[0])):
                    self.consider(first, best, place)
                self.count(self.length)
                self.body.rows[group[0]] = place
            else:
                totals = {n: self.variable(s, "total") for n, s in self.reduces(group).items()}
                self.walk(group, totals)
                self.count(self.length)
                self.body.rows.update(totals)

    def walk(self, group: Sequence[int], totals: dict[int, Reg]) -> None:
        sums = {n: s for n, s in self.reduces(group).items() if s.combine == "add" and s.dtype.is_float}
        last = self.nest.inner[-1] if self.nest.inner else 1
        with ExitStack() as loops:
            for axis, extent in zip(self.inner[:-1], self.nest.inner):
                loops.enter_context(self.loop(axis, self.language.index(0), self.body.record.dim(extent)))
            if sums and not (isinstance(last, int) and last <= self.terms):
                self._blocks(group, totals, sums)
            elif self.inner:
                with self.loop(self.inner[-1], self.language.index(0), self.body.record.dim(last)):
                    self.visit(group, totals)
            else:
                self.visit(group, totals)

    def _blocks(self, group: Sequence[int], totals: dict[int, Reg], sums: dict[int, Reduce]) -> None:
        """The innermost loop in blocks, whose float sums are added to the totals."""
        extent = self.body.record.dim(self.nest.inner[-1])
        start = self.code.fresh("k")
        with self.body.scope(self.language.loop(start, self.language.index(0), extent, self.terms)):
            parts = {n: self.variable(stage, "part") for n, stage in sums.items()}
            with self.loop(self.inner[-1], start, f"min({start} + {self.language.index(self.terms)}, {extent})"):
                self.visit(group, {**totals, **parts})
            for number, part in parts.items():
                self.join(totals[number], sums[number].combine, part)


MOST_UNROLLED, UNROLLED = 16, 8
"""Steps along a row up to which all are written out, and how many of more are."""


class TeamRows(Rows):
    """The lanes of a workgroup walk the row together, each every WORKGROUPth place, and join their results."""

    def __init__(self, body: Body, nest: LoopNest, stages: Sequence[Statement]) -> None:
        super().__init__(body, nest, stages)
        self.shared = Shared(self.code)

    def write(self) -> None:
        for group in self.passes():
            first = self.statements[group[0]]
            if isinstance(first, Store) and is_once_a_row(first):
                with self.body.scope("if (lane == 0u)"):
                    self.put(first)
            elif isinstance(first, Reduce) and first.argument:
                self._argument(group[0], first)
            else:
                reduces = self.reduces(group)
                totals = {n: self.variable(s, "total") for n, s in reduces.items()}
                self.walk(group, totals)
                for number, stage in reduces.items():
                    self.body.rows[number] = self._joined(stage, totals[number])

    @contextmanager
    def _share(self) -> Iterator[None]:
        """A loop over this lane's places of the row."""
        self.count(dims.floordiv(dims.add(self.length, WORKGROUP - 1), WORKGROUP))
        flat = self.code.fresh("k")
        with self._places(flat):
            rest = flat
            for axis, extent in reversed(list(zip(self.inner, self.nest.inner))):
                if axis == self.inner[0]:
                    self.body.axes[axis] = rest
                else:
                    name = self.body.record.divisor(extent)
                    self.body.axes[axis] = self.code.let(f"{rest} % {name}", "index")
                    rest = self.code.let(f"{rest} / {name}", "rest")
            yield

    @contextmanager
    def _places(self, flat: str) -> Iterator[None]:
        """The loop itself. Where all lanes have equally many places, their number is known, and steps are written out:
        all loads of a lane are then under way at once."""
        length, lane = self.length, self.language.lane_index()
        steps = length // WORKGROUP if isinstance(length, int) and length % WORKGROUP == 0 else 0
        if not steps or not self.language.unrolls:
            with self.body.scope(self.language.loop(flat, lane, self.body.record.dim(length), WORKGROUP)):
                yield
            return
        self.language.unroll(self.code, steps if steps <= MOST_UNROLLED else UNROLLED)
        step = self.code.fresh("step")
        with self.body.scope(self.language.loop(step, self.language.index(0), self.language.index(steps))):
            self.code.emit(self.language.let(flat, f"{lane} + {step} * {self.language.index(WORKGROUP)}"))
            yield

    def walk(self, group: Sequence[int], totals: dict[int, Reg]) -> None:
        with self._share():
            self.visit(group, totals)

    def _joined(self, stage: Reduce, total: Reg) -> Reg:
        """The lanes' results joined: those of subgroups, then of these; or half of the lanes with the other half until
        one is left."""
        shared = self.shared.array(total.dtype, total.wide)
        if self.code.subgroups:
            return self._joined_of_subgroups(stage, total, shared)
        self.shared.put(shared, total)
        self.shared.barrier()
        for half in halves(WORKGROUP):
            with self.body.scope(f"if (lane < {half}u)"):
                mine, other = (self.shared.get(shared, at, total) for at in ("lane", f"lane + {half}u"))
                self.shared.put(shared, self.body.apply(stage.combine, mine, other))
            self.shared.barrier()
        result = self.shared.get(shared, "0", total)
        self.shared.barrier()
        return result

    def _joined_of_subgroups(self, stage: Reduce, total: Reg, shared: str) -> Reg:
        code = self.code
        own = self.shared.among_neighbours(total, lambda a, b: self.body.apply(stage.combine, a, b))
        self.shared.put(shared, own)
        self.shared.barrier()
        result = total.like(code.fresh("joined"))
        kind = code.language.register_type(total.dtype, total.wide)
        code.emit(code.language.variable(result.name, kind, self.shared.get(shared, "0", total).name))
        with self.shared.other_subgroups() as first:
            both = self.body.apply(stage.combine, result, self.shared.get(shared, first, total))
            code.emit(f"{result.name} = {both.name};")
        self.shared.barrier()
        return result

    def _argument(self, number: int, stage: Reduce) -> None:
        """Each lane's best element, then the best of these."""
        code = self.code
        best, place = self.best_variables(stage)
        with self._share():
            self.consider(stage, best, place)
        values, places = self.shared.array(best.dtype, best.wide), self.language.shared_places(code)
        self.shared.put(values, best)
        code.emit(f"{places}[lane] = {place.name};")
        self.shared.barrier()
        for half in halves(WORKGROUP):
            with self.body.scope(f"if (lane < {half}u)"):
                self._better_lane(stage, values, places, best, half)
            self.shared.barrier()
        self.body.rows[number] = place.like(code.let(f"{places}[0]"))
        self.shared.barrier()

    def _better_lane(self, stage: Reduce, values: str, places: str, like: Reg, half: int) -> None:
        """Takes over what another lane found if it is better, or as good and in a better place."""
        code = self.code
        mine, other = (self.shared.get(values, at, like) for at in ("lane", f"lane + {half}u"))
        here, there = (code.let(f"{places}[{at}]") for at in ("lane", f"lane + {half}u"))
        nearer = Reg(code.let(f"{there} {'>' if stage.last else '<'} {here}"), dtypes.bool_, False)
        wins = self.body.through(lambda new, old, near: _beats(stage, new, old, near), other, mine, nearer)
        with self.body.scope(
            f"if ({there} >= {self.language.index(0)} && ({here} < {self.language.index(0)} || {wins.name}))"
        ):
            self.shared.put(values, other)
            code.emit(f"{places}[lane] = {there};")


def needs(statement: Statement) -> tuple[Expr, ...]:
    """The expressions that a statement evaluates."""
    return statement.needs() if isinstance(statement, Store) else (statement.body,)


def identity_variable(code: Code, combine: str, dtype: DType, stem: str) -> Reg:
    """A variable that holds what an instruction joins first."""
    language = code.language
    wide = language.is_wide(dtype)
    first = language.constant(ex.const(identity(combine, dtype.numpy), dtype))
    reg = Reg(code.fresh(stem), dtype, wide)
    value = first.widened().name if wide else first.name
    code.emit(language.variable(reg.name, language.register_type(dtype, wide), value))
    return reg


def iterations_of(bodies: Sequence[Expr]) -> int:
    """Iterations of a loop that makes these once, with what library functions in them take, at most."""
    return 1 + sum(LIBRARY_LOOP for n in ex.walk(bodies) if _has_loop(n))


def _has_loop(node: Expr) -> bool:
    """Whether an instruction may become a library function with a loop in it."""
    if node.kind not in ("div", "rem"):
        return False
    return is_wide(node.dtype) or (node.kind == "rem" and node.dtype.is_float)


def _better(stage: Reduce, new: Expr, old: Expr) -> Expr:
    """Whether `new`, which comes later, replaces `old` in an argmax or argmin: a NaN beats all numbers."""
    left, right = (old, new) if stage.combine == "max" else (new, old)
    wins = ex.apply("le" if stage.last else "lt", left, right)
    if not new.dtype.is_float:
        return wins
    new_nan, old_nan = ex.apply("ne", new, new), ex.apply("ne", old, old)
    nan_wins = new_nan if stage.last else ex.apply("and", new_nan, ex.apply("not", old_nan))
    return ex.apply("or", ex.apply("and", wins, ex.apply("not", old_nan)), nan_wins)


def _beats(stage: Reduce, new: Expr, old: Expr, nearer: Expr) -> Expr:
    """Whether `new` beats `old` whichever comes first; of equals the one that is nearer to the end asked for wins."""
    left, right = (old, new) if stage.combine == "max" else (new, old)
    wins, same = ex.apply("lt", left, right), ex.apply("eq", new, old)
    if new.dtype.is_float:
        new_nan, old_nan = ex.apply("ne", new, new), ex.apply("ne", old, old)
        wins = ex.apply(
            "or", ex.apply("and", wins, ex.apply("not", old_nan)), ex.apply("and", new_nan, ex.apply("not", old_nan))
        )
        same = ex.apply("or", same, ex.apply("and", new_nan, old_nan))
    return ex.apply("or", wins, ex.apply("and", same, nearer))
