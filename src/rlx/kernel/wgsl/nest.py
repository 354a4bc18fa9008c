"""Loop nests as compute shaders: an invocation takes one outer position and walks its row alone.

That is the plainest form, right on every device; rows are walked once for each group of stages that do not need one
another's results, and what a `Temp` stage would keep is computed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.expr import Expr
from rlx.kernel.nest import Nest, Reduce, Stage, Store, Temp
from rlx.kernel.wgsl.body import Body, constant, legal
from rlx.kernel.wgsl.code import Binding, Check, Code, Record, Shader, Slot
from rlx.kernel.wgsl.ranges import Ranges
from rlx.kernel.wgsl.registers import Reg
from rlx.kernel.wgsl.shader import assemble
from rlx.kernel.wgsl.types import is_wide, register_type
from rlx.ops.reduce import identity

BLOCK = 64
"""Terms of a float sum that are added up on their own: one long chain would lose digits."""


def render(nest: Nest, slots: Sequence[Slot], bindings: Sequence[Binding], name: str) -> Shader:
    """The shader of a nest. Slot i of the nest is `slots[i]`, in one of the storage `bindings`."""
    stages = legal_stages(nest.stages)
    record = Record(len(slots))
    positions = frozenset(i for i, s in enumerate(stages) if isinstance(s, Reduce) and s.argument)
    body = Body(Code(), record, slots, Ranges(positions))
    place(body, nest.outer)
    _Rows(body, nest, stages).write()
    extents = (*nest.outer, *nest.inner)
    text = assemble(body.code, record, bindings, name)
    checks = (Check(tuple(body.indices), extents),) if body.indices else ()
    return Shader(text, tuple(bindings), len(slots), record.numbers, dims.product(nest.outer), checks)


def legal_stages(stages: Sequence[Stage]) -> list[Stage]:
    """Stages with bodies that WGSL can say, temps put into the bodies that use them."""
    made: list[Stage] = []
    temps: dict[int, Expr] = {}

    def inlined(node: Expr, _: tuple[Expr, ...]) -> Expr | None:
        return temps[node.attr] if node.kind == "temp" else None

    for number, stage in enumerate(stages):
        body = ex.rewrite(legal(stage.body), inlined)
        if isinstance(stage, Temp):
            temps[number] = body
        made.append(dataclasses.replace(stage, body=body))
    return made


def place(body: Body, extents: Shape) -> None:
    """Leaves if the invocation has no position; else names its position along every axis, the last one fastest."""
    code = body.code
    code.emit(f"if (position >= {body.record.dim(dims.product(extents))}) {{ return; }}")
    rest = "position"
    for number in reversed(range(len(extents))):
        if number == 0:
            body.axes[number] = rest
        else:
            extent = body.record.dim(extents[number])
            body.axes[number] = code.let(f"{rest} % {extent}", "i")
            rest = code.let(f"{rest} / {extent}", "rest")


class _Rows:
    """The stages of one outer position."""

    def __init__(self, body: Body, nest: Nest, stages: Sequence[Stage]) -> None:
        self.body = body
        self.code = body.code
        self.nest = nest
        self.stages = stages
        self.inner = list(range(len(nest.outer), len(nest.outer) + len(nest.inner)))

    def write(self) -> None:
        for group in _passes(self.stages):
            first = self.stages[group[0]]
            if isinstance(first, Store) and not first.whole_row:
                self.body.store(first.slot, first.offset, self.body.gen(first.body))
            elif isinstance(first, Reduce) and first.argument:
                self._argument(group[0], first)
            else:
                self._walk(group)

    def _varies(self, node: Expr) -> bool:
        if node.kind == "axis":
            return node.attr in self.inner
        return node.kind == "load" and any(n in self.inner for n, _ in node.attr.axes)

    def _walk(self, group: Sequence[int]) -> None:
        """One pass over the row for these stages."""
        reduces = {n: s for n in group if isinstance(s := self.stages[n], Reduce)}
        self.body.hoist([self.stages[n].body for n in group], self._varies)
        totals = {n: self._variable(s, "total") for n, s in reduces.items()}
        sums = [n for n, s in reduces.items() if s.combine == "add" and s.dtype.is_float]
        last = self.nest.inner[-1] if self.nest.inner else 1
        in_blocks = bool(sums) and not (isinstance(last, int) and last <= BLOCK)
        with ExitStack() as loops:
            for axis in self.inner[:-1]:
                loops.enter_context(self._loop(axis, "0i", self.body.record.dim(self._extent(axis))))
            if in_blocks:
                self._blocks(group, reduces, totals, sums)
            elif self.inner:
                with self._loop(self.inner[-1], "0i", self.body.record.dim(last)):
                    self._visit(group, totals)
            else:
                self._visit(group, totals)
        self.body.rows.update(totals)

    def _extent(self, axis: int) -> Dim:
        return self.nest.inner[axis - len(self.nest.outer)]

    @contextmanager
    def _loop(self, axis: int, low: str, high: str) -> Iterator[None]:
        name = self.code.fresh("k")
        self.body.axes[axis] = name
        with self.body.scope(f"for (var {name} = {low}; {name} < {high}; {name} = {name} + 1i)"):
            yield

    def _blocks(
        self, group: Sequence[int], reduces: dict[int, Reduce], totals: dict[int, Reg], sums: Sequence[int]
    ) -> None:
        """The innermost loop in blocks, whose float sums are added to the totals."""
        axis = self.inner[-1]
        extent = self.body.record.dim(self._extent(axis))
        start = self.code.fresh("k")
        with self.body.scope(f"for (var {start} = 0i; {start} < {extent}; {start} = {start} + {BLOCK}i)"):
            parts = {n: self._variable(reduces[n], "part") for n in sums}
            with self._loop(axis, start, f"min({start} + {BLOCK}i, {extent})"):
                self._visit(group, {**totals, **parts})
            for number, part in parts.items():
                self._join(totals[number], reduces[number].combine, part)

    def _visit(self, group: Sequence[int], totals: dict[int, Reg]) -> None:
        """The stages of a pass at one place of the row."""
        values = [(n, self.body.gen(self.stages[n].body)) for n in group]
        for number, value in values:
            match self.stages[number]:
                case Reduce() as stage:
                    self._join(totals[number], stage.combine, value)
                case Store() as stage:
                    self.body.store(stage.slot, stage.offset, value)

    def _variable(self, stage: Reduce, stem: str) -> Reg:
        """A variable that holds the identity of a reduction."""
        wide = is_wide(stage.dtype)
        first = constant(ex.const(identity(stage.combine, stage.dtype.numpy), stage.dtype))
        reg = Reg(self.code.fresh(stem), stage.dtype, wide)
        value = first.widened().name if wide else first.name
        self.code.emit(f"var {reg.name}: {register_type(stage.dtype, wide)} = {value};")
        return reg

    def _join(self, total: Reg, combine: str, value: Reg) -> None:
        self.code.emit(f"{total.name} = {self.body.apply(combine, total, value).name};")

    def _argument(self, number: int, stage: Reduce) -> None:
        """Position of an extremum: a NaN beats all, then the first or the last of equals wins."""
        body, code, axis = self.body, self.code, self.inner[0]
        body.hoist([stage.body], self._varies)
        dtype = stage.body.dtype
        wide = is_wide(dtype)
        best = Reg(code.fresh("best"), dtype, wide)
        found = Reg(code.fresh("found"), dtypes.i64, False)
        code.emit(f"var {best.name}: {register_type(dtype, wide)};")
        code.emit(f"var {found.name} = 0i;")
        new, old = Expr("register", dtype, (), "new"), Expr("register", dtype, (), "best")
        first = Expr("register", dtypes.bool_, (), "first")
        with self._loop(axis, "0i", body.record.dim(self.nest.inner[0])):
            value = body.gen(stage.body)
            value = value.widened() if wide else value
            value = value.like(code.let(value.name))
            body.remember(new, value)
            body.remember(old, best)
            body.remember(first, Reg(code.let(f"{body.axes[axis]} == 0i"), dtypes.bool_, False))
            with body.scope(f"if ({body.gen(_better(stage, new, old, first)).name})"):
                code.emit(f"{best.name} = {value.name};")
                code.emit(f"{found.name} = {body.axes[axis]};")
        body.rows[number] = found


def _passes(stages: Sequence[Stage]) -> list[list[int]]:
    """Numbers of the stages that share a walk over the row: those that do not need results of the same walk."""
    groups: list[list[int]] = []
    open_group: list[int] = []

    def close() -> None:
        if open_group:
            groups.append(open_group.copy())
            open_group.clear()

    for number, stage in enumerate(stages):
        if isinstance(stage, Temp):
            continue
        used = {n.attr for n in ex.walk([stage.body]) if n.kind == "row"}
        alone = (isinstance(stage, Store) and not stage.whole_row) or (isinstance(stage, Reduce) and stage.argument)
        if alone or used & set(open_group):
            close()
        open_group.append(number)
        if alone:
            close()
    close()
    return groups


def _better(stage: Reduce, new: Expr, best: Expr, first: Expr) -> Expr:
    """Whether `new` replaces `best` in an argmax or argmin."""
    left, right = (best, new) if stage.combine == "max" else (new, best)
    wins = ex.apply("le" if stage.last else "lt", left, right)
    if new.dtype.is_float:
        new_nan, best_nan = ex.apply("ne", new, new), ex.apply("ne", best, best)
        nan_wins = new_nan if stage.last else ex.apply("and", new_nan, ex.apply("not", best_nan))
        wins = ex.apply("or", ex.apply("and", wins, ex.apply("not", best_nan)), nan_wins)
    return ex.apply("or", wins, first)
