"""Random graphs. `Maker` grows one, node by node, with the values at hand: what a node gives at first sizes is known
when the next is chosen, so that numbers stay in bounds and little is NaN.

Op families are functions registered by `family`; `core`, `nets` and `other` hold them. Operands come from `operand`,
which likes to take what is there already, often through views, so that values are used twice and residuals meet the
products that they came from.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlx.errors import RlxError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Value, call
from rlx.ir.literal import Array
from rlx.ir.op import LEAVES
from tools.fuzz import asked, oracle, padded, rows
from tools.fuzz.data import Recipe
from tools.fuzz.program import EVERY, Binding, How, Program, drop_unused

RAGGED = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129)
SMALL = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8)
MOST_ELEMENTS = 6000
MAIN = (dtypes.f32,) * 10 + (dtypes.f16, dtypes.bf16, dtypes.f64, dtypes.i32, dtypes.i32, dtypes.i64, dtypes.i8)
DTYPES = (*MAIN, dtypes.u8, dtypes.bool_, dtypes.u32, dtypes.i16, dtypes.u16, dtypes.u64)
DISABLE = (
    "fuse/row", "fuse/epilogue", "pack", "memory-reuse", "simplify", "fold", "cse", "canonical", "merge-dots",
    "raise-norm", "raise-activation", "raise-attention", "raise-quantised", "masks", "layout", "dce", "precision",
    "operands", "long-reductions", "winograd", "twiddles", "collapse", "hoist",
)  # fmt: skip
BINDINGS = (1, 2, 3, 5, 8, 9, 16, 17, 31, 33, 65)

Family = Callable[["Maker"], None]
FAMILIES: list[tuple[float, Family]] = []


class Refused(Exception):
    """A choice that leads nowhere; the next one is tried."""


def family(weight: float) -> Callable[[Family], Family]:
    """Registers a way to add a few nodes, chosen with this weight."""

    def register(make: Family) -> Family:
        FAMILIES.append((weight, make))
        return make

    return register


class Maker:
    """A graph that grows, with the arrays of its values at the first binding.

    pool   values that later nodes may take; `made` those of them that ops gave, in order
    kind   what leaves hold, see `Recipe`
    batch  the dim of a batch, if all nodes are to keep its rows apart
    """

    def __init__(self, seed: int, has_dims: bool = False) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.graph = Graph(f"seed{seed}")
        self.recipes: dict[str, Recipe] = {}
        self.arrays: dict[Value, Array] = {}
        self.pool: list[Value] = []
        self.made: list[Value] = []
        self.kind = self.random.choices(("whole", "real", "special"), (70, 22, 8))[0]
        self.symbols = self.random.choices(((), ("n",), ("n", "m")), (75, 18, 7))[0]
        if has_dims and not self.symbols:
            self.symbols = random.Random(f"dims {seed}").choice((("n",), ("n", "m")))
        # of chance of its own, so that a seed gives the program that it gave before there were batches
        batched = len(self.symbols) == 1 and random.Random(f"batch {seed}").random() < 0.5
        self.batch = self.symbols[0] if batched else None
        self.bindings = self._bindings()
        self.binding: Binding = self.bindings[0]
        self._inputs: dict[str, Array] = {}
        self._params: dict[str, Array] = {}
        self._clamps = [self.chance(0.2)]  # regions share it
        self.is_region = False
        if self.symbols:
            self.leaf(tuple(dims.symbol(name) for name in self.symbols))  # so that each dim has an input

    def _bindings(self) -> list[Binding]:
        if not self.symbols:
            return [{}]
        sizes = [{name: self.random.choice(BINDINGS) for name in self.symbols} for _ in range(3)]
        if self.chance(0.1):
            sizes.append({name: self.random.choice((0, 1)) for name in self.symbols})
        if self.batch:
            sizes[0][self.batch] = max(sizes[0][self.batch], 3)  # rows that could be mixed up
        return sizes

    # chance

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def extent(self, most: int = 129) -> int:
        """An extent at the edges of tiles, mostly small."""
        extent = self.random.choice(SMALL if self.chance(0.55) else RAGGED)
        if extent == 0 and self.chance(0.7):
            extent = 4
        return min(extent, most)

    def shape(self, least: int = 0, most: int = 4, open_: bool = True) -> Shape:
        """A shape of some rank with not too many elements; of dims too, if the program has any."""
        rank = self.random.choices(range(least, most + 1), [(3, 6, 9, 6, 3, 1)[r] for r in range(least, most + 1)])[0]
        extents: list[Dim] = []
        budget = MOST_ELEMENTS
        for _ in range(rank):
            extent = self.extent(max(budget, 1))
            budget //= max(extent, 1)
            extents.append(extent)
        if open_ and self.symbols and rank and self.chance(0.9 if self.batch else 0.7):
            place = 0 if self.batch and rank < 4 else self.random.randrange(rank)
            extents[place] = dims.symbol(self.random.choice(self.symbols))
        if not self.batch:
            self.random.shuffle(extents)
        if self.size(extents) > 4 * MOST_ELEMENTS:
            raise Refused("too many elements")
        return tuple(extents)

    def size(self, shape: Sequence[Dim]) -> int:
        return int(np.prod([self.at(d) for d in shape], dtype=np.int64))

    def at(self, dim: Dim) -> int:
        """A dim's value at the first binding."""
        return dims.evaluate(dim, self.binding)

    def float(self) -> DType:
        return self.random.choices((dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.f64), (80, 7, 6, 7))[0]

    def within(self, name: str) -> Maker:
        """A maker of a region: it shares chance, sizes and kinds, and its leaves are constants."""
        inner = copy.copy(self)
        inner.graph = Graph(name)
        inner.recipes, inner.arrays, inner.pool, inner.made = {}, {}, [], []
        inner.is_region = True
        return inner

    def clamp(self) -> None:
        """From now on there may be indices out of range."""
        self._clamps[0] = True

    # leaves

    def leaf(
        self,
        shape: Shape,
        dtype: DType = dtypes.f32,
        low: int | None = None,
        high: int | None = None,
        array: Array | None = None,
        kind: str | None = None,
        what: str | None = None,
    ) -> Value:
        """A new input, weight or constant: `what` tells which, where it is not left to chance."""
        static = all(isinstance(d, int) for d in shape)
        recipe = Recipe(kind or self.kind, self.random.randrange(1 << 30), low, high, array)
        data = recipe.make(tuple(self.at(d) for d in shape), dtype)
        by_chance = self.random.choices(("input", "param", "constant"), (55, 27, 18))[0] if static else "input"
        what = what or by_chance
        if self.is_region:
            if not static:
                raise Refused("a constant with dims")
            what = "constant"
        if what == "constant":
            if data.size and self.chance(0.3) and array is None and low is None:
                data = np.full_like(data, self.random.choice((0, 1, 1, 2, -1) if dtype.is_signed else (0, 1)))
            value = self.graph.constant(data)
        else:
            name = f"{what[0]}{len(self.recipes)}"
            value = getattr(self.graph, what)(name, shape, dtype)
            self.recipes[name] = recipe
            (self._inputs if what == "input" else self._params)[name] = data
        self.arrays[value] = data
        self.pool.append(value)
        return value

    # nodes

    def add(self, name: str, *operands: Any, **attributes: Any) -> Value:
        """A node of one result. Raises Refused, RlxError."""
        results = self.several(name, *operands, **attributes)
        assert len(results) == 1, name
        return results[0]

    def several(self, name: str, *operands: Any, **attributes: Any) -> tuple[Value, ...]:
        """A node; its values, which are computed, and refused if they run away."""
        with self._undone() as before:
            results = call(name, *operands, **attributes)
            if len(self.graph.equalities) > before and self.chance(0.8):
                raise Refused("dims that must be equal")
            return self.known(results if isinstance(results, tuple) else (results,))

    @contextlib.contextmanager
    def _undone(self) -> Iterator[int]:
        """Takes back what a node that is refused noted about dims. Gives how much was noted before."""
        before = len(self.graph.equalities)
        try:
            yield before
        except Exception:
            for equality in self.graph.equalities[before:]:
                self.graph._noted.discard(equality)  # so that it is noted again
            del self.graph.equalities[before:]
            raise

    def known(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """The values of a new node, which from now on others may take. Raises Refused."""
        for value, array in zip(values, self._computed(values)):
            self.arrays[value] = array
            self.pool.append(value)
            self.made.append(value)
        return values

    def _computed(self, values: tuple[Value, ...]) -> tuple[Array, ...]:
        """What the reference gives for a node. Raises Refused where dims are not what its type rule took them for."""
        node = values[0].node
        for operand in node.inputs:
            if operand not in self.arrays:  # a scalar that became a constant
                assert operand.constant is not None
                self.arrays[operand] = operand.constant
        try:
            self.graph.bind(self.binding)
            with np.errstate(all="ignore"):
                operands = [self.arrays[v] for v in node.inputs]
                results = oracle.run_node(node, operands, self._params, self.binding)
                if self.batch and not rows.node_keeps(node, operands, self.binding, self.batch):
                    raise Refused("rows of a batch that meet")
        except (RlxError, ValueError, IndexError, TypeError) as error:
            raise Refused(str(error)) from None
        for value, array in zip(values, results):
            self._sane(value, array)
        return results

    def _sane(self, value: Value, array: Array) -> None:
        """Raises Refused for results that are too large, mostly NaN, or run out of what their dtype holds."""
        if array.size > 8 * MOST_ELEMENTS:
            raise Refused("too many elements")
        if not value.dtype.is_inexact or not array.size:
            return
        wide = np.abs(array.astype(np.complex128 if value.dtype.is_complex else np.float64))
        finite = np.isfinite(wide)
        if finite.mean() < 0.5 and self.chance(0.9):
            raise Refused("mostly not finite")
        most = {"f16": 2e3, "bf16": 1e4}.get(value.dtype.name, 1e5)
        if wide.max(initial=0, where=finite) > most and self.chance(0.97):
            raise Refused("too large")

    # operands

    def any(self, *kinds: str, rank: tuple[int, int] = (0, 5), where: Callable[[Value], bool] | None = None) -> Value:
        """A value of one of these kinds of dtype, a late one most often, through a view at times; a leaf at others."""
        fits = [
            v for v in self.pool
            if (not kinds or v.dtype.kind in kinds) and rank[0] <= v.rank <= rank[1] and (where is None or where(v))
        ]  # fmt: skip
        if fits and not self.chance(0.15):
            value = fits[max(0, len(fits) - 1 - int(self.random.expovariate(0.5)))]
            return self.view(value) if self.chance(0.3) and where is None else value
        choices = [d for d in DTYPES if not kinds or d.kind in kinds]
        leaf = self.leaf(self.shape(rank[0], max(min(rank[1], 4), rank[0])), self.random.choice(choices))
        if where is not None and not where(leaf):
            raise Refused("no such value")
        return leaf

    def operand(self, shape: Shape, dtype: DType, kind: str | None = None) -> Value:
        """A value of this type: one that is there, a view of one, or of a leaf."""
        same = [v for v in self.pool if v.dtype is dtype and v.shape == shape]
        permuted = [v for v in self.pool if v.dtype is dtype and sorted(map(str, v.shape)) == sorted(map(str, shape))]
        if kind is None and same and self.chance(0.6):
            return self.through(self.random.choice(same[-4:] if self.chance(0.7) else same))
        if kind is None and permuted and self.chance(0.5):
            return self.turned(self.random.choice(permuted), shape)
        return self.source(shape, dtype, kind)

    def turned(self, value: Value, shape: Shape) -> Value:
        """The value with its axes so that it has this shape."""
        order: list[int] = []
        for dim in shape:
            free = [i for i in range(value.rank) if value.shape[i] == dim and i not in order]
            order.append(self.random.choice(free))
        return value if order == sorted(order) else self.add("transpose", value, permutation=tuple(order))

    def through(self, value: Value) -> Value:
        """The value itself, or a view of it that has its type."""
        if not value.rank or not self.chance(0.3):
            return value
        axis = self.random.randrange(value.rank)
        how = self.random.choice(("reverse", "turn", "roll", "select"))
        if how == "reverse":
            return self.reversed(value, axis)
        if how == "turn":
            equal = [i for i in range(value.rank) if value.shape[i] == value.shape[axis]]
            order = list(range(value.rank))
            other = self.random.choice(equal)
            order[axis], order[other] = other, axis
            return self.add("transpose", value, permutation=tuple(order))
        if how == "roll" and isinstance(value.shape[axis], int) and value.shape[axis] > 1:
            cut = self.random.randrange(1, value.shape[axis])
            parts = [self.slice(value, axis, cut, value.shape[axis]), self.slice(value, axis, 0, cut)]
            return self.add("concat", *parts, axis=axis)
        return value

    def reversed(self, value: Value, axis: int) -> Value:
        """The value from back to front along an axis."""
        return self.slice(value, axis, dims.add(value.shape[axis], -1), -1, -1)

    def slice(self, value: Value, axis: int, start: Dim, stop: Dim, step: int = 1) -> Value:
        starts, stops, steps = [0] * value.rank, list(value.shape), [1] * value.rank
        starts[axis], stops[axis], steps[axis] = start, stop, step  # type: ignore[call-overload]
        return self.add("slice", value, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))

    def source(self, shape: Shape, dtype: DType, kind: str | None = None) -> Value:
        """A leaf of this type, or a view of a leaf of another shape."""
        if not shape or self.chance(0.6):
            return self.leaf(shape, dtype, kind=kind)
        axis = self.random.randrange(len(shape))
        around: list[Dim] = list(shape)
        how = self.random.choice(("turn", "slice", "steps", "pad", "broadcast", "reverse", "concat", "join"))
        if how == "turn":
            order = self.random.sample(range(len(shape)), len(shape))
            before = [0] * len(shape)
            for i, o in enumerate(order):
                before[o] = shape[i]  # type: ignore[call-overload]
            return self.add("transpose", self.leaf(tuple(before), dtype, kind=kind), permutation=tuple(order))
        if how == "slice":
            low, high = self.random.randrange(3), self.random.randrange(3)
            around[axis] = dims.add(shape[axis], low + high)
            wide = self.leaf(tuple(around), dtype, kind=kind) if all_int(around) or low + high == 0 else None
            if wide is not None:
                return self.slice(wide, axis, low, dims.add(shape[axis], low))
        if how == "steps" and isinstance(shape[axis], int):
            step = self.random.choice((2, 3))
            around[axis] = shape[axis] * step
            return self.slice(self.leaf(tuple(around), dtype, kind=kind), axis, 0, around[axis], step)
        if how == "pad" and isinstance(shape[axis], int) and shape[axis] > 1:
            cut = self.random.randrange(1, min(shape[axis], 4))
            front = self.random.randrange(cut + 1)
            around[axis] = shape[axis] - cut
            low = tuple(front if i == axis else 0 for i in range(len(shape)))
            high = tuple(cut - front if i == axis else 0 for i in range(len(shape)))
            value = float(self.random.choice((0, 0, 1, 2)))
            return self.add("pad", self.leaf(tuple(around), dtype, kind=kind), low=low, high=high, value=value)
        if how == "broadcast":
            around[axis] = 1
            thin = self.leaf(tuple(around[self.random.randrange(axis + 1) if axis == 0 else 0 :]), dtype, kind=kind)
            return self.add("broadcast_to", thin, shape=tuple(shape))
        if how == "reverse":
            return self.reversed(self.leaf(shape, dtype, kind=kind), axis)
        if how == "concat" and isinstance(shape[axis], int) and shape[axis] > 1:
            cut = self.random.randrange(1, shape[axis])
            left, right = list(shape), list(shape)
            left[axis], right[axis] = cut, shape[axis] - cut
            parts = [self.leaf(tuple(p), dtype, kind=kind) for p in (left, right)]
            return self.add("concat", *parts, axis=axis)
        if how == "join" and len(shape) > 1:
            axis = max(axis, 1)
            merged = dims.mul(shape[axis - 1], shape[axis])
            before = (*shape[: axis - 1], merged, *shape[axis + 1 :])
            if all_int(before):
                return self.add("reshape", self.leaf(before, dtype, kind=kind), shape=tuple(shape))
        return self.leaf(shape, dtype, kind=kind)

    def view(self, value: Value) -> Value:
        """Any view of a value, of any shape."""
        if not value.rank:
            return self.add("broadcast_to", value, shape=self.shape(1, 2)) if self.chance(0.3) else value
        axis = self.random.randrange(value.rank)
        extent = value.shape[axis]
        how = self.random.choice(("turn", "reverse", "slice", "reshape", "pad", "broadcast", "unit", "flat", "twice"))
        if how == "turn":
            return self.add("transpose", value, permutation=tuple(self.random.sample(range(value.rank), value.rank)))
        if how == "reverse":
            return self.reversed(value, axis)
        if how == "slice" and isinstance(extent, int) and extent > 1:
            start = self.random.randrange(extent)
            stop = self.random.randrange(start, extent + 1)
            if stop == start and self.chance(0.8):
                stop = extent
            step = self.random.choice((1, 1, 2, 3))
            if self.chance(0.3):
                return self.slice(value, axis, extent - 1, start - 1, -step)
            return self.slice(value, axis, start, stop, step)
        if how == "reshape" and all_int(value.shape) and value.rank < 4 and extent:
            divisors = [d for d in range(1, extent + 1) if extent % d == 0]  # type: ignore[operator, arg-type]
            part = self.random.choice(divisors)
            shape = (*value.shape[:axis], part, extent // part, *value.shape[axis + 1 :])  # type: ignore[operator]
            return self.add("reshape", value, shape=shape)
        if how == "pad":
            low = tuple(self.random.randrange(-1, 3) if i == axis else 0 for i in range(value.rank))
            high = tuple(self.random.randrange(3) if i == axis else 0 for i in range(value.rank))
            if not isinstance(extent, int) or extent < 2:
                low = tuple(max(n, 0) for n in low)
            return self.add("pad", value, low=low, high=high, value=float(self.random.choice((0, 1))))
        if how == "broadcast" and self.size(value.shape) < 500:
            return self.add("broadcast_to", value, shape=(self.random.choice((1, 2, 3)), *value.shape))
        if how == "unit":
            axis = self.random.randrange(value.rank + 1)
            return self.add("reshape", value, shape=(*value.shape[:axis], 1, *value.shape[axis:]))
        if how == "flat" and value.rank > 1:
            axis = max(axis, 1)
            merged = dims.mul(value.shape[axis - 1], extent)
            return self.add("reshape", value, shape=(*value.shape[: axis - 1], merged, *value.shape[axis + 1 :]))
        if how == "twice" and self.size(value.shape) < 1000:
            return self.add("concat", value, self.through(value), axis=axis)
        return value

    # the whole

    def grow(self, nodes: int, families: Sequence[tuple[float, Family]] = FAMILIES) -> None:
        """Adds families until there are so many nodes."""
        makes = [make for _, make in families]
        weights = [weight for weight, _ in families]
        for _ in range(6 * nodes):
            if len(self.made) >= nodes:
                return
            try:
                self.random.choices(makes, weights)[0](self)
            except (Refused, RlxError):
                continue
            if self.is_region and len(self.graph.nodes) > 40:
                return

    def outputs(self, asked: Sequence[Value] = ()) -> None:
        """The last values, what was asked for, some on the way, and an input at times."""
        graph = self.graph
        unused = [v for v in self.made if not graph.uses(v)] or self.made[-1:]  # a node that was refused may use it
        chosen = [*unused[-self.random.choice((1, 1, 2, 3)) :], *asked]
        if self.made and self.chance(0.35):
            chosen += self.random.sample(self.made, min(len(self.made), self.random.choice((1, 1, 2))))
        if self.chance(0.03):
            chosen += [v for v in self.pool if isinstance(v.node.op, LEAVES)][:1]
        for i, value in enumerate(dict.fromkeys(chosen)):
            graph.output(value, name=f"y{i}")
        graph.prune()

    def how(self) -> How:
        """How to compile, and what to ask beside the results."""
        disable = tuple(self.random.sample(DISABLE, self.random.choice((1, 1, 2, 4)))) if self.chance(0.3) else ()
        return How(
            isa=self.random.choice((None, None, "avx512", "avx2", "sse")),
            level=self.random.choice((0, 0, 2)),
            threads=self.random.choice((1, 1, 2)),
            clamps=self._clamps[0],
            disable=disable,
            extras=tuple(e for e, p in EXTRAS.items() if self.chance(p)),
            common=self._common(),
            precision="f32_fast" if self.chance(0.15) else "f32",
        )

    def _common(self) -> tuple[str, ...]:
        """Composites that no kernel of the device's own may take: all, or some of the program's."""
        chance = self.random.random()
        if chance < 0.12:
            return (EVERY,)
        composites = sorted({node.op.name for node in self.graph.nodes if node.op.is_composite})
        return tuple(name for name in composites if self.chance(0.5)) if chance < 0.24 else ()


EXTRAS = {
    "weights": 0.3, "saved": 0.02, "fewer": 0.02, "cached": 0.02, "slots": 0.5, "clone": 0.02, "more": 0.03,
    "feed": 0.2, "active": 0.3, "rows": 0.5,
}  # fmt: skip
"""What is asked beside the results, and how often: see `check`."""


def all_int(shape: Sequence[Dim]) -> bool:
    return all(isinstance(d, int) for d in shape)


def generate(seed: int, device: str = "", kind: str = "") -> Program:
    """The program of a seed, always the same for one version of this package: one with dims for `padded`, and one of
    convolutions, of gates or of encoders in bytes for the emulated device, whose kernels take a compiler a second each.
    `kind` is as in `asked.kind_of`."""
    maker = Maker(seed, has_dims=device == padded.NAME)
    nodes = maker.random.choices((2, 4, 6, 9, 13, 20), (10, 25, 25, 20, 15, 5))[0]
    kind = kind or asked.kind_of(seed, device)
    of_kind: list[Value] = []
    while not maker.made:
        if kind == "encoders":
            maker.grow(1, [(1.0, encoders.net)])
        elif kind in OF_EMULATED:
            maker.grow(1, [(1.0, OF_EMULATED[kind])])
        elif kind:
            of_kind = asked.grow(maker, nodes, kind)
        else:
            maker.grow(nodes)
    maker.outputs(of_kind)
    graph = maker.graph
    drop_unused(graph)
    if kind == "encoders":
        graph = encoders.in_bytes(graph, seed, maker._inputs, maker._params)
        drop_unused(graph)
    recipes = {v.name: maker.recipes[v.name] for v in (*graph.inputs, *graph.params)}
    bindings = maker.bindings if graph.symbols else [{}]
    bindings = [{name: b[name] for name in graph.symbols} for b in bindings]
    how = maker.how()
    if kind in OF_EMULATED:
        how = replace(how, precision=windows.precision_of(seed))
    return Program(graph, recipes, bindings, how, seed)


# they register families
from tools.fuzz import control, core, encoders, gates, nets, other, windows  # noqa: E402, F401

OF_EMULATED: dict[str, Family] = {"windows": windows.net_of_windows, "gates": gates.gate}
"""Those that programs have alone."""
