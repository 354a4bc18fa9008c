"""A graph in jax, op by op: a function for every primitive that is not elementwise. Dims are known here."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlx.backends.op_by_op import Lower, Table
from rlx.backends.xla import exact_rounding, fourier, scalar, windows
from rlx.backends.xla.named_scopes import node_scope, region_scope
from rlx.codegen.scalar import emulation as emulation
from rlx.errors import ShapeError, UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.ir.graph import Graph, Node
from rlx.ir.interpreter import bind_op
from rlx.ir.op import Constant, Elementwise, Input, Op, Param
from rlx.ops.reduce import identity

TABLE = Table(windows.TABLE | fourier.TABLE)
lowers = TABLE.lowers


def supported(op: Op) -> bool:
    return isinstance(op, (Elementwise, Input, Param, Constant)) or op.name in TABLE or op.name in (*CONTROL, "if")


def run(
    graph: Graph,
    inputs: Mapping[str, Any],
    params: Mapping[str, Any],
    binding: Mapping[str, int],
    flags: list[Any] | None = None,
) -> list[Any]:
    """The outputs of the graph, of jax values; called while jax traces. All values are in their carriers.

    flags   gets a bool for each of `shape_errors`, whether that side was asked for; None inside of a side or a loop
    """
    values: dict[tuple[int, int], Any] = {}
    exact = exact_rounding.truncated_sums(graph)
    for number, node in enumerate(graph.nodes):
        operands = [values[(id(v.node), v.index)] for v in node.inputs]
        with node_scope(number):
            if node.op.name == "if":
                made: Any = _if(node, operands, params, binding, flags)
            else:
                made = _node(node, operands, inputs, params, binding, id(node) in exact)
        for i, value in enumerate(made if isinstance(made, (tuple, list)) else (made,)):
            values[(id(node), i)] = value
    return [values[(id(v.node), v.index)] for v in graph.outputs.values()]


def _node(
    node: Node,
    operands: list[Any],
    inputs: Mapping[str, Any],
    params: Mapping[str, Any],
    binding: Mapping[str, int],
    exact: bool,
) -> Any:
    import jax.numpy as jnp

    op = node.op
    if isinstance(op, Input):
        return inputs[node.name]
    if isinstance(op, Param):
        return params[node.name]
    bound = bind_op(op, binding)
    if isinstance(bound, Constant):
        return _held(bound.reference())
    if isinstance(bound, Elementwise):
        leaves = [Expr("operand", v.dtype, (), i) for i, v in enumerate(node.inputs)]
        made = scalar.evaluate(bound.scalar(*leaves), operands, exact)
        shape = jnp.broadcast_shapes(*(a.shape for a in operands))
        return jnp.broadcast_to(made, shape).astype(emulation.carrier(node.types[0].dtype).numpy)
    if bound.name in CONTROL:
        return CONTROL[bound.name](bound, node, operands, params, binding)
    if bound.name not in TABLE:
        raise UnsupportedOp(f"[{bound.name}] XLA has no lowering for it, at node {node.source or node.name!r}")
    results = TABLE[bound.name](bound, *operands)
    if not any(emulation.is_emulated(of.dtype) for of in node.types):
        return results
    each = results if isinstance(results, tuple) else (results,)
    return tuple(_fitted(bound, made, of.dtype) for made, of in zip(each, node.types))


def _fitted(op: Op, made: Any, dtype: DType) -> Any:
    """A result in its carrier as the dtype has it; of nothing, extremes are those of the dtype."""
    import jax.numpy as jnp

    combine = getattr(op, "combine", None)
    if combine in ("min", "max"):
        end = np.asarray(identity(combine, dtype.numpy)).astype(made.dtype)
        made = jnp.maximum(made, end) if combine == "max" else jnp.minimum(made, end)
    return scalar.fitted(made, dtype)


def _held(array: Any) -> Any:
    """A constant, in its carrier. Floats are hidden from XLA's algebra: it would drop `+ 0`, and join the constants of
    `(x * 1e30) * 1e30` to an infinity."""
    import jax.numpy as jnp
    from jax import lax

    held = jnp.asarray(array.astype(emulation.carrier(dtypes.of(array.dtype)).numpy, copy=False))
    return lax.optimization_barrier(held) if jnp.issubdtype(held.dtype, jnp.inexact) else held


# shapes


@lowers("reshape")
def _reshape(op: Any, x: Any) -> Any:
    return x.reshape(op.shape)


@lowers("transpose")
def _transpose(op: Any, x: Any) -> Any:
    return x.transpose(op.permutation)


@lowers("broadcast_to")
def _broadcast(op: Any, x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.broadcast_to(x, op.shape)


@lowers("slice")
def _slice(op: Any, x: Any) -> Any:
    parts = zip(op.starts, op.stops, op.steps)
    return x[tuple(slice(a, None if b < 0 else b, s) for a, b, s in parts)]


@lowers("frames")
def _frames(op: Any, x: Any) -> Any:
    axis = op.axis % x.ndim
    count = max((x.shape[axis] - op.length) // op.step + 1, 0)
    places = np.arange(count)[:, None] * op.step + np.arange(op.length)
    return x.take(places, axis)


@lowers("pad")
def _pad(op: Any, x: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    return lax.pad(x, jnp.asarray(np.array(op.value).astype(x.dtype)), [(a, b, 0) for a, b in zip(op.low, op.high)])


@lowers("dilate")
def _dilate(op: Any, x: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, max(s - 1, 0) if d else 0) for s, d in zip(op.steps, x.shape)])


@lowers("concat")
def _concat(op: Any, *parts: Any) -> Any:
    import jax.numpy as jnp

    return jnp.concatenate(parts, op.axis)


@lowers("iota", "dims_tensor")
def _known(op: Any) -> Any:
    return _held(op.reference())


# sums


@lowers("dot_general")
def _dot(op: Any, x: Any, y: Any) -> Any:
    from jax import lax

    made = x.dtype if op.sum_dtype is None else emulation.carrier(op.sum_dtype).numpy
    wide = dtypes.accumulator(dtypes.of(made)).numpy
    if op.sum_dtype is not None:
        x, y = x.astype(made), y.astype(made)
    axes = ((op.lhs_contract, op.rhs_contract), (op.lhs_batch, op.rhs_batch))
    return lax.dot_general(x, y, axes, precision="highest", preferred_element_type=wide).astype(made)


@lowers("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
def _reduce(op: Any, x: Any) -> Any:
    import jax.numpy as jnp

    of = dtypes.of(x.dtype)
    wide = dtypes.accumulator(of).numpy if op.combine in ("add", "mul") else x.dtype
    table: dict[str, Lower] = {"add": jnp.sum, "mul": jnp.prod, "max": jnp.max, "min": jnp.min}
    how = table[op.combine]
    axes = tuple(a % x.ndim for a in op.axes) if op.axes else ()
    kept = {"initial": identity(op.combine, x.dtype)} if op.combine in ("max", "min") else {"dtype": wide}
    return how(x, axis=axes, keepdims=op.keepdims, **kept).astype(x.dtype)


def _keys(x: Any, nan_is_least: bool = False) -> Any:
    """Integers in the order of x, NaN behind all or before all: XLA compares subnormal floats as zeros."""
    import jax.numpy as jnp
    from jax import lax

    of = dtypes.of(x.dtype)
    if not of.is_float:
        return x
    integers: Any = np.dtype(f"i{of.itemsize}")
    most: Any = np.array(np.iinfo(integers).max, integers)
    bits = lax.bitcast_convert_type(x, integers)
    size = bits & most
    infinity = np.array(np.inf, of.numpy).view(integers)
    nan = -most if nan_is_least else most
    return jnp.where(size > infinity, nan, jnp.where(bits < 0, -size, size))


@lowers("argmax", "argmin")
def _argument(op: Any, x: Any) -> Any:
    import jax.numpy as jnp

    pick = jnp.argmax if op.combine == "max" else jnp.argmin
    keys = _keys(x, nan_is_least=op.combine == "min")
    if op.last:
        made = x.shape[op.axis] - 1 - pick(jnp.flip(keys, op.axis), op.axis, keepdims=op.keepdims)
    else:
        made = pick(keys, op.axis, keepdims=op.keepdims)
    return made.astype(np.int64)


@lowers("cumsum", "cumprod", "cummax", "cummin")
def _running(op: Any, x: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    axis = op.axis % x.ndim
    wide = x.astype(dtypes.accumulator(dtypes.of(x.dtype)).numpy) if op.combine in ("add", "mul") else x
    join = {"add": jnp.add, "mul": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}[op.combine]
    made = lax.associative_scan(join, wide, reverse=op.reverse, axis=axis) if x.shape[axis] else wide
    if op.exclusive and x.shape[axis]:
        first = jnp.full(
            [1 if i == axis else d for i, d in enumerate(x.shape)], identity(op.combine, x.dtype), made.dtype
        )
        inner = lax.slice_in_dim(made, 1, None, axis=axis) if op.reverse else lax.slice_in_dim(made, 0, -1, axis=axis)
        made = jnp.concatenate([inner, first] if op.reverse else [first, inner], axis)
    return made.astype(x.dtype)


@lowers("top_k")
def _top(op: Any, x: Any) -> Any:
    import jax.numpy as jnp

    axis = op.axis % x.ndim
    keys = _keys(x)
    if op.largest:  # sorting the axis backwards, stably, and turning the result around keeps equals in their order
        order = x.shape[axis] - 1 - jnp.flip(jnp.argsort(jnp.flip(keys, axis), axis, stable=True), axis)
    else:
        order = jnp.argsort(keys, axis, stable=True)
    kept = order.take(np.arange(dims.evaluate(op.k, {})), axis)
    return jnp.take_along_axis(x, kept, axis), kept.astype(np.int64)


# places


def _places(indices: Any, extent: int) -> Any:
    """Indices as i64, those below zero from the back."""
    import jax.numpy as jnp

    if jnp.issubdtype(indices.dtype, jnp.unsignedinteger):
        indices = jnp.minimum(indices, np.array(np.iinfo(np.int64).max).astype(indices.dtype))
    wide = indices.astype(np.int64)
    return jnp.where(wide < 0, wide + extent, wide)


def _clipped(indices: Any, extent: int) -> Any:
    import jax.numpy as jnp

    return jnp.clip(_places(indices, extent), 0, max(extent - 1, 0))


@lowers("gather")
def _gather(op: Any, x: Any, indices: Any) -> Any:
    import jax.numpy as jnp

    axis = op.axis % x.ndim
    if x.shape[axis] == 0:
        return jnp.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    return x.take(_clipped(indices, x.shape[axis]), axis, mode="clip")


def _grid(shape: tuple[int, ...]) -> list[Any]:
    import jax.numpy as jnp

    return [jnp.asarray(g) for g in np.indices(shape, sparse=True)]


@lowers("gather_elements")
def _gather_elements(op: Any, x: Any, indices: Any) -> Any:
    import jax.numpy as jnp

    axis = op.axis % x.ndim
    if x.shape[axis] == 0 or 0 in indices.shape:
        return jnp.zeros(indices.shape, x.dtype)
    places = _grid(indices.shape)
    places[axis] = _clipped(indices, x.shape[axis])
    return x[tuple(places)]


@lowers("gather_nd")
def _gather_nd(op: Any, x: Any, indices: Any) -> Any:
    import jax.numpy as jnp

    lead, depth = op.batch_dims, indices.shape[-1]
    covered = x.shape[lead : lead + depth]
    if 0 in covered:
        return jnp.zeros((*indices.shape[:-1], *x.shape[lead + depth :]), x.dtype)
    grids = np.ix_(*(np.arange(d) for d in indices.shape[:lead])) if lead else ()
    parts: list[Any] = [jnp.asarray(g.reshape(*g.shape, *([1] * (indices.ndim - 1 - lead)))) for g in grids]
    parts += [_clipped(indices[..., i], d) for i, d in enumerate(covered)]
    return x[tuple(parts)] if parts else jnp.broadcast_to(x, (*indices.shape[:-1], *x.shape))


def _scattered(op: Any, x: Any, places: tuple[Any, ...], updates: Any) -> Any:
    """Updates to places outside fall away. Of several to one place without a combination, the last stays."""
    at = x.at[places]
    if op.combine is None:
        return at.set(updates, mode="drop")
    how = {"add": at.add, "mul": at.multiply, "min": at.min, "max": at.max}[op.combine]
    return how(updates, mode="drop")


def _outside(places: Any, extent: int) -> Any:
    """Wild places as one behind the end, which is dropped; a negative one would count from the back once more."""
    import jax.numpy as jnp

    wide = _places(places, extent)
    return jnp.where((wide < 0) | (wide >= extent), extent, wide)


@lowers("scatter_elements")
def _scatter_elements(op: Any, x: Any, indices: Any, updates: Any) -> Any:
    axis = op.axis % x.ndim
    if 0 in indices.shape or 0 in x.shape:
        return x
    places = _grid(indices.shape)
    places[axis] = _outside(indices, x.shape[axis])
    return _scattered(op, x, tuple(places), updates)


@lowers("update_slice")
def _update_slice(op: Any, x: Any, rows: Any, start: Any) -> Any:
    """Where there is no room, rows are what is there: the whole of x is only ever written in part."""
    import jax.numpy as jnp
    from jax import lax

    at = op.axis % x.ndim
    room = x.shape[at] - rows.shape[at]
    if room < 0:
        return x
    first = start.astype(jnp.int64)
    fits = (first >= 0) & (first <= room)
    starts = [jnp.zeros((), jnp.int64)] * x.ndim
    starts[at] = jnp.clip(first, 0, room)
    return lax.dynamic_update_slice(x, jnp.where(fits, rows, lax.dynamic_slice(x, starts, rows.shape)), starts)


@lowers("scatter_nd")
def _scatter_nd(op: Any, x: Any, indices: Any, updates: Any) -> Any:
    if 0 in updates.shape or 0 in x.shape:
        return x
    places = tuple(_outside(indices[..., i], x.shape[i]) for i in range(indices.shape[-1]))
    return _scattered(op, x, places, updates)


# control


def _if(
    node: Node, operands: list[Any], params: Mapping[str, Any], binding: Mapping[str, int], flags: list[Any] | None
) -> Any:
    """A side that does not fit at these dims cannot be traced: the other one is the program, and a flag tells."""
    from jax import lax

    wrong = [_shape_error(side, binding) for side in node.regions]
    if not any(wrong):
        return tuple(lax.cond(operands[0], *(_region(node, i, params, binding) for i in (0, 1)), *operands[1:]))
    failed = wrong[0] or wrong[1]
    assert failed is not None  # one of them is there
    if all(wrong) or flags is None:
        raise failed
    taken = 1 if wrong[0] else 0
    flags.append(operands[0] if taken else ~operands[0])
    names = [v.name for v in node.regions[taken].inputs]
    with region_scope(taken):
        return tuple(run(node.regions[taken], dict(zip(names, operands[1:])), params, binding, flags))


def _shape_error(side: Graph, binding: Mapping[str, int]) -> ShapeError | None:
    try:
        side.bind(binding)
    except ShapeError as error:
        return error
    return None


def shape_errors(graph: Graph, binding: Mapping[str, int]) -> list[ShapeError]:
    """What is wrong at these dims with sides of conditionals that a run may still ask for, in the order of `flags`."""
    found: list[ShapeError] = []
    for node in graph.nodes:
        if node.op.name != "if":
            continue
        wrong = [_shape_error(side, binding) for side in node.regions]
        failed = wrong[0] or wrong[1]
        if failed is not None:
            found += [failed, *shape_errors(node.regions[1 if wrong[0] else 0], binding)]
    return found


def _while(op: Any, node: Node, operands: list[Any], params: Mapping[str, Any], binding: Mapping[str, int]) -> Any:
    import jax.numpy as jnp
    from jax import lax

    test, body = (_region(node, i, params, binding) for i in (0, 1))
    rest = operands[op.carried :]

    def goes_on(state: Any) -> Any:
        trip, carried = state
        more = test(*carried, *rest)[0]
        return more if op.limit is None else more & (trip < op.limit)

    start = (jnp.zeros((), np.int64), tuple(operands[: op.carried]))
    return lax.while_loop(goes_on, lambda state: (state[0] + 1, tuple(body(*state[1], *rest))), start)[1]


def _scan(op: Any, node: Node, operands: list[Any], params: Mapping[str, Any], binding: Mapping[str, int]) -> Any:
    from jax import lax

    body = _region(node, 0, params, binding)
    first, behind = op.carried, op.carried + op.sequences
    rest = operands[behind:]

    def step(carried: Any, rows: Any) -> Any:
        made = body(*carried, *rows, *rest)
        return tuple(made[:first]), tuple(made[first:])

    length = dims.evaluate(op.length, binding)
    start, rows = tuple(operands[:first]), tuple(operands[first:behind])
    last, stacked = lax.scan(step, start, rows, length=length, reverse=op.reverse)
    return (*last, *stacked)


CONTROL: dict[str, Lower] = {"while": _while, "scan": _scan}


def _region(node: Node, number: int, params: Mapping[str, Any], binding: Mapping[str, int]) -> Lower:
    graph = node.regions[number]
    names = [v.name for v in graph.inputs]

    def inside(*operands: Any) -> tuple[Any, ...]:
        with region_scope(number):
            return tuple(run(graph, dict(zip(names, operands)), params, binding))

    return inside


def unsupported_nodes(graph: Graph) -> list[Node]:
    """Nodes without a lowering, those of regions too."""
    found = [node for node in graph.nodes if not supported(node.op)]
    inner = itertools.chain.from_iterable(unsupported_nodes(r) for node in graph.nodes for r in node.regions)
    return [*found, *inner]
