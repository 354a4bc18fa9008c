"""Lowering: a graph of primitives (and of composites that the target claims) becomes a `Program` of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.expr import INSTRUCTIONS, Expr
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Constant, Elementwise, Input, Param
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.axes import accesses, bare_axes, joinable, renumber_linear, renumber_statement
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, accumulated, axis, linear, offset_of, row, temp
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Statement, Store
from rlx.kernel.ir.program import Buffer, Kernel, Program
from rlx.kernel.ir.work import Work
from rlx.kernel.lower import windows
from rlx.kernel.lower.fuse import Fusion, Group
from rlx.kernel.lower.index import ZERO, Emitter, Index, Key, is_scalar_constant, key_of
from rlx.kernel.lower.irregular import lower_special
from rlx.kernel.lower.views import view_of
from rlx.ops.convolution import Conv, ReduceWindow
from rlx.ops.linalg import DotGeneral
from rlx.ops.reduce import Argmax, Argmin, Reduction
from rlx.ops.shape import Concat
from rlx.ops.transformer import Attention

MANY_PARTS = 16
"""Operands of a concatenation that are worth buffers of their own, so that those alike share one function."""


class Lowering:
    """One graph on its way to one program."""

    def __init__(
        self, graph: Graph, disable: frozenset[str] = frozenset(), fixed: Sequence[Value] = (), chosen: bool = False
    ) -> None:
        self.graph = graph
        self.fusion = Fusion(graph, disable, fixed, chosen)
        self.program = Program(tuple(graph.symbols))
        self.buffers: dict[Key, Buffer] = {}
        self.static: set[int] = set()  # buffers that params and constants alone decide
        self._slots: dict[int, int] = {}

    def run(self) -> Program:
        """Lowers everything. Raises UnsupportedOp."""
        self._make_leaves()
        for group in self.fusion.groups:
            self._lower_group(group)
        for value in self.graph.outputs.values():
            self._output(value)
        return self.program

    # buffers

    def _make_leaves(self) -> None:
        program = self.program
        for value in (*self.graph.inputs, *self.graph.params):
            kind = "input" if isinstance(value.node.op, Input) else "param"
            buffer = program.new_buffer(kind, value.dtype, value.type.size, value.name)
            self.buffers[key_of(value)] = buffer
            (program.inputs if kind == "input" else program.params).append(buffer.number)
            if kind == "param":
                self.static.add(buffer.number)
        self._make_constants()

    def _make_constants(self) -> None:
        program = self.program
        for node in self.fusion.nodes:
            if isinstance(node.op, Constant) and not is_scalar_constant(node.outputs[0]):
                value = node.outputs[0]
                buffer = program.new_buffer("constant", value.dtype, value.type.size, value.name)
                program.constants[buffer.number] = node.op.value.array
                self.buffers[key_of(value)] = buffer
                self.static.add(buffer.number)

    def _result_buffer(self, value: Value) -> Buffer:
        buffer = self.program.new_buffer("temp", value.dtype, value.type.size, value.name)
        self.buffers[key_of(value)] = buffer
        return buffer

    def _output(self, value: Value) -> None:
        """Hands a value out: its own buffer where it is a fresh one, else a copy."""
        found = self.buffers.get(key_of(value))
        if found is not None and found.kind == "temp" and found.number not in self.static:
            made = Buffer(found.number, "output", found.dtype, found.size, found.name)
            self.program.buffers[found.number] = made
            self.buffers[key_of(value)] = made
            self.program.outputs.append(found.number)
            return
        target = self.program.new_buffer("output", value.dtype, value.type.size, value.name)
        kernel = self._new_kernel([target])
        index = tuple(axis(i) for i in range(value.rank))
        store = Store(0, self._contiguous(value, index), self._emitter().emit(value, index), False)
        self._add(kernel, "copy", LoopNest(value.shape, (), (store,)), (value.node,))
        self.program.outputs.append(target.number)

    # kernels

    def _new_kernel(self, writes: list[Buffer]) -> list[Buffer]:
        self._slots = {}
        for buffer in writes:
            self._slot(buffer)
        return writes

    def _slot(self, buffer: Buffer) -> int:
        return self._slots.setdefault(buffer.number, len(self._slots))

    def _emitter(self) -> Emitter:
        return Emitter(self._strides_of, lambda v: self._slot(self.buffers[key_of(v)]))

    def _strides_of(self, value: Value) -> tuple[Dim, ...] | None:
        return self.fusion.strides(value) if key_of(value) in self.buffers else None

    def _add(self, writes: list[Buffer], name: str, work: Work, nodes: tuple[Node, ...]) -> None:
        self._place([self._kernel(writes, name, work, nodes)], writes)

    def _kernel(self, writes: list[Buffer], name: str, work: Work, nodes: tuple[Node, ...]) -> Kernel:
        return Kernel(name, work, tuple(self._slots), len(writes), tuple(n.source or n.name for n in nodes))

    def _place(self, kernels: list[Kernel], writes: list[Buffer]) -> None:
        """Kernels that write the same buffers go into `prepare` if params and constants alone decide all of them."""
        reads = [number for kernel in kernels for number in kernel.slots[kernel.writes :]]
        is_static = bool(reads) and all(number in self.static for number in reads)
        if (
            is_static
            and not any(k.work.depends_on_run() for k in kernels)
            and not any(b.kind == "output" for b in writes)
        ):
            self.static.update(b.number for b in writes)
            self.program.prepare.extend(kernels)
        else:
            self.program.main.extend(kernels)

    def _contiguous(self, value: Value, index: Index) -> Linear:
        offset = Linear()
        for part, stride in zip(index, self.fusion.strides(value)):
            offset = offset.plus(linear(part).times(stride))
        return offset

    def _lower_group(self, group: Group) -> None:
        lower: dict[str, Callable[[Group], None]] = {
            "map": self._lower_map,
            "row": self._lower_row,
            "argument": self._lower_argument,
            "concat": self._lower_concat,
            "contraction": self._lower_contraction,
            "convolution": self._lower_window,
            "window": self._lower_window,
            "attention": self._lower_attention,
            "control": self._lower_control,
            "special": partial(lower_special, self),
        }
        lower[group.kind](group)

    def _lower_map(self, group: Group) -> None:
        value = group.results[0]
        writes = self._new_kernel([self._result_buffer(value)])
        index = tuple(axis(i) for i in range(value.rank))
        emitter = Emitter(lambda v: None if v.node is value.node else self._strides_of(v), self._emitter().slot_of)
        store = Store(0, self._contiguous(value, index), emitter.emit(value, index), False)
        self._add(writes, group.lead.op.name, LoopNest(value.shape, (), (store,)), (group.lead,))

    def _lower_concat(self, group: Group) -> None:
        """One kernel an operand: each writes its part of the result."""
        value = group.results[0]
        op, operands = group.lead.op, group.lead.inputs
        assert isinstance(op, Concat)
        at = op.axis % value.rank
        buffer = self._result_buffer(value)
        start: Dim = 0
        step = self.fusion.strides(value)[at]
        alike = len(operands) >= MANY_PARTS and len({v.shape for v in operands}) == 1
        apart = alike and not all(id(v.node) in self.fusion.static for v in operands)
        kernels = []
        for operand in operands:
            place = dims.mul(start, step)
            target = self._part(buffer, place) if apart else buffer
            self._new_kernel([target])
            index = tuple(axis(i) for i in range(value.rank))
            offset = self._contiguous(value, index).plus(Linear(0 if apart else place))
            store = Store(0, offset, self._emitter().emit(operand, index), False)
            kernels.append(self._kernel([target], "concat", LoopNest(operand.shape, (), (store,)), (group.lead,)))
            start = dims.add(start, operand.shape[at])
        self._place(kernels, [buffer])

    def _part(self, buffer: Buffer, first: Dim) -> Buffer:
        """The rest of a buffer from an element on: kernels that write alike into parts are one function."""
        program = self.program
        part = program.new_buffer("alias", buffer.dtype, dims.add(buffer.size, dims.mul(first, -1)), buffer.name)
        program.holds[part.number] = (buffer.number,)
        program.aliases[part.number] = (buffer.number, first)
        return part

    def _lower_argument(self, group: Group) -> None:
        op, x, value = group.lead.op, group.lead.inputs[0], group.results[0]
        assert isinstance(op, (Argmax, Argmin))
        writes = self._new_kernel([self._result_buffer(value)])
        at = op.axis % x.rank
        full = _row_index(x.rank, (at,))
        body = self._emitter().emit(x, full)
        outer = tuple(d for i, d in enumerate(x.shape) if i != at)
        offset = Linear()
        for i, stride in zip(range(len(outer)), _drop_kept(self.fusion.strides(value), (at,), op.keepdims)):
            offset = offset.plus(linear(axis(i)).times(stride))
        stages: tuple[Statement, ...] = (
            Reduce(op.combine, body, dtypes.i64, argument=True, last=op.last),
            Store(0, offset, row(0, dtypes.i64), False),
        )
        self._add(writes, op.name, LoopNest(outer, (x.shape[at],), stages), (group.lead,))

    # rows

    def _lower_row(self, group: Group) -> None:
        x = group.lead.inputs[0]
        op = group.lead.op
        assert isinstance(op, Reduction)
        axes = tuple(sorted(a % x.rank for a in op.axes))
        writes = self._new_kernel([self._result_buffer(v) for v in group.results])
        full = _row_index(x.rank, axes)
        rows = tuple(ZERO if i in axes else part for i, part in enumerate(full))
        stages = _RowStages(self, group, x, full, rows).build()
        outer = tuple(d for i, d in enumerate(x.shape) if i not in axes)
        inner = tuple(x.shape[a] for a in axes)
        name = "_".join(dict.fromkeys(n.op.name for n in group.members))
        self._add(writes, name[:60], LoopNest(outer, inner, tuple(stages)), tuple(group.members))

    # contractions

    def _lower_contraction(self, group: Group) -> None:
        op, (lhs, rhs), value = group.lead.op, group.lead.inputs, group.results[0]
        assert isinstance(op, DotGeneral)
        writes = self._new_kernel([self._result_buffer(value)])
        left = [a % lhs.rank for a in (*op.lhs_batch, *op.lhs_contract)]
        right = [a % rhs.rank for a in (*op.rhs_batch, *op.rhs_contract)]
        batch = len(op.lhs_batch)
        rows = [a for a in range(lhs.rank) if a not in left]
        columns = [a for a in range(rhs.rank) if a not in right]
        count = batch + len(rows) + len(columns)
        k_axes = tuple(range(count, count + len(op.lhs_contract)))
        lhs_axes = {**dict(zip(left, (*range(batch), *k_axes))), **{a: batch + i for i, a in enumerate(rows)}}
        rhs_axes = {
            **dict(zip(right, (*range(batch), *k_axes))),
            **{a: batch + len(rows) + i for i, a in enumerate(columns)},
        }
        emitter = self._emitter()
        a = emitter.emit(lhs, tuple(axis(lhs_axes[i]) for i in range(lhs.rank)))
        b = emitter.emit(rhs, tuple(axis(rhs_axes[i]) for i in range(rhs.rank)))
        epilogue = self._epilogue(group, count)
        extents = [lhs.shape[i] for i in left[:batch]] + [lhs.shape[i] for i in rows] + [rhs.shape[i] for i in columns]
        depth = [lhs.shape[i] for i in left[batch:]]
        name = "_".join(n.op.name for n in group.members)[:60]
        work = _contraction(extents, depth, batch, len(rows), len(columns), a, b, group.lead.types[0].dtype, epilogue)
        self._add(writes, name, work, tuple(group.members))

    def _epilogue(self, group: Group, rank: int) -> Store:
        value = group.results[0]
        index = tuple(axis(i) for i in range(rank))
        emitter = Emitter(lambda v: None if v.node is value.node else self._strides_of(v), self._emitter().slot_of)
        emitter.known[key_of(group.lead.outputs[0])] = (index, accumulated(group.lead.outputs[0].dtype))
        return Store(0, self._contiguous(value, index), emitter.emit(value, index), False)

    def _lower_window(self, group: Group) -> None:
        op, value = group.lead.op, group.results[0]
        writes = self._new_kernel([self._result_buffer(value)])
        emitter = self._emitter()
        out = group.lead.types[0].shape
        store = self._epilogue(group, len(out))
        work: Work
        if isinstance(op, Conv):
            x, w = group.lead.inputs
            work = windows.convolution(op, x, w, out, emitter, store)
        else:
            assert isinstance(op, ReduceWindow)
            work = windows.window(op, group.lead.inputs[0], out, emitter, store)
        name = "_".join(n.op.name for n in group.members)[:60]
        self._add(writes, name, work, tuple(group.members))

    def _give_memory(self, value: Value) -> None:
        """Constants of one element are code elsewhere; a kernel that takes addresses needs a buffer."""
        if is_scalar_constant(value) and key_of(value) not in self.buffers:
            assert isinstance(value.node.op, Constant)
            buffer = self.program.new_buffer("constant", value.dtype, 1, value.name)
            self.program.constants[buffer.number] = value.node.op.value.array
            self.buffers[key_of(value)] = buffer
            self.static.add(buffer.number)

    def _lower_attention(self, group: Group) -> None:
        op, value = group.lead.op, group.results[0]
        assert isinstance(op, Attention)
        q, k, v, *rest = group.lead.inputs
        writes = self._new_kernel([self._result_buffer(value)])

        def strided(x: Value, lead: int = 0) -> tuple[int, Linear]:
            self._give_memory(x)
            view = view_of(x, self._strides_of)
            assert view is not None  # fusion gave memory to what is none
            axes = tuple((lead + i, s) for i, s in enumerate(view.strides) if s != 0 and x.shape[i] != 1)
            return self._slot(self.buffers[key_of(view.root)]), Linear(view.offset, axes)

        features, value_features = q.shape[3], v.shape[3]
        repeat = dims.exact_div(q.shape[1], k.shape[1])
        assert isinstance(features, int) and isinstance(value_features, int) and isinstance(repeat, int)
        scale = op.scale if op.scale is not None else float(features) ** -0.5
        mask = None
        if rest:
            mask = (*strided(rest[0], 4 - rest[0].rank), rest[0].dtype)
        out = Linear(0, tuple((i, s) for i, s in enumerate(self.fusion.strides(value))))
        work = FusedAttention(
            q.shape[0], q.shape[1], q.shape[2], k.shape[2], features, value_features, repeat, scale, op.causal,
            op.offset, op.fill, op.empty == "zero", q.dtype,
            strided(q), strided(k), strided(v), (0, out), mask, op.window, op.softcap,
        )  # fmt: skip
        self._add(writes, "attention", work, (group.lead,))

    def _lower_control(self, group: Group) -> None:
        from rlx.kernel.lower.control import lower_control

        lower_control(self, group)


class _RowStages:
    """Orders the members of a row group into reduce, temp and store stages."""

    def __init__(self, lowering: Lowering, group: Group, x: Value, full: Index, rows: Index) -> None:
        self.lowering = lowering
        self.group = group
        self.x = x
        self.full = full
        self.rows = rows
        self.members = {key_of(n.outputs[0]) for n in group.members}
        self.emitter = Emitter(self._strides_of, lowering._emitter().slot_of)
        self.statements: list[Statement] = []

    def _strides_of(self, value: Value) -> tuple[Dim, ...] | None:
        return None if key_of(value) in self.members else self.lowering._strides_of(value)

    def build(self) -> list[Statement]:
        repeated = self._repeated()
        for node in self.group.members:
            value = node.outputs[0]
            if isinstance(node.op, Reduction):
                self._before(node.inputs[0], repeated)
                total = dtypes.accumulator(value.dtype) if node.op.combine in ("add", "mul") else value.dtype
                body = ex.cast(self.emitter.emit(node.inputs[0], self.full), total)
                self.statements.append(Reduce(node.op.combine, body, total))
                self._know(value, self.rows, ex.cast(row(len(self.statements) - 1, total), value.dtype))
        for value in self.group.results:
            self._store(value, repeated)
        return self.statements

    def _know(self, value: Value, index: Index, expression: Expr) -> None:
        self.emitter.known[key_of(value)] = (index, expression)
        self.emitter.forget()

    def _before(self, value: Value, repeated: dict[Key, Value]) -> None:
        """Makes temps of what is below `value` and is needed again later; deepest first."""
        for found in self._below(value):
            if key_of(found) in repeated and key_of(found) not in self.emitter.known:
                self.statements.append(RowBuffer(self.emitter.emit(found, self.full)))
                self._know(found, self.full, temp(len(self.statements) - 1, found.dtype))

    def _store(self, value: Value, repeated: dict[Key, Value]) -> None:
        is_row = value.shape != self.x.shape
        self._before(value, repeated)
        index = self.rows if is_row else self.full
        rank = len(index)
        if is_row and value.rank != rank:  # a reduction that drops its axes
            offset = Linear()
            parts = [p for p in self.rows if p is not ZERO]
            for part, stride in zip(parts, self.lowering.fusion.strides(value)):
                offset = offset.plus(linear(part).times(stride))
        else:
            offset = self.lowering._contiguous(value, index)
        slot = self.lowering._slot(self.lowering.buffers[key_of(value)])
        self.statements.append(Store(slot, offset, self.emitter.emit(value, index), not is_row))

    def _repeated(self) -> dict[Key, Value]:
        """Full-shape values with arithmetic in them that two stages or more would compute."""
        counts: dict[Key, int] = {}
        values: dict[Key, Value] = {}
        tops = [n.inputs[0] for n in self.group.members if isinstance(n.op, Reduction)]
        for top in [*tops, *(v for v in self.group.results if v.shape == self.x.shape)]:
            for value in self._below(top):
                if value.shape == self.x.shape and _has_work(value):
                    counts[key_of(value)] = counts.get(key_of(value), 0) + 1
                    values[key_of(value)] = value
        return {key: values[key] for key, count in counts.items() if count > 1 and self._is_top(values[key], counts)}

    def _below(self, top: Value) -> list[Value]:
        """Elementwise values that are computed here for `top`, without a reduction between, deepest first."""
        order: list[Value] = []
        seen: set[Key] = set()
        stack = [(top, False)]
        while stack:
            value, ready = stack.pop()
            if ready:
                order.append(value)
            elif key_of(value) not in seen and self._strides_of(value) is None:
                seen.add(key_of(value))
                if isinstance(value.node.op, Elementwise):
                    stack.append((value, True))
                    stack.extend((operand, False) for operand in reversed(value.node.inputs))
        return order

    def _is_top(self, value: Value, counts: dict[Key, int]) -> bool:
        """Not merely below another repeated value, used by that one alone."""
        users = self.lowering.fusion.uses(value)
        if len(users) == 1 and counts.get(key_of(users[0].outputs[0]), 0) >= counts[key_of(value)]:
            return users[0].outputs[0].shape != self.x.shape
        return True


def _has_work(value: Value) -> bool:
    op = value.node.op
    assert isinstance(op, Elementwise)
    body = op.scalar(*(Expr("operand", v.dtype, (), i) for i, v in enumerate(value.node.inputs)))
    return any(n.kind in INSTRUCTIONS for n in ex.walk([body]))


def _row_index(rank: int, axes: tuple[int, ...]) -> Index:
    """Outer axes are numbered first, reduced axes behind them."""
    kept = [i for i in range(rank) if i not in axes]
    numbers = {a: i for i, a in enumerate((*kept, *axes))}
    return tuple(axis(numbers[i]) for i in range(rank))


def _drop_kept(strides: tuple[Dim, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[Dim, ...]:
    return tuple(s for i, s in enumerate(strides) if i not in axes) if keepdims else strides


def _contraction(
    extents: list[Dim], depth: list[Dim], batch: int, rows: int, columns: int, a: Expr, b: Expr, dtype: DType,
    store: Store,
) -> Work:  # fmt: skip
    """A contraction with one m, one n and one k axis where the accesses allow it, else a plain nest."""
    count = batch + rows + columns
    plain = all(e.kind == "load" for e in (a, b)) and not a.args and _is_of_batch(b, batch)
    if not plain or len(depth) != 1:
        total = dtypes.accumulator(dtype)
        done = ex.cast(row(0, total), dtype)
        body = ex.rewrite(store.body, lambda e, _: done if e.kind == "acc" else None)
        reduce = Reduce("add", ex.cast(a, total) * ex.cast(b, total), total)
        return LoopNest(tuple(extents), tuple(depth), (reduce, Store(store.slot, store.offset, body, False)))
    places = [offset_of(a), offset_of(b), *accesses([store])]
    bare = bare_axes([store])

    def run(first: int, length: int) -> list[list[int]]:
        """Axes first … first+length-1 in groups that are walked as one."""
        groups: list[list[int]] = []
        for number in range(first, first + length):
            if groups and not {number, number - 1} & bare and joinable(number - 1, extents[number], places):
                groups[-1].append(number)
            else:
                groups.append([number])
        return groups

    m_groups, n_groups = run(batch, rows), run(batch + rows, columns)
    single = [[i] for i in range(batch)] + m_groups[:-1] + n_groups[:-1]
    order = [*single, *(m_groups[-1:] or [[]]), *(n_groups[-1:] or [[]])]
    renumber = {group[-1]: new for new, group in enumerate(order) if group}
    renumber[count] = len(order)
    new_extents = [dims.product(extents[i] for i in group) for group in order]
    moved = renumber_statement(store, renumber)
    assert isinstance(moved, Store)
    return Contraction(
        tuple(new_extents[:-2]), new_extents[-2], new_extents[-1], depth[0], dtype,
        a.attr.slot, renumber_linear(offset_of(a), renumber), a.dtype,
        b.attr.slot, renumber_linear(offset_of(b), renumber), b.dtype,
        (moved,),
    )  # fmt: skip


def _is_of_batch(side: Expr, batch: int) -> bool:
    """Whether what data say of a load's place is one for each of the batch."""
    read = ex.walk(list(side.args))
    axes = {n.attr for n in read if n.kind == "axis"} | {a for n in read if n.kind == "load" for a, _ in n.attr.axes}
    return not side.attr.guarded and all(a < batch for a in axes)


def lower(graph: Graph, disable: frozenset[str] = frozenset(), chosen: bool = False) -> Program:
    """The program of a graph; `chosen` as in `Fusion`. Raises UnsupportedOp naming every node that no kernel can
    take."""
    return Lowering(graph, disable, chosen=chosen).run()


def param_names(graph: Graph) -> list[str]:
    """Names of params in the order of a program's param buffers."""
    return [v.name for v in graph.params if isinstance(v.node.op, Param)]
