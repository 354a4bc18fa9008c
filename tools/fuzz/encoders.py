"""Small encoders whose products become products of bytes, by ranges of a calibration or of rows, as `precision="int8"`
makes them: programs of nothing but such nets, a part of those of every device.

What is compared is the graph with bytes, which the reference runs too. Half of them also have in 16 bits what GPUs with
matrix units have so, so that the reference rounds where a device does.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.passes.driver import Context, run_passes
from rlx.passes.narrow_norms import NarrowNorms
from rlx.passes.narrow_rows import NarrowRows
from rlx.passes.precision import Precision, policy_of
from rlx.runtime.quantised import quantised
from tools.fuzz.generate import Maker

WIDTHS = (16, 16, 32, 48, 64)
"""Features, of which products of bytes need whole pieces,"""
OTHERS = (17, 24, 40)
"""and such as are none."""
ACTIVATIONS = ("gelu", "gelu", "relu", "silu")


def net(make: Maker) -> None:
    """One or two layers: attention, norms before or behind, a feed-forward part; or that alone."""
    choose = make.random.choice
    make.kind = choose(("real", "real", "whole"))
    width = choose(WIDTHS if make.chance(0.85) else OTHERS)
    batch: Dim = dims.symbol(make.symbols[0]) if make.symbols and make.chance(0.6) else choose((1, 1, 2, 3))
    rows: Dim = dims.symbol(make.symbols[-1]) if len(make.symbols) > 1 else choose((1, 3, 8, 9, 17, 33, 70))
    x = make.leaf((batch, rows, width), dtypes.f32, what="input")
    before = make.chance(0.4)
    for _ in range(choose((1, 1, 2))):
        if make.chance(0.6):
            x = _added(make, x, _mixed(make, _normed(make, x) if before else x), not before)
        x = _added(make, x, _fed(make, _normed(make, x) if before else x), not before)
    if make.chance(0.2):
        _product(make, x, choose((16, 24, 33)))


def _product(make: Maker, x: Value, columns: int) -> Value:
    """With a weight, and mostly a bias."""
    depth = x.shape[-1]
    assert isinstance(depth, int)
    weight = make.leaf((depth, columns), dtypes.f32, what="param")
    y = make.add("mul", make.add("matmul", x, weight), 1.0 / depth)
    return make.add("add", y, make.leaf((columns,), dtypes.f32, what="param")) if make.chance(0.7) else y


def _normed(make: Maker, x: Value) -> Value:
    vectors = [make.leaf((x.shape[-1],), dtypes.f32, what="param") for _ in range(2)]
    return make.add("layer_norm", x, *vectors, axis=-1, epsilon=1e-3)


def _added(make: Maker, x: Value, y: Value, normed: bool) -> Value:
    """The sum of both, or the second alone, and a norm behind it."""
    total = make.add("add", x, y) if make.chance(0.85) else y
    return _normed(make, total) if normed and make.chance(0.9) else total


def _mixed(make: Maker, x: Value) -> Value:
    batch, rows, width = x.shape
    assert isinstance(width, int)
    heads = make.random.choice([h for h in (1, 2, 4) if width % (8 * h) == 0] or [1])
    parts = []
    for _ in range(3):
        part = make.add("reshape", _product(make, x, width), shape=(batch, rows, heads, width // heads))
        parts.append(make.add("transpose", part, permutation=(0, 2, 1, 3)))
    mixed = make.add("transpose", make.add("attention", *parts), permutation=(0, 2, 1, 3))
    return _product(make, make.add("reshape", mixed, shape=(batch, rows, width)), width)


def _fed(make: Maker, x: Value) -> Value:
    width = x.shape[-1]
    assert isinstance(width, int)
    hidden = make.add(make.random.choice(ACTIVATIONS), _product(make, x, make.random.choice((width, 2 * width, 96))))
    return _product(make, hidden, width)


def in_bytes(graph: Graph, seed: int, inputs: Mapping[str, Array], params: Mapping[str, Array]) -> Graph:
    """The graph with products of bytes, by ranges of these inputs or of rows."""
    chance = random.Random(f"bytes of {seed}")
    examples = [{value.name: inputs[value.name] for value in graph.inputs}] if chance.random() < 0.5 else []
    graph.data = {value.name: params[value.name] for value in graph.params}
    made = quantised(graph, examples)
    made.data = {}
    if chance.random() < 0.5:
        narrowed = [Precision(policy_of("f16")), NarrowRows(), NarrowNorms(dtypes.f16)]
        made = run_passes(made, narrowed, Context())
    return made
