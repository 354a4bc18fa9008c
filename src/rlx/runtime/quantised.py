"""Graphs with products of bytes, as `precision="int8"` compiles them, or of floats of 8 bits (`"f8"`), and the ranges
that runs with examples give.

A calibration is a list of inputs, each as a run takes them. The graph runs once with each, in f32 and NumPy, and the
least and the greatest number of every operand that becomes bytes are its range. Ranges are constants of the graph that
is compiled: whatever tells programs apart by their graphs tells calibrations apart.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.base import QUANTISED
from rlx.errors import InputError, OptionError, RlxError

if TYPE_CHECKING:
    from rlx.ir.graph import Graph, Node, Value
    from rlx.ir.literal import Array
    from rlx.ir.type import TensorType
    from rlx.passes.quantise import Range
    from rlx.runtime.balance import Seen

Place = tuple[int, int]
"""Of a value in a graph: its node, and which result."""
Calibration = Sequence[Any]
"""Inputs by name, or in order, for each of several runs."""


def checked(calibration: Calibration, precision: str) -> tuple[Any, ...]:
    """A calibration that can be one. Raises OptionError."""
    if precision not in QUANTISED:
        expected = " or ".join(map(repr, QUANTISED))
        raise OptionError(f"[precision] expected precision={expected} with a calibration, got {precision!r}")
    if not isinstance(calibration, (list, tuple)):
        wanted = "expected a list of inputs as calibration, each as a run takes them"
        raise OptionError(f"[precision] {wanted}, got {type(calibration).__name__}")
    if not calibration:
        wanted = "expected the inputs of at least one run as calibration"
        raise OptionError(f"[precision] {wanted}, got none: without calibration ranges are those of each run")
    return tuple(calibration)


def digest_of(calibration: Calibration) -> str:
    """What tells this calibration from others before a graph is at hand. Raises OptionError."""
    hasher = hashlib.blake2b(digest_size=16)
    for number, inputs in enumerate(calibration):
        if not isinstance(inputs, (Mapping, list, tuple)):
            wanted = "expected a mapping of names to arrays or a list of arrays"
            raise OptionError(f"[precision] {wanted} as calibration {number}, got {type(inputs).__name__}")
        named = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
        for name, value in named:
            try:
                array = np.asarray(value, order="C")
            except (TypeError, ValueError) as error:
                wanted = f"expected an array as {name!r} of calibration {number}"
                raise OptionError(f"[precision] {wanted}, got {type(value).__name__}: {error}") from None
            hasher.update(f"{number} {name!r} {array.dtype} {array.shape}\0".encode())
            hasher.update(array.tobytes() if array.dtype != object else repr(value).encode())
    return hasher.hexdigest()


def quantised(
    graph: Graph, calibration: Calibration = (), disable: frozenset[str] = frozenset(), precision: str = "int8"
) -> Graph:
    """The graph with products of bytes, or in the format of another such precision, with ranges of the calibration, or
    of each run's data if there is none.

    Raises InputError for inputs that are not those of the graph, and for ranges that are not finite.
    """
    ready = _raised(graph, disable)
    return _with_ranges(
        ready, graph, ranges_of(ready, calibration, precision) if calibration else {}, disable, precision
    )


def check_unchanged(calibration: Calibration, digest: str) -> None:
    """Raises InputError for arrays that were written to since their digest was taken, by which programs are kept."""
    if digest_of(calibration) != digest:
        expected = "expected the calibration as it was when it was given"
        raise InputError(f"[precision] {expected}, got arrays that were written to since")


def _with_ranges(
    ready: Graph, graph: Graph, ranges: Mapping[str, Range], disable: frozenset[str], precision: str
) -> Graph:
    from rlx.passes.driver import Context, run_passes
    from rlx.passes.quantise import FORMATS, Quantise

    made = run_passes(ready, [Quantise(ranges, FORMATS[precision])], Context(disable, stop_at=-1))
    if made is not graph:
        made.anew = graph.anew and partial(_anew, graph.anew, ranges, disable, precision)
    return made


def _anew(
    make: Any, ranges: Mapping[str, Range], disable: frozenset[str], precision: str, sizes: Mapping[str, int]
) -> Graph:
    graph = make(sizes)
    return _with_ranges(_raised(graph, disable), graph, ranges, disable, precision)


def _raised(graph: Graph, disable: frozenset[str]) -> Graph:
    """The graph as ops that say what they mean, products of one operand as one. Bisecting a miscompile (RLX_STOP_AT)
    leaves out rewrites that keep the meaning, and none of these, which other numbers follow from."""
    from rlx.passes.pipeline import canonicalise, optimise, raise_composites

    if not graph.assumes_equal and _may_broadcast(graph):  # whether dims are equal is left to its compiler
        return graph
    return optimise(graph, [*canonicalise(lambda node: True), *raise_composites()], disable, stop_at=-1)[0]


def _may_broadcast(graph: Graph) -> bool:
    """Whether open dims of a graph are equal in some runs, and 1 in others."""
    if any(equality.spreads for equality in graph.equalities):
        return True
    dims = (dim for node in graph.nodes for of in node.types for dim in of.shape if not isinstance(dim, int))
    bodies = (body for node in graph.nodes for body in node.regions)
    return any("broadcast(" in str(dim) for dim in dims) or any(map(_may_broadcast, bodies))


def ranges_of(graph: Graph, calibration: Calibration, precision: str = "int8") -> dict[str, Range]:
    """The ranges of operands that become bytes, or what else a precision says, by the names of their products. Raises
    InputError."""
    from rlx.backends.cpu.numpy_kernels import KERNELS
    from rlx.ir.interpreter import evaluate
    from rlx.passes.quantise import FORMATS, Range, channels_of, products
    from rlx.runtime.balance import Seen

    to = FORMATS[precision]

    multiply: dict[Place, list[Node]] = {}
    for node in products(graph, to):
        multiply.setdefault(_place(node.inputs[0]), []).append(node)
    fixed = {_place(node.inputs[1]) for nodes in multiply.values() for node in nodes}
    axes = {at: {channels_of(node) for node in nodes} for at, nodes in multiply.items()}
    seen: dict[Place, Seen] = {}
    held: dict[Place, Array] = {}

    def watch(node: Node, results: tuple[Array, ...]) -> None:
        for index, array in enumerate(results):
            at = (id(node), index)
            if at in multiply:
                of = Seen.of(_finite(array, node), next(iter(axes[at])))
                seen[at] = seen[at].and_(of) if at in seen else of
            if at in fixed:
                held[at] = array

    weights = _weights(graph)
    for number, inputs in enumerate(calibration):
        named, binding = _taken(graph, inputs, number)
        try:
            evaluate(graph, named, weights, binding, watch, KERNELS)
        except RlxError as error:
            raise InputError(f"[precision] expected to run the model with calibration {number}, got {error}") from None
    held |= {_place(value): weights[value.name] for value in graph.params if _place(value) in fixed}
    ranges = {}
    for at, of in seen.items():
        balances = to.is_integer and len(axes[at]) == 1  # floats have steps of each number's own size
        found = _range_of(of, multiply[at], held) if balances else Range(*of.ends)
        ranges.update({node.name: found for node in multiply[at] if found is not None})
    return ranges


def _place(value: Value) -> Place:
    return id(value.node), value.index


def _range_of(seen: Seen, products: Sequence[Node], weights: Mapping[Place, Array]) -> Range | None:
    """The range of an operand of these products. Where it is too coarse, as few channels are much wider than others,
    channels have shares of it; where that helps too little, rows of products have ranges of their own: None."""
    from rlx.ops.convolution import Conv
    from rlx.passes.quantise import Range, by_channels
    from rlx.runtime.balance import NOISY, noise, shares

    matrices = [by_channels(node, weights[_place(node.inputs[1])]) for node in products]
    matrices = [matrix for matrix in matrices if np.isfinite(matrix).all()]
    admitted = NOISY * len(matrices)
    if not noise(np.ones_like(seen.low), seen, matrices) > admitted:
        return Range(*seen.ends)
    parts = shares(seen, matrices)
    if not any(isinstance(node.op, Conv) for node in products) and (
        parts is None or noise(parts, seen, matrices) > admitted
    ):
        return None
    if parts is None:
        return Range(*seen.ends)
    return Range(float((seen.low / parts).min()), float((seen.high / parts).max()), tuple(parts.tolist()))


def _finite(array: Array, node: Node) -> Array:
    """The array. Raises InputError for one with numbers that are not finite."""
    low, high = float(np.min(array, initial=0.0)), float(np.max(array, initial=0.0))
    if not (math.isfinite(low) and math.isfinite(high)):
        place = node.source or node.name
        raise InputError(
            f"[precision] expected finite numbers in a calibration, got {low} to {high}, at node {place!r}"
        )
    return array


def _taken(graph: Graph, inputs: Any, number: int) -> tuple[dict[str, Array], dict[str, int]]:
    """The inputs of one run by name, with states of zeros, and the dims that they give. Raises InputError."""
    from rlx.runtime.signature import Signature

    signature = Signature(graph)
    if signature.random is not None:
        signature.random.seed(number)
    try:
        arrays = signature.arrays(inputs)
        states = {name: np.zeros(_known(name, of), of.dtype.numpy) for name, of in signature.states.items()}
        arrays = signature.with_states(arrays, states)
        return dict(zip(signature.types, arrays)), signature.binding(arrays, graph.data)
    except RlxError as error:
        raise InputError(
            f"[precision] expected inputs of {graph.name!r} as calibration {number}, got {error}"
        ) from None


def _known(name: str, of: TensorType) -> tuple[int, ...]:
    """The shape of a state. Raises InputError where an input decides it."""
    shape = tuple(d for d in of.shape if isinstance(d, int))
    if len(shape) != of.rank:
        raise InputError(f"expected states of known sizes in a calibration, got {name!r} of {of}")
    return shape


def _weights(graph: Graph) -> dict[str, Array]:
    from rlx import mapped

    missing = [value.name for value in graph.params if value.name not in graph.data]
    if missing:
        raise InputError(
            f"[precision] expected weights in the graph that a calibration runs, got none of {missing[0]!r}"
        )
    return {name: mapped.private(array) for name, array in graph.data.items()}
