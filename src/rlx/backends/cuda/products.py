"""Contractions that begin with plain products, as a library of products has them: matrices with leading dimensions, and
an epilogue of at most a bias and something that is added. What else follows, a map makes of the results: those of pairs
of sums lie in memory beside the kernel's buffers first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, accumulated, offset_of

SIDES = (dtypes.f16, dtypes.bf16, dtypes.f32)
BESIDE = -1
"""The slot of results that lie in no buffer of the kernel."""
Size = Callable[[Dim], int]
"""The value of a dim in a run."""


@dataclass(frozen=True)
class Operand:
    """A matrix of the batch in the buffer of a slot, in elements.

    first      where the first one begins
    lead       from row to row, or from column to column if it lies `across`
    stride     from matrix to matrix
    """

    slot: int
    first: int
    lead: int
    stride: int = 0
    across: bool = False


@dataclass(frozen=True)
class Panels:
    """A right side in panels (`kernel/passes/pack.py`): `count` matrices of [depth, columns]."""

    columns: int
    depth: int
    width: int
    group: int
    count: int

    @property
    def size(self) -> int:
        """Elements of a matrix."""
        return -(-self.columns // self.width) * self.width * -(-self.depth // self.group) * self.group


@dataclass(frozen=True)
class Bias:
    """A number for each column, from an element of a slot's buffer on."""

    slot: int
    first: int
    dtype: DType


@dataclass(frozen=True)
class Product:
    """result[count, m, n] = left[count, m, k] · right[count, k, n] + added + bias, rounded once, with sums of f32.

    left, right   rows of `left` are contiguous along k, and those of `right` along n, if they do not lie `across`
    panels        how the right side really lies, whose `right` is then that of a plain copy [count, n, k]
    rest          what is stored in the end, with the product where the contraction's sum was; None for the product
    """

    m: int
    n: int
    k: int
    count: int
    dtype: DType
    out: DType
    left: Operand
    right: Operand
    result: Operand
    added: Operand | None = None
    bias: Bias | None = None
    panels: Panels | None = None
    rest: Expr | None = field(default=None, repr=False)

    @property
    def beside_bytes(self) -> int:
        """Of results that lie in no buffer of the kernel."""
        return self.m * self.n * self.out.itemsize if self.result.slot == BESIDE else 0


def product_of(work: Contraction, size: Size) -> Product | None:
    """What a contraction begins with at known sizes: a product, with a bias and an addition. None where it lies in a
    way that has no leading dimension.

    A bias of f32 in front of results of 16 bits is taken where the sum is rounded to 16 bits before it is added: what
    the library rounds in place of that is the bias. So is what more follows, of the library's rounded results."""
    plain = not (work.taps or work.bounds or work.float_parts) and work.blocks is None and work.a_slot >= 0
    crossed = work.a.coefficient(work.n_axis) != 0 or work.b.coefficient(work.m_axis) != 0
    if not plain or crossed or work.a_dtype is not work.b_dtype or work.a_dtype not in SIDES or len(work.epilogue) != 1:
        return None
    if work.paired:
        return _of_pairs(work, size)
    (store,) = work.epilogue
    allowed, out = {work.a_dtype, dtypes.f32}, store.body.dtype
    made = _made_there(store.body, allowed)
    terms = None if made is None else _terms(made, allowed)
    if store.guard is not None or made is None or terms is None:
        return None
    rest = None if made is store.body else _rest(store.body, made)
    if rest is not None and work.dtype is not out:
        return None  # it would be rounded where it is not
    lines = {"left": work.a, "result": store.offset}
    bias, slots = None, {"left": work.a_slot, "result": store.slot}
    for term in terms:
        line = offset_of(term)
        if term.attr.guarded or line.others:
            return None
        if all(number == work.n_axis for number, _ in line.axes) and line.coefficient(work.n_axis) == 1:
            if bias is not None or not _takes_bias(term.dtype, out, work.dtype):
                return None
            bias = Bias(term.attr.slot, size(line.const), term.dtype)
        elif "added" in lines or term.dtype is not out:
            return None
        else:
            lines["added"], slots["added"] = line, term.attr.slot
    product = _placed(work, size, lines, slots, bias, out)
    return None if product is None else replace(product, rest=rest)


def _of_pairs(work: Contraction, size: Size) -> Product | None:
    """All columns of a paired contraction, of which a map makes what it stores."""
    (store,) = work.epilogue
    if work.batch or store.guard is not None or work.dtype not in (work.a_dtype, dtypes.f32):
        return None
    whole = replace(work, n=work.columns, paired=False)
    lines = {"left": work.a, "result": Linear(0, ((work.m_axis, work.columns), (work.n_axis, 1)))}
    product = _placed(whole, size, lines, {"left": work.a_slot, "result": BESIDE}, None, work.dtype)
    return None if product is None else replace(product, rest=store.body)


def _takes_bias(dtype: DType, out: DType, sums: DType) -> bool:
    return dtype is out or (dtype is dtypes.f32 and sums is out)


