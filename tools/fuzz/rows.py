"""Batches: programs whose results have a row for each entry of a dim, which no other row has a part in.

Then a batch with its rows in another order gives the results in that order, and one row alone gives its results. The
reference says whether that is so: of a node while a program grows, of a whole program with the data that it runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.literal import Array
from tools.fuzz import oracle
from tools.fuzz.program import Binding

Pick = Callable[[Array, "int | None"], Array]
"""Some rows of an array along an axis; the array itself where it has none."""


def axis_of(value: Value, symbol: str) -> int | None:
    """The axis that has a row for each entry of the dim, None if no axis speaks of it. Raises ValueError if that is
    neither so nor so: `2*n` rows, or two axes of `n`."""
    spoken = [i for i, d in enumerate(value.shape) if not isinstance(d, int) and symbol in dims.symbols(d)]
    if len(spoken) > 1 or any(str(value.shape[i]) != symbol for i in spoken):
        raise ValueError(f"expected rows along one axis of {symbol}, got {value.shape}")
    return spoken[0] if spoken else None


def order(n: int) -> Array:
    """Another order of n rows: the first ones last, and from back to front."""
    return np.roll(np.arange(n), n // 2 + 1)[::-1]


def alone(n: int) -> list[int]:
    """Rows that are looked at alone."""
    return sorted({0, n // 2, n - 1})


def taking(places: Sequence[int] | Array) -> Pick:
    """What picks these rows."""
    return lambda array, axis: array if axis is None else np.take(array, np.asarray(places), axis)


def picks(binding: Binding, symbol: str) -> Iterator[tuple[Pick, Binding]]:
    """Batches made of a batch's rows: all in another order, and some alone, each with its binding."""
    yield taking(order(binding[symbol])), binding
    for i in alone(binding[symbol]):
        yield taking([i]), {**binding, symbol: 1}


def node_keeps(node: Node, operands: Sequence[Array], binding: Binding, symbol: str) -> bool:
    """Whether rows of a node's results come of the same rows of its operands, with floats that nothing else has."""
    random = np.random.default_rng(len(operands))
    mixed = [
        random.normal(size=a.shape).astype(a.dtype) if dtypes.of(a.dtype).is_float else np.asarray(a) for a in operands
    ]
    try:
        sides = [axis_of(v, symbol) for v in node.inputs]
        ends = [axis_of(v, symbol) for v in node.outputs]
    except ValueError:
        return False
    whole = oracle.run_node(node, mixed, {}, binding)
    for pick, at in picks(binding, symbol):
        results = oracle.run_node(node, [pick(a, axis) for a, axis in zip(mixed, sides)], {}, at)
        if not all(_about(pick(w, axis), g) for w, g, axis in zip(whole, results, ends)):
            return False
    return True


def of_program(
    graph: Graph, inputs: Mapping[str, Array], params: Mapping[str, Array], binding: Binding, symbol: str
) -> dict[str, int] | None:
    """The outputs that keep rows apart, by name, with the axis of each; None if inputs have no such rows."""
    try:
        sides = {v.name: axis_of(v, symbol) for v in graph.inputs}
    except ValueError:
        return None
    axes = {}
    for name, value in graph.outputs.items():
        try:
            axis = axis_of(value, symbol)
        except ValueError:
            continue
        if axis is not None:
            axes[name] = axis
    whole = oracle.run(graph, inputs, params, binding)
    for pick, at in picks(binding, symbol):
        if not axes:
            return None
        results = oracle.run(graph, picked(inputs, sides, pick), params, at)
        axes = {
            name: axis
            for name, axis in axes.items()
            if _about(pick(whole[graph.outputs[name]], axis), results[graph.outputs[name]])
        }
    return axes


def picked(inputs: Mapping[str, Array], sides: Mapping[str, int | None], pick: Pick) -> dict[str, Array]:
    """The inputs with the rows that are picked."""
    return {name: np.array(pick(array, sides[name]), order="C") for name, array in inputs.items()}


def _about(a: Array, b: Array) -> bool:
    """Whether arrays are the same but for the order in which the reference's library adds."""
    if a.shape != b.shape:
        return False
    if not dtypes.of(a.dtype).is_float:
        return bool((a == b).all())
    wide, other = a.astype(np.float64), b.astype(np.float64)
    return bool(np.allclose(wide, other, rtol=1e-5, atol=1e-6, equal_nan=True))
