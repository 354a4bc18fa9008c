"""A graph as a picture: one page that needs nothing else, `picture.html`, a template, with the graph's data as JSON.

Nodes stand in the scopes that the names of a model's nodes spell (`/model.22/cv3/conv`); the page shows a scope as one
box until it is opened. Params, constants and what is made of these alone are told at the nodes that use them.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.op import LEAVES, Constant, Input
from rlx.ir.type import TensorType
from rlx.ir.value import Node, Value

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

Flops = Callable[[Node], Dim]

MOST_CHARACTERS = 24
"""Of a dim or an attribute; what is longer is cut."""
INPUT, OUTPUT, OTHER = "input", "output", "other"
FAMILIES = {
    "convolution": "convolution",
    "contraction": "product", "linalg": "product", "integers": "product", "packed": "product", "experts": "product",
    "transformer": "attention",
    "elementwise": "elementwise", "transcendental": "elementwise", "activation": "elementwise",
    "reduce": "reduction", "norm": "reduction", "cumulative": "reduction", "ordering": "reduction",
    "shape": "movement", "rearrange": "movement", "index": "movement", "writing": "movement", "resampling": "movement",
    "recurrent": "recurrent", "quant_recurrent": "recurrent",
    "control": "control",
    "quant": "quantisation",
}  # fmt: skip
"""Kinds of ops by the module that defines them."""
BODIES = {"if": ("then", "else"), "while": ("condition", "body")}
KINDS = ("then", "else", "condition", "body")


def page(
    graph: Graph,
    title: str = "",
    sizes: Mapping[str, int] | None = None,
    flops_of: Flops | None = None,
    flops: int | None = None,
) -> str:
    """A whole HTML document; dims have numbers where `sizes` tells them, and boxes the operations of `flops_of`.

    flops   of a run, which takes one branch of a conditional and the trips of a loop
    """
    data = data_of(graph, sizes or {}, flops_of) | {"title": title or graph.name, "flops": flops}
    # nothing in a name can end the element that holds it
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    template = resources.files(__package__).joinpath("picture.html").read_text(encoding="utf-8")
    return Template(template).substitute(title=html.escape(title or graph.name), data=text)


def in_a_frame(document: str, height: int = 560) -> str:
    """A page as a part of another, for notebooks: it keeps its styles and scripts to itself."""
    inner = html.escape(document, quote=True)
    return f'<iframe srcdoc="{inner}" style="width:100%;height:{height}px;border:1px solid #8884"></iframe>'


def data_of(graph: Graph, sizes: Mapping[str, int], flops_of: Flops | None = None) -> dict[str, Any]:
    """Boxes in the order of the program, each with the numbers of those that it gets something from."""
    picture = _Picture(sizes, flops_of, Counter(node.source for node in _all(graph) if node.source))
    picture.draw(graph, (), {})
    for name, value in graph.results.items():
        picture.boxes.append(
            {"name": name, "op": OUTPUT, "family": OUTPUT, "type": picture.type(value.type), "scope": [],
             "from": picture.origins(value)}
        )  # fmt: skip
    return {"sizes": dict(sizes), "boxes": picture.boxes}


def _all(graph: Graph) -> list[Node]:
    """The nodes of a graph and of its bodies."""
    return [n for node in graph.nodes for n in (node, *(m for region in node.regions for m in _all(region)))]


class _Picture:
    def __init__(self, sizes: Mapping[str, int], flops_of: Flops | None, used: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.flops_of = flops_of
        self.used = used
        self.boxes: list[dict[str, Any]] = []
        self.weights: set[Value] = set()
        self.box_of: dict[Value, list[int]] = {}

    def draw(self, graph: Graph, scope: tuple[str, ...], operands: Mapping[Value, list[int]]) -> None:
        """Boxes for the nodes of a graph; `operands` are where the inputs of a body come from."""
        self.box_of.update(operands)
        for node in graph.nodes:
            if isinstance(node.op, Input) and not scope:
                self._add(node, {"name": node.name, "op": INPUT, "family": INPUT, "scope": []})
            elif isinstance(node.op, LEAVES):
                self.weights.update(node.outputs if not isinstance(node.op, Input) else ())
            elif node.inputs and not node.regions and self.weights.issuperset(node.inputs):
                self.weights.update(node.outputs)
            else:
                self._node(node, scope)

    def _node(self, node: Node, scope: tuple[str, ...]) -> None:
        name = node.source or node.name
        parts = [part for part in name.split("/") if part]
        around = [part for part in scope if part not in KINDS]
        if scope and parts[: len(around)] == around:  # names in bodies begin with what they are in
            parts = parts[len(around) :]
        # what one node of the model became is together
        within = [*scope, *(parts if self.used.get(name, 0) > 1 or node.regions else parts[:-1])]
        first = 1 if node.op.name == "if" else 0
        results: list[int] = []
        for at, region in enumerate(node.regions):
            kind = BODIES.get(node.op.name, ("body",))[at]
            origins = [self.origins(value) for value in node.inputs[first:]]
            self.draw(region, (*within, kind), dict(zip(region.inputs, origins)))
            results += [box for value in region.outputs.values() for box in self.origins(value)]
        box: dict[str, Any] = {"name": name, "op": node.op.name, "family": family(node), "scope": within}
        used = [value for value in node.inputs if value in self.weights and not _is_scalar(value)]
        weights = [f"{value.name} {self.type(value.type)}" for value in used]
        if weights:
            box["weights"] = weights
        attributes = {key: _cut(str(value)) for key, value in node.op.attributes().items()}
        if attributes:
            box["attributes"] = attributes
        flops = None if self.flops_of is None else self.flops_of(node)
        if flops and dims.symbols(flops) <= self.sizes.keys():
            box["flops"] = dims.evaluate(flops, self.sizes)
        self._add(node, box, results)

    def _add(self, node: Node, box: dict[str, Any], more: list[int] | None = None) -> None:
        origins = [number for value in node.inputs for number in self.origins(value)]
        box["from"] = sorted({*origins, *(more or [])})
        box["type"] = ", ".join(map(self.type, node.types))
        for value in node.outputs:
            self.box_of[value] = [len(self.boxes)]
        self.boxes.append(box)

    def origins(self, value: Value) -> list[int]:
        return self.box_of.get(value, [])

    def type(self, of: TensorType) -> str:
        known = [dims.evaluate(d, self.sizes) if dims.symbols(d) <= self.sizes.keys() else d for d in of.shape]
        return f"{of.dtype}[{', '.join(_cut(str(dim)) for dim in known)}]"


def _is_scalar(value: Value) -> bool:
    return isinstance(value.op, Constant) and value.type.size == 1


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def family(node: Node) -> str:
    """The kind of op that a node is, which has one colour."""
    return FAMILIES.get(type(node.op).__module__.rpartition(".")[2], OTHER)


__all__ = ["data_of", "family", "in_a_frame", "page"]
