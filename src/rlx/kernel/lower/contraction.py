"""Products: a contraction with one m, n and k axis where the operands allow it, else a plain loop nest."""

from __future__ import annotations

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.ir.graph import Node
from rlx.kernel.ir.axes import accesses, bare_axes, joinable, renumber_linear, renumber_statement
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import accumulated, axis, offset_of, row
from rlx.kernel.ir.loops import LoopNest, Reduce, Store
from rlx.kernel.ir.work import Work
from rlx.kernel.lower.context import KernelBuilder, LoweringContext
from rlx.kernel.lower.group import Group
from rlx.kernel.lower.index import key_of
from rlx.kernel.lower.materialise import Materialised
from rlx.kernel.lower.table import demands, lowers
from rlx.ops.float8 import Float8Matmul
from rlx.ops.index import Gather
from rlx.ops.linalg import DotGeneral


@demands(DotGeneral, Float8Matmul)
def operands_of_product(node: Node, memory: Materialised) -> None:
    """Both sides are strided views; the left one is read along the axis that is summed, so its elements there are
    neighbours. Of a weight whose matrices data choose, the weight and the choice are in memory."""
    op = _general(node)
    left, right = node.inputs
    memory.add_strided(left)
    if memory.facts.indirect and _chooses(node, memory):
        source, places = right.node.inputs
        memory.add_strided(source)
        memory.add(places)
    else:
        memory.add_strided(right)
    if len(op.lhs_contract) == 1:
        memory.add_along(left, op.lhs_contract[0] % left.rank)


def _general(node: Node) -> DotGeneral:
    """The product that a node is; one of floats of 8 bits by a matrix, as which alone it has a kernel."""
    if isinstance(node.op, DotGeneral):
        return node.op
    assert isinstance(node.op, Float8Matmul) and node.inputs[1].rank == 2  # as backends claim it
    return DotGeneral((node.inputs[0].rank - 1,), (0,))


def _chooses(node: Node, memory: Materialised) -> bool:
    """Whether it is a batch of products with matrices of a weight that data choose, one for each of the batch."""
    op, right = node.op, node.inputs[-1].node
    if not isinstance(op, DotGeneral) or not isinstance(right.op, Gather) or right.op.axis % 3 != 0:
        return False
    source, places = right.inputs
    static = id(source.node) in memory.facts.static
    known = source.rank == 3 and source.type.is_static and 0 not in source.shape and static
    plain = source.dtype.is_float and places.rank == 1 and op.rhs_batch == (0,) and len(op.rhs_contract) == 1
    return known and plain and len(memory.facts.uses(right.outputs[0])) == 1


@lowers(DotGeneral, Float8Matmul, grows="epilogue")
def lower_product(context: LoweringContext, group: Group) -> None:
    op, (lhs, rhs), value = _general(group.anchor), group.anchor.inputs, group.results[0]
    kernel = context.kernel(context.result(value))
    batch = len(op.lhs_batch)
    # the sum runs over its axes in the order in which they lie on the left, where neighbours join
    summed = sorted(zip((a % lhs.rank for a in op.lhs_contract), (a % rhs.rank for a in op.rhs_contract)))
    left = [*(a % lhs.rank for a in op.lhs_batch), *(a for a, _ in summed)]
    right = [*(a % rhs.rank for a in op.rhs_batch), *(a for _, a in summed)]
    rows = [a for a in range(lhs.rank) if a not in left]
    columns = [a for a in range(rhs.rank) if a not in right]
    count = batch + len(rows) + len(columns)
    k_axes = tuple(range(count, count + len(op.lhs_contract)))
    lhs_axes = {**dict(zip(left, (*range(batch), *k_axes))), **{a: batch + i for i, a in enumerate(rows)}}
    rhs_axes = {
        **dict(zip(right, (*range(batch), *k_axes))),
        **{a: batch + len(rows) + i for i, a in enumerate(columns)},
    }
    emitter = kernel.emitter()
    a = emitter.emit(lhs, tuple(axis(lhs_axes[i]) for i in range(lhs.rank)))
    b = emitter.emit(rhs, tuple(axis(rhs_axes[i]) for i in range(rhs.rank)))
    store = epilogue(context, kernel, group, count)
    extents = [lhs.shape[i] for i in left[:batch]] + [lhs.shape[i] for i in rows] + [rhs.shape[i] for i in columns]
    depth = [lhs.shape[i] for i in left[batch:]]
    work = contraction_of(extents, depth, batch, len(rows), len(columns), a, b, group.anchor.types[0].dtype, store)
    context.add(kernel, name_of(group), work, group.members)


def name_of(group: Group) -> str:
    """A kernel's name by the ops in it."""
    return "_".join(n.op.name for n in group.members)[:60]


def epilogue(context: LoweringContext, kernel: KernelBuilder, group: Group, rank: int) -> Store:
    """The store of a group's result, in terms of what its anchor has accumulated."""
    value, anchor = group.results[0], group.anchor.outputs[0]
    index = tuple(axis(i) for i in range(rank))
    emitter = kernel.emitter(computes=value)
    emitter.known[key_of(anchor)] = (index, accumulated(anchor.dtype))
    return Store(0, context.offset(value, index), emitter.emit(value, index), False)


def contraction_of(
    extents: list[Dim], depth: list[Dim], batch: int, rows: int, columns: int, a: Expr, b: Expr, dtype: DType,
    store: Store,
) -> Work:  # fmt: skip
    """A contraction with one m, one n and one k axis where the accesses allow it, else a plain nest. Axes of the sum
    that do not join with k are taps."""
    count = batch + rows + columns
    plain = all(e.kind == "load" for e in (a, b)) and not a.args and _is_of_batch(b, batch)
    if not plain or not depth:
        total = dtypes.accumulator(dtype)
        done = ex.cast(row(0, total), dtype)
        body = ex.rewrite(store.body, lambda e, _: done if e.kind == "acc" else None)
        reduce = Reduce("add", ex.cast(a, total) * ex.cast(b, total), total)
        return LoopNest(tuple(extents), tuple(depth), (reduce, Store(store.slot, store.offset, body, False)))
    places = [offset_of(a), offset_of(b), *accesses([store])]
    bare = bare_axes([store])
    extents = [*extents, *depth]

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
    k_groups = run(count, len(depth))
    single = [[i] for i in range(batch)] + m_groups[:-1] + n_groups[:-1]
    order = [*single, *(m_groups[-1:] or [[]]), *(n_groups[-1:] or [[]]), *k_groups]
    renumber = {group[-1]: new for new, group in enumerate(order) if group}
    sizes = [dims.product(extents[i] for i in group) for group in order]
    lead = len(single)
    moved = renumber_statement(store, renumber)
    assert isinstance(moved, Store)
    return Contraction(
        tuple(sizes[:lead]), sizes[lead], sizes[lead + 1], sizes[-1], dtype,
        a.attr.slot, renumber_linear(offset_of(a), renumber), a.dtype,
        b.attr.slot, renumber_linear(offset_of(b), renumber), b.dtype,
        (moved,), taps=tuple(sizes[lead + 2 : -1]),
    )  # fmt: skip


def _is_of_batch(side: Expr, batch: int) -> bool:
    """Whether what data say of a load's place is one for each of the batch."""
    read = ex.walk(list(side.args))
    axes = {n.attr for n in read if n.kind == "axis"} | {a for n in read if n.kind == "load" for a, _ in n.attr.axes}
    return not side.attr.guarded and all(a < batch for a in axes)