def _made_there(body: Expr, allowed: set[DType]) -> Expr | None:
    """The part of a body around its sum that a library makes; None where there is no sum."""
    users: dict[Expr, list[Expr]] = {}
    nodes = ex.walk([body])
    for node in nodes:
        for arg in node.args:
            users.setdefault(arg, []).append(node)
    made = next((node for node in nodes if node.kind == "acc"), None)
    while made is not None and len(users.get(made, ())) == 1:
        (user,) = users[made]
        if _terms(user, allowed) is None:
            break
        made = user
    return made


def _rest(body: Expr, made: Expr) -> Expr:
    """A body with its sum in the place of a part."""
    return ex.rewrite(body, lambda node, _: accumulated(made.dtype) if node is made else None)


def _terms(body: Expr, allowed: set[DType]) -> list[Expr] | None:
    """The loads that are added to the sum, which is there once, with conversions of floats between them; else None."""
    loads, sums, waiting = [], 0, [body]
    while waiting:
        node = waiting.pop()
        if node.dtype not in allowed:
            return None
        match node.kind:
            case "add" | "cast":
                waiting.extend(node.args)
            case "load":
                loads.append(node)
            case "acc":
                sums += 1
            case _:
                return None
    return loads if sums == 1 else None


def _placed(
    work: Contraction, size: Size, lines: dict[str, Linear], slots: dict[str, int], bias: Bias | None, out: DType
) -> Product | None:
    m, n, k = size(work.m), size(work.n), size(work.k)
    extents = [size(extent) for extent in work.batch]
    if 0 in (m, n, k, *extents):
        return None
    panels, right = _right(work, size, n, k)
    if right is None or any(line.others for line in lines.values()):
        return None
    names = [*lines, "right"]
    strides = {name: [size(line.coefficient(axis)) for axis in range(len(extents))] for name, line in lines.items()} | {
        "right": right.strides
    }
    step = {name: size(line.coefficient(work.m_axis)) for name, line in lines.items()}
    batch = [(extent, {name: strides[name][at] for name in names}) for at, extent in enumerate(extents)]
    m, batch = _with_rows(m, step, batch)
    merged = _merged(batch)
    if merged is None:
        return None
    count, apart = merged
    first = {name: size(line.const) for name, line in lines.items()}
    made: dict[str, Operand] = {}
    for name, line in lines.items():
        inner = (work.k_axis, k) if name == "left" else (work.n_axis, n)
        lead = _lead(step[name], m, size(line.coefficient(inner[0])), inner[1])
        if lead is None or (lead[1] and name != "left"):
            return None
        made[name] = Operand(slots[name], first[name], lead[0], apart[name], lead[1])
    placed_right = Operand(work.b_slot, right.first, right.lead, apart["right"], right.across)
    return Product(
        m, n, k, count, work.a_dtype, out, made["left"], placed_right, made["result"], made.get("added"), bias, panels
    )


@dataclass(frozen=True)
class _Right:
    first: int
    lead: int
    across: bool
    strides: list[int]


def _right(work: Contraction, size: Size, n: int, k: int) -> tuple[Panels | None, _Right | None]:
    """How the right side lies; in panels, how a plain copy of it would."""
    if work.b.others:
        return None, None
    strides = [size(work.b.coefficient(axis)) for axis in range(len(work.batch))]
    if not work.packed:
        lead = _lead(size(work.b.coefficient(work.k_axis)), k, size(work.b.coefficient(work.n_axis)), n)
        return None, None if lead is None else _Right(size(work.b.const), *lead, strides)
    panels = Panels(n, k, work.packed, work.group, 1)
    if size(work.b.const) or any(stride % panels.size for stride in strides):
        return None, None
    last = sum(stride // panels.size * (size(extent) - 1) for stride, extent in zip(strides, work.batch))
    plain = [stride // panels.size * n * k for stride in strides]
    return Panels(n, k, work.packed, work.group, last + 1), _Right(0, k, True, plain)


def _lead(outer_step: int, outer: int, inner_step: int, inner: int) -> tuple[int, bool] | None:
    """The leading dimension of a matrix, and whether it lies across: its outer axis is the contiguous one."""
    if (inner_step == 1 or inner == 1) and (outer_step >= inner or outer == 1):
        return max(outer_step, inner), False
    if (outer_step == 1 or outer == 1) and (inner_step >= outer or inner == 1):
        return max(inner_step, outer), True
    return None


Axis = tuple[int, dict[str, int]]
"""An axis of the batch: its extent, and the step of each matrix along it."""


def _with_rows(m: int, step: dict[str, int], batch: Sequence[Axis]) -> tuple[int, list[Axis]]:
    """Rows together with those of the batch that share a right side and lie behind them."""
    axes = [axis for axis in batch if axis[0] != 1]
    while axes:
        extent, apart = axes[-1]
        if apart["right"] or any(apart[name] != m * step[name] for name in step):
            break
        m *= extent
        axes.pop()
    return m, axes


def _merged(axes: Sequence[Axis]) -> tuple[int, dict[str, int]] | None:
    """The batch as one axis; None where its matrices are not all as far apart."""
    names = ("left", "right", "result", "added")
    count, apart = 1, dict.fromkeys(names, 0)
    for extent, steps in reversed(axes):
        if count > 1 and any(steps[name] != count * apart[name] for name in steps):
            return None
        apart = apart | (steps if count == 1 else {})
        count *= extent
    return count, apart
