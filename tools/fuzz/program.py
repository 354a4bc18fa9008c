"""A program to be tried: a graph, what lies in its leaves, sizes of its dims, and how to compile it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.symbols import symbols_within
from rlx.runtime.session import Precision
from tools.fuzz.data import Recipe

Binding = dict[str, int]
EVERY = "*"
"""In place of names of ops: all of them."""


@dataclass(frozen=True)
class How:
    """Options of the compiler, and what is asked beside the results. `level` is LLVM's: at 0 the same text takes a
    third of the time to become code. With `clamps` indices may be out of range. Composites named in `common` are
    decomposed, even where the device has kernels for them."""

    isa: str | None = None
    level: int = 2
    threads: int = 1
    clamps: bool = False
    disable: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    common: tuple[str, ...] = ()
    precision: Precision = "f32"

    def on(self, isa: str) -> How:
        """The same on another instruction set."""
        return replace(self, isa=isa)


@dataclass
class Program:
    """`recipes` are those of inputs and params by name; `bindings` are sizes that it runs at, one after the other."""

    graph: Graph
    recipes: dict[str, Recipe]
    bindings: list[Binding] = field(default_factory=lambda: [{}])
    how: How = How()
    seed: int = -1

    def arrays(self, binding: Binding, change: int = 0) -> tuple[dict[str, Array], dict[str, Array]]:
        """Inputs and params at these sizes. Params have no dims; `change` gives others of the same kind."""
        return (
            {v.name: self._array(v, binding, 0) for v in self.graph.inputs},
            {v.name: self._array(v, binding, change) for v in self.graph.params},
        )

    def _array(self, value: Value, binding: Binding, change: int) -> Array:
        recipe = self.recipes[value.name]
        if change and recipe.array is None:
            recipe = Recipe(recipe.kind, recipe.seed + change, recipe.low, recipe.high)
        return recipe.make(tuple(dims.evaluate(d, binding) for d in value.shape), value.dtype)


def drop_unused(graph: Graph) -> None:
    """Takes out inputs and params that nothing reads and no dim hangs on."""
    leaves = {id(v.node) for v in (*graph.inputs, *graph.params)}
    spoken = symbols_within(node for node in graph.nodes if id(node) not in leaves)
    used: set[str] = set()
    idle = set()
    for value in (*graph.inputs, *graph.params):
        has = {str(d) for d in value.shape}
        if graph.use_count(value) or has & (spoken - used):
            used |= has
        else:
            idle.add(value.name)
    graph.drop_leaves(idle)
    known = set(graph.symbols)
    graph.equalities = [e for e in graph.equalities if dims.symbols(e.left) | dims.symbols(e.right) <= known]
