"""Conditionals and loops, whose regions are grown as graphs are."""

from __future__ import annotations

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Value
from rlx.ir.type import TensorType
from tools.fuzz.generate import Maker, Refused, family


def region(make: Maker, operands: list[Value], slices: int = 0, first: int = 0) -> Maker:
    """A maker of a region on these operands; those from `first` on, `slices` in number, come an element at a time."""
    inner = make.within(f"region{len(make.made)}")
    for i, value in enumerate(operands):
        array, shape = make.arrays[value], value.shape
        if first <= i < first + slices:
            array, shape = array[0], shape[1:]
        inside = inner.graph.input(f"a{i}", shape, value.dtype)
        inner.arrays[inside] = array
        inner.pool.append(inside)
    return inner


def close(inner: Maker, results: list[Value]) -> Graph:
    for i, value in enumerate(results):
        inner.graph.output(value, name=f"r{i}")
    inner.graph.prune()
    return inner.graph


def like(inner: Maker, of: TensorType) -> Value:
    """A late value of this type, or something computed of one."""
    fits = [v for v in inner.pool if v.type == of]
    value = inner.random.choice(fits[-3:]) if fits and inner.chance(0.8) else inner.operand(of.shape, of.dtype)
    if of.dtype is dtypes.bool_:
        return value
    return inner.add(inner.random.choice(("maximum", "minimum", "sub")), value, inner.operand(of.shape, of.dtype))


@family(3)
def conditional(make: Maker) -> None:
    operands = [make.any() for _ in range(make.random.choice((1, 2, 3)))]
    predicate = make.leaf((), dtypes.bool_)
    if make.chance(0.4):
        value = make.any("float", "int")
        total = make.add("reduce_max", value, axes=tuple(range(value.rank))) if make.size(value.shape) else None
        if total is not None:
            predicate = make.add("gt", total, make.leaf((), total.dtype))
    yes = region(make, operands)
    yes.grow(make.random.choice((1, 2, 4)))
    if not yes.made:
        raise Refused("nothing to do")
    results = yes.made[-make.random.choice((1, 1, 2)) :]
    if make.chance(0.2):
        results.append(yes.pool[0])
    no = region(make, operands)
    no.grow(make.random.choice((0, 1, 2)))
    others = [like(no, v.type) for v in results]
    make.several("if", predicate, *operands, regions=(close(yes, results), close(no, others)))


@family(3)
def scan(make: Maker) -> None:
    length = dims.symbol("n") if make.symbols and make.chance(0.5) else make.random.choice((0, 1, 2, 3, 5, 8))
    if make.at(length) == 0 and make.chance(0.7):
        raise Refused("no steps")
    dtype = make.random.choice((dtypes.f32, dtypes.f32, dtypes.i32))
    carried = [make.operand(make.shape(0, 2), dtype) for _ in range(make.random.choice((0, 1, 1, 2)))]
    sequences = [
        make.operand((length, *make.shape(0, 2, open_=False)), dtype) for _ in range(make.random.choice((1, 1, 2)))
    ]
    if any(make.arrays[s].shape[0] == 0 for s in sequences):
        raise Refused("no steps")
    stay = [make.any() for _ in range(make.random.choice((0, 1, 1)))]
    inner = region(make, [*carried, *sequences, *stay], len(sequences), len(carried))
    inner.grow(make.random.choice((1, 2, 4)))
    results = [like(inner, v.type) for v in carried]
    steps = inner.made[-make.random.choice((0, 1, 2)) :] if inner.made else []
    if not results and not steps:
        raise Refused("nothing to do")
    make.several(
        "scan", *carried, *sequences, *stay, carried=len(carried), sequences=len(sequences), length=length,
        reverse=make.chance(0.3), regions=(close(inner, [*results, *steps]),),
    )  # fmt: skip


@family(2)
def loop(make: Maker) -> None:
    counter = make.leaf((), dtypes.i32, low=0, high=1)
    limit = make.leaf((), dtypes.i32, low=0, high=4)
    state = [make.any("float", "int") for _ in range(make.random.choice((1, 1, 2)))]
    stay = [make.any() for _ in range(make.random.choice((0, 1)))]
    operands = [counter, *state, limit, *stay]
    condition = region(make, operands)
    test = condition.add("lt", condition.pool[0], condition.pool[1 + len(state)])
    body = region(make, operands)
    first = body.pool[0]
    body.grow(make.random.choice((1, 2, 3)))
    results = [body.add("add", first, 1), *(like(body, v.type) for v in state)]
    most = make.random.choice((None, None, 2))
    make.several(
        "while", *operands, carried=1 + len(state), limit=most, regions=(close(condition, [test]), close(body, results))
    )
