"""Programs in arrays that are larger than what counts in them (`passes/padding.py`), with garbage in all the rest.

The padded graph runs node by node, as the reference does; what counts of its results is compared with what the program
gives at the sizes themselves. Half of the programs go through the passes of a backend first.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from rlx.backends.size_buckets import bucket
from rlx.errors import RlxError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.ir.verify import verify
from rlx.passes.padding import PaddedGraph, padded
from rlx.passes.pipeline import layout, optimise, standard
from rlx.passes.specialise import assume_equal
from tools.fuzz.program import Binding, Program

NAME = "padded"
"""In place of a device."""


def runs(program: Program, binding: Binding) -> list[dict[str, Array]]:
    """What counts of the outputs at these sizes, once for each set of dims that may be padded, and larger arrays."""
    found_runs = []
    for symbols in {frozenset({name}) for name in binding} | {frozenset(binding)}:
        found = padded(_ready(program), symbols)
        if found is None or any(binding[name] < 1 for name in found.symbols):
            continue
        verify(found.graph)
        for sizes in _larger(found, binding, program.seed):
            found_runs.append(run(found, *program.arrays(binding), binding, sizes, program.seed))
    return found_runs


def refusals(program: Program) -> dict[str, str]:
    """Dims that cannot be padded, and why."""
    from rlx.passes.padding import reasons_of

    return reasons_of(_ready(program), program.graph.symbols)


def _ready(program: Program) -> Graph:
    if program.seed % 2:
        return assume_equal(program.graph)
    return optimise(program.graph, [*standard(), *layout()])[0]


def _larger(found: PaddedGraph, binding: Binding, seed: int) -> list[Binding]:
    chance = random.Random(f"sizes {seed} {sorted(binding.items())}")
    wanted = [
        {name: bucket(n) if name in found.symbols else n for name, n in binding.items()},
        {name: n + chance.choice((1, 2, 7)) if name in found.symbols else n for name, n in binding.items()},
    ]
    fits = []
    for sizes in wanted:
        try:
            found.graph.bind(sizes)
        except RlxError:
            continue  # dims that hang together
        fits.append(sizes)
    return fits


def run(
    found: PaddedGraph,
    inputs: Mapping[str, Array],
    params: Mapping[str, Array],
    binding: Binding,
    sizes: Binding,
    seed: int = 0,
) -> dict[str, Array]:
    """What counts of the outputs by name, of arrays of these sizes with garbage behind the inputs."""
    given = {}
    count = len(found.graph.inputs) - len(found.sizes)
    for number, value in enumerate(found.graph.inputs[:count]):
        shape = tuple(dims.evaluate(d, sizes) for d in value.shape)
        given[value.name] = garbage(shape, value.dtype, seed + number)
        given[value.name][tuple(slice(n) for n in inputs[value.name].shape)] = inputs[value.name]
    for value, size in zip(found.graph.inputs[count:], found.sizes):
        given[value.name] = np.array(dims.evaluate(size, binding), np.int64)
    with np.errstate(all="ignore"):
        results = evaluate(found.graph, given, params, sizes)
    outputs = {}
    for result, axes, (name, value) in zip(results, found.axes, found.graph.outputs.items()):
        parts = [d for of, whole in zip(axes, value.shape) for d in (of or (whole,))]
        split = result.reshape([dims.evaluate(d, sizes) for d in parts])
        kept = split[tuple(slice(dims.evaluate(d, binding)) for d in parts)]
        outputs[name] = np.asarray(kept).reshape([dims.evaluate(d, binding) for d in value.shape])
    return outputs


def garbage(shape: tuple[int, ...], dtype: DType, seed: int) -> Array:
    """NaN, infinities and numbers at the ends of the dtype."""
    chance = np.random.default_rng(seed)
    if dtype is dtypes.bool_:
        return chance.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        info = ml_dtypes.iinfo(dtype.numpy)
        ends = np.array([info.min, info.max, info.max - 1, 1], dtype.numpy)
    else:
        most = float(ml_dtypes.finfo(dtype.numpy).max) if not dtype.is_complex else 1e30
        with np.errstate(all="ignore"):
            ends = np.array([np.nan, np.inf, -np.inf, most, -most]).astype(dtype.numpy)
    return np.asarray(ends[chance.integers(0, len(ends), shape)])
