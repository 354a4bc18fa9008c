"""Numbers for inputs that nobody brought: what they are called, what dtype they have, and what the graph does with them
tells what such an input usually holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.literal import Array
from rlx.ir.op import Range
from rlx.ir.type import TensorType
from rlx.ops.control import If
from rlx.ops.elementwise import Cast
from rlx.ops.shape import Movement

Random = np.random.Generator
BELOW = 100
"""What ids are below where nothing says how many there are."""


@dataclass(frozen=True)
class Facts:
    """What is known of an input.

    within    low and high of what its numbers must lie in, low ≤ n < high, and what those numbers are
    longest   the greatest size of the other inputs along an axis that is no batch
    """

    name: str
    of: TensorType
    shape: tuple[int, ...]
    within: tuple[int, int, str] | None
    longest: int

    def called(self, words: str) -> bool:
        """Whether one of these stands in the name as a word."""
        return re.search(rf"(^|[^a-z])({words})([^a-z]|$)", self.name.lower()) is not None

    @property
    def is_integer(self) -> bool:
        return self.of.dtype.is_integer

    @property
    def is_one(self) -> bool:
        return self.of.rank <= 1 and self.of.size == 1

    @property
    def is_image(self) -> bool:
        return self.of.dtype.is_float and self.of.rank == 4 and bool({1, 3, 4} & {self.of.shape[1], self.of.shape[3]})

    @property
    def high(self) -> int:
        return BELOW if self.within is None else min(self.within[1], 1 << self.of.dtype.bits - 1)

    @property
    def low(self) -> int:
        return 0 if self.within is None else min(max(self.within[0], 0), self.high - 1)


@dataclass(frozen=True)
class Rule:
    """What an input holds for which `test` holds. `told` is a word for people."""

    test: Callable[[Facts], bool]
    make: Callable[[Facts, Random], Array]
    told: Callable[[Facts], str]


def _filled(number: Callable[[Facts], float]) -> Callable[[Facts, Random], Array]:
    return lambda facts, random: np.full(facts.shape, number(facts))


def _same(number: float) -> tuple[Callable[[Facts, Random], Array], Callable[[Facts], str]]:
    """Everywhere the same number."""
    return _filled(lambda facts: number), lambda facts: f"= {number:g}" if facts.is_one else f"all {number:g}"


def _length(facts: Facts) -> int:
    return facts.high - 1 if facts.within is not None else facts.longest


def _positions(facts: Facts, random: Random) -> Array:
    return np.broadcast_to(np.arange(facts.shape[-1]) % max(facts.high, 1), facts.shape)


def _below(facts: Facts, random: Random) -> Array:
    return random.integers(facts.low, max(facts.high, facts.low + 1), facts.shape)


def _is_length(facts: Facts) -> bool:
    counts = facts.within is not None and facts.within[2] == "lengths"
    return facts.is_integer and (counts or facts.called("len|lens|length|lengths"))


_STATES = "state|states|hidden|h|c|h0|c0|hn|cn|h_0|c_0|past|cache|memory|mems|key_values|past_key_values"

RULES: tuple[Rule, ...] = (
    Rule(lambda f: f.of.dtype.kind == "bool" or f.called("mask|masks|pad_mask"), *_same(1)),
    Rule(lambda f: f.is_one and f.called("sr|fs|sample_rate|sampling_rate|samplerate"), *_same(16000)),
    Rule(_is_length, _filled(_length), lambda f: f"= {_length(f)}"),
    Rule(lambda f: f.is_integer and f.called("token_type_ids|segment_ids|token_type|segment"), *_same(0)),
    Rule(lambda f: f.is_integer and len(f.shape) > 0 and f.called("position_ids|positions|position"), _positions,
         lambda f: "0, 1, 2, …"),
    Rule(lambda f: f.is_integer and f.of.dtype.bits == 4, lambda f, random: random.integers(0, 2, f.shape),
         lambda f: "below 2"),
    Rule(lambda f: f.of.dtype.name == "u8" and f.within is None, lambda f, random: random.integers(0, 256, f.shape),
         lambda f: "bytes"),
    Rule(lambda f: f.is_integer, _below, lambda f: f"below {f.high}"),
    Rule(lambda f: f.of.dtype.is_float and f.called(_STATES), *_same(0)),
    Rule(lambda f: f.of.dtype.is_float and f.is_one, *_same(1)),
    Rule(lambda f: f.is_image, lambda f, random: random.random(f.shape), lambda f: "in [0, 1)"),
    Rule(lambda f: True, lambda f, random: random.standard_normal(f.shape), lambda f: "normal"),
)  # fmt: skip


def scalars(graph: Graph) -> dict[str, Array]:
    """Values of inputs of one number, which hold whatever the sizes are."""
    random = np.random.default_rng(0)
    known = {}
    for value in graph.brought:
        facts = Facts(value.name, value.type, tuple(d for d in value.shape if isinstance(d, int)), None, 1)
        if facts.is_one and value.type.is_static:
            known[value.name] = _rule(facts).make(facts, random).astype(value.dtype.numpy)
    return known


def made(graph: Graph, value: Value, sizes: Mapping[str, int], longest: int, random: Random) -> tuple[Array, str]:
    """An array for an input, and a word on what it holds."""
    shape = tuple(dims.evaluate(d, sizes) for d in value.shape)
    within = _within(value, sizes) if value.dtype.is_integer else None
    facts = Facts(value.name, value.type, shape, within, longest)
    rule = _rule(facts)
    return np.array(rule.make(facts, random)).astype(value.dtype.numpy), rule.told(facts)


def _rule(facts: Facts) -> Rule:
    return next(rule for rule in RULES if rule.test(facts))


def _within(value: Value, sizes: Mapping[str, int]) -> tuple[int, int, str] | None:
    """What all nodes that take an input's numbers as indices, lengths and so on admit."""
    found = [
        (dims.evaluate(r.low, sizes), dims.evaluate(r.high, sizes), r.what)
        for r in _ranges(value, set())
        if (dims.symbols(r.low) | dims.symbols(r.high)) <= sizes.keys()
    ]
    if not found:
        return None
    return max(low for low, _, _ in found), min(high for _, high, _ in found), found[0][2]


def _ranges(value: Value, seen: set[Value]) -> Iterator[Range]:
    """Ranges that the ops declare which get this value, moved or cast but unchanged."""
    if value in seen:
        return
    seen.add(value)
    for node in value.graph.uses(value):
        at = [i for i, operand in enumerate(node.inputs) if operand == value]
        yield from (r for r in node.op.ranges(*(v.type for v in node.inputs)) if r.operand in at)
        if isinstance(node.op, (Movement, Cast)):
            yield from _ranges(node.outputs[0], seen)
        for inner in _inside(node, at):
            yield from _ranges(inner, seen)


def _inside(node: Node, at: list[int]) -> Iterator[Value]:
    """What operands are in the node's bodies."""
    first = 1 if isinstance(node.op, If) else 0
    for region in node.regions:
        inputs = region.inputs
        yield from (inputs[i - first] for i in at if 0 <= i - first < len(inputs))


__all__ = ["RULES", "Facts", "Rule", "made", "scalars"]
