"""A failing program made small: what can be left out while it still fails in the same way is left out.

Values are cut off (they become inputs that hold what the reference gives there), nodes are passed by, outputs, options
and sizes dropped, extents lowered.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rlx.errors import RlxError
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.literal import Literal
from rlx.ir.op import LEAVES, Constant, Input, Op, Param
from rlx.ir.substitute import type_with_dims, with_dims
from rlx.ir.type import TensorType
from tools.fuzz import oracle
from tools.fuzz.data import Recipe
from tools.fuzz.program import How, Program, drop_unused

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, seconds: float = 40.0) -> Program:
    """The smallest program found in this time for which `fails` holds."""
    end = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for step in (_sizes, _options, _outputs, _cuts, _bypasses, _merges, _numbers, _extents, _data):
            # each step starts over on what the last success left
            again = True
            while again and time.monotonic() < end:
                again = False
                for candidate in step(program):
                    if time.monotonic() > end:
                        return program
                    if fails(candidate):
                        program, progress, again = candidate, True, True
                        break
    return program


def _with(program: Program, **changes: Any) -> Program:
    return dataclasses.replace(program, **changes)


def _sizes(program: Program) -> Iterator[Program]:
    """One binding instead of several, then numbers instead of dims."""
    if len(program.bindings) > 1:
        for binding in program.bindings:
            yield _with(program, bindings=[binding])
        for i in range(len(program.bindings)):
            yield _with(program, bindings=program.bindings[:i] + program.bindings[i + 1 :])
    elif program.bindings[0]:
        binding = program.bindings[0]
        smaller = _rebuilt(program, change=lambda d: dims.evaluate(d, binding))
        if smaller is not None:
            yield _with(smaller, bindings=[{}])
        for name, size in binding.items():
            for less in (1, 2, 3, size // 2, size - 1):
                if 0 < less < size:
                    yield _with(program, bindings=[{**binding, name: less}])


def _options(program: Program) -> Iterator[Program]:
    how = program.how
    if how != How(clamps=how.clamps):
        yield _with(program, how=How(clamps=how.clamps))
    for name in how.disable:
        yield _with(program, how=dataclasses.replace(how, disable=tuple(n for n in how.disable if n != name)))
    for name in how.extras:
        yield _with(program, how=dataclasses.replace(how, extras=tuple(n for n in how.extras if n != name)))
    for name in how.common:
        yield _with(program, how=dataclasses.replace(how, common=tuple(n for n in how.common if n != name)))
    if how.precision != "f32":
        yield _with(program, how=dataclasses.replace(how, precision="f32"))
    if how.threads > 1:
        yield _with(program, how=dataclasses.replace(how, threads=1))
    if how.level != 2:
        yield _with(program, how=dataclasses.replace(how, level=2))
    if how.isa:
        yield _with(program, how=dataclasses.replace(how, isa=None))


def _outputs(program: Program) -> Iterator[Program]:
    names = list(program.graph.outputs)
    if len(names) > 1:
        for name in names:
            yield from _maybe(_rebuilt(program, outputs=[name]))
        for name in names:
            yield from _maybe(_rebuilt(program, outputs=[n for n in names if n != name]))


def _maybe(program: Program | None) -> Iterator[Program]:
    if program is not None:
        yield program


def _inner(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if not isinstance(node.op, LEAVES)]


def _cuts(program: Program) -> Iterator[Program]:
    """Values that become inputs, the last first: most goes with them."""
    graph, binding = program.graph, program.bindings[0]
    if len(program.bindings) > 1:
        return
    try:
        with np.errstate(all="ignore"):
            values = oracle.run(graph, *program.arrays(binding), binding)
    except (RlxError, ValueError, IndexError):
        return
    for node in reversed(_inner(graph)):
        for value in node.outputs:
            if graph.uses(value) and value.node.inputs:
                yield from _maybe(_rebuilt(program, cut={value: Recipe("given", 0, array=values[value])}))
    for node in reversed(_inner(graph)):
        # outputs further up
        for value in node.inputs:
            if not isinstance(value.op, LEAVES):
                yield from _maybe(_rebuilt(program, result=value))


def _bypasses(program: Program) -> Iterator[Program]:
    for node in reversed(_inner(program.graph)):
        if len(node.types) == 1:
            for value in node.inputs:
                if value.type == node.types[0]:
                    yield from _maybe(_rebuilt(program, swap={Value(node, 0): value}))


def _merges(program: Program) -> Iterator[Program]:
    """One leaf for several of its type."""
    leaves = [Value(n, 0) for n in program.graph.nodes if isinstance(n.op, LEAVES)]
    for i, value in enumerate(leaves):
        for other in leaves[:i]:
            if other.type == value.type:
                yield from _maybe(_rebuilt(program, swap={value: other}))
                break
        if isinstance(value.op, Param):
            yield from _maybe(_rebuilt(program, as_input={value}))
        if isinstance(value.op, Constant) and value.constant is not None and value.constant.size > 1:
            yield from _maybe(_rebuilt(program, as_input={value}))


def _numbers(program: Program) -> Iterator[Program]:
    """Simpler arrays."""
    for name, recipe in program.recipes.items():
        if recipe.array is not None or recipe.kind != "whole":
            if recipe.low is None:
                yield _with(program, recipes={**program.recipes, name: Recipe("whole", 1)})
            if recipe.array is not None and recipe.array.dtype.kind in "iu":
                low, high = int(recipe.array.min(initial=0)), int(recipe.array.max(initial=0))
                yield _with(program, recipes={**program.recipes, name: Recipe("whole", 1, low, high)})


def _data(program: Program) -> Iterator[Program]:
    """Ones, and zeros but for one place, for arrays that are given."""
    for name, recipe in program.recipes.items():
        if recipe.array is not None and recipe.array.size > 1:
            array = recipe.array
            flat = array.reshape(-1)
            if np.asarray(flat == flat[0]).all():
                continue
            for filled in (np.full_like(array, 1), np.zeros_like(array)):
                yield _with(program, recipes={**program.recipes, name: Recipe("given", 0, array=filled)})


def _extents(program: Program) -> Iterator[Program]:
    """Every number that is an extent of some leaf, replaced by less wherever it stands."""
    graph = program.graph
    extents = {d for n in graph.nodes if isinstance(n.op, LEAVES) for d in n.types[0].shape if isinstance(d, int)}
    for extent in sorted(extents, reverse=True):
        for less in sorted({1, 2, 3, extent // 2, extent - 1} - {0}):
            if less < extent:
                yield from _maybe(_rebuilt(program, extent=(extent, less)))
    for node in graph.nodes:
        if isinstance(node.op, LEAVES):
            for axis, extent in enumerate(node.types[0].shape):
                if isinstance(extent, int) and extent > 1 and extent in extents:
                    yield from _maybe(_rebuilt(program, one=(node, axis, extent // 2)))
                    yield from _maybe(_rebuilt(program, one=(node, axis, extent - 1)))


def _lowered(op: Op, extent: tuple[int, int]) -> Op:
    """The op with one number in its tuples and types replaced by another."""
    before, after = extent
    changed: dict[str, Any] = {}
    for name, value in op.attributes().items():
        if isinstance(value, tuple) and all(isinstance(v, (int, dims.Poly)) for v in value) and name not in _INDICES:
            changed[name] = tuple(
                after if v == before else after - 1 if name == "starts" and v == before - 1 and v > 2 else v
                for v in value
            )
        if isinstance(value, TensorType):
            changed[name] = value.with_shape(after if d == before else d for d in value.shape)
    return dataclasses.replace(op, **changed) if changed else op  # type: ignore[type-var]


_INDICES = (
    "permutation", "axes", "lhs_contract", "rhs_contract", "lhs_batch", "rhs_batch", "steps", "strides", "dilations",
    "low", "high",
)  # fmt: skip


def _rebuilt(
    program: Program,
    outputs: list[str] | None = None,
    result: Value | None = None,
    cut: Mapping[Value, Recipe] | None = None,
    swap: Mapping[Value, Value] | None = None,
    as_input: set[Value] | None = None,
    extent: tuple[int, int] | None = None,
    one: tuple[Node, int, int] | None = None,
    change: Callable[[Dim], Dim] | None = None,
) -> Program | None:
    """The program with something changed, without what is then not needed; None if that does not go together."""
    try:
        return _build(program, outputs, result, cut or {}, swap or {}, as_input or set(), extent, one, change)
    except (RlxError, ValueError, IndexError, TypeError, KeyError):
        return None


def _build(
    program: Program,
    outputs: list[str] | None,
    result: Value | None,
    cut: Mapping[Value, Recipe],
    swap: Mapping[Value, Value],
    as_input: set[Value],
    extent: tuple[int, int] | None,
    one: tuple[Node, int, int] | None,
    change: Callable[[Dim], Dim] | None,
) -> Program:
    old = program.graph
    graph = Graph("found")
    recipes: dict[str, Recipe] = {}
    values: dict[Value, Value] = {}
    outputs_needed = {"y": result} if result is not None else {n: old.outputs[n] for n in outputs or old.outputs}
    for node in _needed(outputs_needed, cut, swap):
        op = node.op
        if change is not None:
            op = dataclasses.replace(op, type=type_with_dims(op.type, change)) if isinstance(op, (Input, Param)) \
                else with_dims(op, change)  # fmt: skip
        if extent is not None:
            op = _lowered(op, extent)
        if isinstance(op, (Input, Param)):
            recipe = program.recipes[node.name]
        elif isinstance(op, Constant):
            recipe = Recipe("given", 0, array=op.value.array)
        if isinstance(op, LEAVES):
            of = op.type if isinstance(op, (Input, Param)) else op.value.type
            if extent is not None and isinstance(op, Constant):
                of = of.with_shape(extent[1] if d == extent[0] else d for d in of.shape)
            if one is not None and node is one[0]:
                of = of.with_shape(one[2] if i == one[1] else d for i, d in enumerate(of.shape))
            recipe = _fitted(recipe, of)
            if isinstance(op, Constant) and Value(node, 0) not in as_input:
                assert recipe.array is not None
                values[Value(node, 0)] = graph.constant(recipe.array, name=node.name)
                continue
            kind = graph.param if isinstance(op, Param) and Value(node, 0) not in as_input else graph.input
            name = node.name if not isinstance(op, Constant) else f"c{len(recipes)}"
            values[Value(node, 0)] = kind(name, of.shape, of.dtype)
            recipes[name] = recipe
            continue
        if any(v in cut for v in node.outputs):
            for value in node.outputs:
                if value in cut:
                    name = f"cut_{node.name}" if value.index == 0 else f"cut_{node.name}_{value.index}"
                    values[value] = graph.input(name, value.shape, value.dtype)
                    recipes[name] = cut[value]
            continue
        results = graph.add(op, *(values[swap.get(v, v)] for v in node.inputs), name=node.name, regions=node.regions)
        for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
            values[Value(node, i)] = value
    for name, value in outputs_needed.items():
        graph.output(values[swap.get(value, value)], name=name)
    graph.prune()
    drop_unused(graph)
    leaves = {v.name for v in (*graph.inputs, *graph.params)}
    symbols = graph.symbols
    bindings = [{name: b[name] for name in symbols} for b in program.bindings]
    return Program(graph, {n: r for n, r in recipes.items() if n in leaves}, bindings, program.how, program.seed)


def _needed(
    outputs_needed: Mapping[str, Value], cut: Mapping[Value, Recipe], swap: Mapping[Value, Value]
) -> list[Node]:
    """Nodes that the outputs need, in order."""
    graph = next(iter(outputs_needed.values())).graph
    need = {id(swap.get(v, v).node) for v in outputs_needed.values()}
    nodes = []
    for node in reversed(graph.nodes):
        if id(node) in need or isinstance(node.op, (Input, Param)):  # dims may hang on these
            nodes.append(node)
            if not any(v in cut for v in node.outputs):
                need.update(id(swap.get(v, v).node) for v in node.inputs)
    return nodes[::-1]


def _fitted(recipe: Recipe, of: TensorType) -> Recipe:
    """The recipe for a leaf of this type: an array that is given is cut to it."""
    if recipe.array is None or not of.is_static:
        return recipe
    array = recipe.array[tuple(slice(0, dims.evaluate(d, {})) for d in of.shape)]
    return Recipe("given", 0, array=Literal(array).array)
