"""Importer functions: conditionals and loops.

Whatever is known during the import is decided there: an If on known numbers becomes one of its branches, and a short
loop of known length is unrolled. The others become regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.errors import RlxError
from rlx.frontends.onnx.measuring import measure
from rlx.frontends.onnx.operand import Growing, Nothing, flattened, is_number, rebuilt, structure
from rlx.frontends.onnx.sequence_values import appended, collected, in_a_row, is_sequence
from rlx.frontends.onnx.subgraphs import Formal, Region, close
from rlx.frontends.onnx.table import OnnxNode, Operand, onnx_op
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.expect import Equality
from rlx.ir.graph import Graph, Value, call
from rlx.ir.type import TensorType
from rlx.ops import build, shorthand
from rlx.ops.elementwise import Cast, Eq
from rlx.ops.shape import DimsTensor, Reshape

MAX_COUNTED_TRIPS = 1 << 24  # exporters give the greatest integer as the count of a loop that ends by its condition
MAX_UNROLLED_TRIPS = 16
MAX_UNROLLED_NODES = 256
TRIP = TensorType((), dtypes.i64)
TRUTH = TensorType((), dtypes.bool_)


@onnx_op("If")
def if_(node: OnnxNode, condition: Operand) -> Sequence[Operand]:
    yes, no = node.graph_attribute("then_branch"), node.graph_attribute("else_branch")
    if condition.known is not None:
        if condition.known.size != 1:
            raise node.wrong(f"expected a condition of one element, got {condition.type}")
        return node.subgraphs.inline(yes if condition.known.reshape(-1)[0] else no, ())
    equal = _dims_compared(condition.value)
    attempt = node.subgraphs.attempt()
    try:
        return _if_at_run_time(node, condition, [yes, no])
    except RlxError:
        if equal is None:
            raise
    # exporters write squeeze(x, 1) as "if the dim is 1 squeeze, else not": the ranks differ, so one branch it must be
    attempt.undo()
    left, right = equal
    reason = f"[If] expected what {node.name!r} was taken to be on import"
    node.graph.equalities.append(Equality(left, right, reason))
    return node.subgraphs.inline(yes, ())


def _if_at_run_time(node: OnnxNode, condition: Operand, bodies: Sequence[Any]) -> list[Operand]:
    regions = [node.subgraphs.region(body, ()) for body in bodies]
    first, second = (region.results for region in regions)
    if len(first) != len(second):
        raise node.wrong(f"expected branches of as many results, got {len(first)} and {len(second)}")
    if structure(first) != structure(second):
        raise node.unsupported("its condition is known only when the graph runs, and its branches give other sequences")
    like = first
    first, second = flattened(first), flattened(second)
    for a, b in zip(first, second):
        same = len(a.shape) == len(b.shape) and all(
            x == y for x, y in zip(a.shape, b.shape) if is_number(x) and is_number(y)
        )
        if a.dtype is not b.dtype or not same:
            raise node.unsupported(
                f"its condition is known only when the graph runs, and it gives {a.type} or {b.type}"
            )
    captured = close(regions, [[item.value for item in results] for results in (first, second)])
    predicate = _scalar(condition.value)
    outputs = _call("if", [predicate, *captured], [region.graph for region in regions])
    return rebuilt(node.graph, like, iter(outputs))


def _dims_compared(condition: Value) -> tuple[Dim, Dim] | None:
    """Both sides of a condition that compares dims."""
    while isinstance(condition.op, (Cast, Reshape)):
        condition = condition.node.inputs[0]
    if not isinstance(condition.op, Eq):
        return None
    left, right = (_one_dim(v) for v in condition.node.inputs)
    return None if left is None or right is None else (left, right)


def _one_dim(value: Value) -> Dim | None:
    while isinstance(value.op, (Cast, Reshape)):
        value = value.node.inputs[0]
    if isinstance(value.op, DimsTensor) and len(value.op.values) == 1:
        return value.op.values[0]
    array = value.constant
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 and array.dtype.kind in "iu" else None


def _scalar(value: Value) -> Value:
    return value.reshape(()) if value.rank else value


def _call(name: str, operands: Sequence[Value], regions: Sequence[Graph], **attributes: Any) -> list[Operand]:
    outputs = call(name, *operands, regions=regions, **attributes)
    return [Operand.of(v) for v in (outputs if isinstance(outputs, tuple) else (outputs,))]


@onnx_op("Loop")
def loop(node: OnnxNode, count: Operand | None, condition: Operand | None, *carried: Operand) -> Sequence[Operand]:
    """Runs the body while its condition holds and at most `count` times."""
    body = node.graph_attribute("body")
    stacked = len(body.output) - 1 - len(carried)
    if stacked < 0:
        raise node.wrong(f"expected a body of at least {len(carried) + 1} outputs, got {len(body.output)}")
    trips = None if count is None or count.known is None else count.known.reshape(-1)[0]
    started = _truth(condition) if condition is not None else True
    if started is False and stacked == 0:
        return list(carried)
    if isinstance(trips, int) and started and 0 < trips <= MAX_UNROLLED_TRIPS:
        few = trips * _most_nodes(body) <= MAX_UNROLLED_NODES
        unrolled = _unrolled(node, body, trips, carried) if few else None
        if unrolled is not None:
            return unrolled
    if any(isinstance(item, Nothing) for item in carried):
        raise node.unsupported("whether an optional that it carries has an element is known only when the graph runs")
    collects = stacked or any(is_sequence(item) for item in carried)
    if trips is not None and started and not (isinstance(trips, int) and trips > MAX_COUNTED_TRIPS):
        counted = _counted(node, body, trips, carried)
        if counted is not None:
            return counted
    if collects and count is not None:
        counted = _measured(node, body, count, condition, carried)
        if counted is not None:
            return counted
    if collects:
        raise node.unsupported("how many results it collects is known only when the graph runs")
    return _while(node, body, count, condition, carried)


def _most_nodes(body: Any) -> int:
    """Nodes of a body, those of loops in it as often as they may be unrolled."""
    total = len(body.node)
    for inner in body.node:
        times = MAX_UNROLLED_TRIPS if inner.op_type == "Loop" else 1
        total += sum(times * _most_nodes(a.g) for a in inner.attribute if a.HasField("g"))
    return total


def _truth(item: Operand) -> bool | None:
    return None if item.known is None or item.known.size != 1 else bool(item.known.reshape(-1)[0])


def _unrolled(node: OnnxNode, body: Any, trips: int, carried: Sequence[Operand]) -> list[Operand] | None:
    """The body `trips` times in place; None if when it ends is not known."""
    state = list(carried)
    rows: list[Sequence[Operand]] = []
    for trip in range(trips):
        going, *results = node.subgraphs.inline(body, [node.knows(trip), node.knows(True, dtypes.bool_), *state])
        state = results[: len(carried)]
        rows.append(results[len(carried) :])
        truth = _truth(going)
        if truth is None:
            return None
        if not truth:
            break
    stacked = []
    for column in zip(*rows):
        if len({item.type for item in column}) != 1:
            raise node.unsupported(f"it collects results of other types in turn: {[str(i.type) for i in column[:2]]}")
        parts = [item.value.reshape(1, *item.shape) for item in column]
        stacked.append(Operand.of(build.concat(*parts, axis=0) if len(parts) > 1 else parts[0]))
    return [*state, *stacked]


def _counted(node: OnnxNode, body: Any, trips: Dim, carried: Sequence[Operand]) -> list[Operand] | None:
    """A scan over the trips, which collects what they append to sequences; None if the body may end it earlier."""
    attempt = node.subgraphs.attempt()
    tensors = [item for item in carried if not is_sequence(item)]
    formals: list[Formal] = [*(item.type for item in tensors), TRIP]
    places = iter(range(len(tensors)))
    lists = {at: Growing(node.graph, i.dtype, object()) for at, i in enumerate(carried) if is_sequence(i)}
    order = [lists[at] if at in lists else next(places) for at in range(len(carried))]
    going, region = _body(node, body, formals, (len(tensors), node.knows(True, dtypes.bool_), *order))
    if _truth(going) is not True:
        attempt.undo()
        return None
    length = max(trips, 0) if isinstance(trips, int) else dims.maximum(trips, 0)
    rows = {at: collected(node, formal, region.results[at]) for at, formal in lists.items()}
    region.results = [outputs for at, outputs in enumerate(region.results) if at not in lists]
    results = [*_as_carried(node, region, tensors), *(value for row in rows.values() for value in row)]
    captured = close([region], [results])
    numbers = build.iota(node.graph, shape=(length,), axis=0, dtype=dtypes.i64)
    operands = [*(item.value for item in tensors), numbers, *captured]
    outputs = _call("scan", operands, [region.graph], carried=len(tensors), sequences=1, length=length)
    count = sum(map(len, rows.values()))
    outputs, ends = outputs[: len(outputs) - count], iter(outputs[len(outputs) - count :])
    for at, row in rows.items():
        outputs.insert(at, appended(node, carried[at], in_a_row(next(ends).value)) if row else carried[at])
    return outputs


def _measured(
    node: OnnxNode, body: Any, count: Operand, condition: Operand | None, carried: Sequence[Operand]
) -> list[Operand] | None:
    """A scan over as many trips as a run says: none at all if the condition does not hold from the start."""
    trips = build.maximum(_scalar(count.value.cast(dtypes.i64)), 0)
    if condition is not None:
        trips = build.select(_scalar(condition.value), trips, 0)
    return _counted(node, body, measure(node, trips), carried)


def _body(
    node: OnnxNode, body: Any, formals: Sequence[Formal], order: Sequence[int | Operand]
) -> tuple[Operand, Region]:
    """A loop's body as a region of our inputs; `order` says which of them each of its own inputs is.

    Its first result, the condition, and the region with the others.
    """
    region = node.subgraphs.region(body, [i if isinstance(i, Operand) else formals[i] for i in order])
    # the region created its inputs in the body's order, which differs from ours
    formal_of = dict(zip([i for i in order if not isinstance(i, Operand)], region.formals))
    region.formals = [formal_of[i] for i in range(len(formals))]
    going, *region.results = region.results
    return going, region


def _as_carried(node: OnnxNode, region: Region, carried: Sequence[Operand]) -> list[Value]:
    results = [item.value for item in region.results]
    for start, result in zip(carried, results):
        if start.dtype is not result.dtype or len(start.shape) != result.rank:
            raise node.unsupported(f"a value of it changes from {start.type} to {result.type}")
        for a, b in zip(start.shape, result.shape):
            if a != b:
                raise node.unsupported(f"the shape of a value of it changes from {start.type} to {result.type}")
    return results


def _while(
    node: OnnxNode, body: Any, count: Operand | None, condition: Operand | None, carried: Sequence[Operand]
) -> list[Operand]:
    """Carries the trip number, the condition, and the values."""
    formals: list[Formal] = [TRIP, TRUTH, *(item.type for item in carried)]
    going, region = _body(node, body, formals, range(len(formals)))
    results = _as_carried(node, region, carried)
    following = region.formals[0] + 1
    test = _condition_region(formals, None if count is None else TRIP)
    operands = [node.graph.constant(0, dtypes.i64), _start(node, condition), *(item.value for item in carried)]
    bound = [] if count is None else [_scalar(count.value.cast(dtypes.i64))]
    if bound:
        region.formals.append(region.frame.input(TRIP))
    captured = close([region], [[following, _scalar(going.value), *results]])
    for extra in captured:
        test.input(f"arg.{len(test.inputs)}", extra.shape, extra.dtype)
    return _call("while", [*operands, *bound, *captured], [test, region.graph], carried=len(operands))[2:]


def _start(node: OnnxNode, condition: Operand | None) -> Value:
    return node.graph.constant(True) if condition is None else _scalar(condition.value)


def _condition_region(formals: Sequence[Formal], bound: TensorType | None) -> Graph:
    """Whether the condition holds and the trip number is below the bound."""
    test = Graph("condition", assumes_equal=True)
    arguments = [test.input(f"arg.{i}", of.shape, of.dtype) for i, of in enumerate(formals)]
    going = arguments[1]
    if bound is not None:
        going = build.bitwise_and(going, arguments[0] < test.input(f"arg.{len(arguments)}", bound.shape, bound.dtype))
    test.output(going)
    return test


@onnx_op("Scan", since=9)
def scan(node: OnnxNode, *inputs: Operand) -> Sequence[Operand]:
    """Sequences may lie along any axis and go either way."""
    body = node.graph_attribute("body")
    sequences = node.integer("num_scan_inputs")
    count = len(inputs) - sequences
    stacked = len(body.output) - count
    if sequences < 1 or count < 0 or stacked < 0:
        raise node.wrong(f"expected 1 to {len(inputs)} scan inputs and {count} carried outputs, got {sequences}")
    state, scanned = inputs[:count], [item.value for item in inputs[count:]]
    axes = node.integers("scan_input_axes", (0,) * sequences)
    ways = node.integers("scan_input_directions", (0,) * sequences)
    rows = [_turned(_to_front(node, x, axis), way) for x, axis, way in zip(scanned, axes, ways, strict=True)]
    results = _scanned(node, body, state, rows)
    out_axes = node.integers("scan_output_axes", (0,) * stacked)
    out_ways = node.integers("scan_output_directions", (0,) * stacked)
    ordered = [
        Operand.of(_from_front(node, _turned(item.value, way), axis))
        for item, axis, way in zip(results[count:], out_axes, out_ways, strict=True)
    ]
    return [*results[:count], *ordered]


@onnx_op("Scan", until=8)
def scan_of_batches(node: OnnxNode, lengths: Operand | None, *inputs: Operand) -> Sequence[Operand]:
    """Every batch element by itself: axis 0 of all inputs is the batch, axis 1 of sequences the time."""
    if lengths is not None:
        raise node.unsupported("sequences of different lengths are not supported")
    body, sequences = node.graph_attribute("body"), node.integer("num_scan_inputs")
    ways = node.integers("directions", (0,) * sequences)
    count = len(inputs) - sequences
    batch = inputs[0].shape[0] if inputs and inputs[0].shape else None
    if sequences < 1 or count < 0 or len(body.output) < count or len(ways) != sequences:
        raise node.wrong(f"expected 1 to {len(inputs)} scan inputs with a direction each, got {sequences}")
    if not isinstance(batch, int) or not 1 <= batch <= MAX_UNROLLED_TRIPS:
        raise node.unsupported(f"expected a batch of 1 to {MAX_UNROLLED_TRIPS}, got {batch}")
    results = []
    for element in range(batch):
        operands = [Operand.of(item.value[element]) for item in inputs]
        state, rows = operands[:count], [_turned(item.value, way) for item, way in zip(operands[count:], ways)]
        results.append(_scanned(node, body, state, rows))
    return [Operand.of(shorthand.stack([item.value for item in parts])) for parts in zip(*results)]


def _scanned(node: OnnxNode, body: Any, state: Sequence[Operand], rows: Sequence[Value]) -> list[Operand]:
    """The body over the first axis of `rows`: what it carries at the end, then what it collected."""
    formals = [*(item.type for item in state), *(x.type.with_shape(x.shape[1:]) for x in rows)]
    region = node.subgraphs.region(body, formals)
    captured = close([region], [_as_carried(node, region, state)])
    operands = [*(item.value for item in state), *rows, *captured]
    numbers = {"carried": len(state), "sequences": len(rows), "length": rows[0].shape[0]}
    return _call("scan", operands, [region.graph], **numbers)


def _to_front(node: OnnxNode, x: Value, axis: int) -> Value:
    at = node.normal_axis(axis, x.rank)
    return x.transpose(at, *(i for i in range(x.rank) if i != at)) if at else x


def _from_front(node: OnnxNode, x: Value, axis: int) -> Value:
    at = node.normal_axis(axis, x.rank)
    order = [i + 1 for i in range(x.rank - 1)]
    order.insert(at, 0)
    return x.transpose(*order) if at else x


def _turned(x: Value, backwards: int) -> Value:
    return x[::-1] if backwards else x
