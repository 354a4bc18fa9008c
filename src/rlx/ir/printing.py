"""The writing half of `ir/text.py`, which says what the text is like."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.ir.literal import Array, Literal

if TYPE_CHECKING:
    from rlx.ir.graph import Graph, Node, Value

SHORT = 16  # elements of a literal that are written as numbers
PLAIN = re.compile(r"[A-Za-z_][\w./+-]*\Z")
"""Names that are written without quotes."""


def print_graph(graph: Graph, literals: str = "short", indent: str = "") -> str:
    """The graph as text.

    literals   "full" writes every constant so that it can be read back; "digest" writes a hash of those that are not
               short, which is enough to compare; "short" only says that there are more
    """
    inside = indent + "  "
    lines = [f"{indent}graph {json.dumps(graph.name)} {{"]
    for name, (low, high) in graph.bounds.items():
        lines.append(f"{inside}bound {name} {low} {'inf' if high is None else high}")
    lines += [f"{inside}next {_name(state)} {_name(output)}" for state, output in graph.states.items()]
    lines += [f"{inside}given {name}" for name in graph.given]
    if graph.assumes_equal and any(equality.spreads for equality in graph.equalities):
        lines.append(f"{inside}assumes_equal")
    for equality in graph.equalities:
        parts = (str(equality.left), str(equality.right), equality.reason)
        lines.append(f"{inside}equal {' '.join(json.dumps(part) for part in parts)} {equality.spreads}".rstrip())
    for node in graph.nodes:
        lines.append(inside + _print_node(node, literals, inside))
    outputs = ", ".join(f"{_name(name)}={_reference(value)}" for name, value in graph.outputs.items())
    return "\n".join([*lines, f"{inside}return {outputs}".rstrip(), f"{indent}}}"])


def same_graph(a: Graph, b: Graph) -> bool:
    """Whether two graphs are equal in all but the data of their params."""
    return print_graph(a, "digest") == print_graph(b, "digest")


def _name(name: str) -> str:
    return name if PLAIN.match(name) else json.dumps(name)


def _reference(value: Value) -> str:
    return f"%{_name(value.node.name)}" + (f"#{value.index}" if value.index else "")


def _print_node(node: Node, literals: str, indent: str) -> str:
    types = ", ".join(map(str, node.types))
    operands = ", ".join(map(_reference, node.inputs))
    defaults = type(node.op).defaults()
    shown = [
        f"{field}={_print_attribute(value, literals)}"
        for field, value in node.op.attributes().items()
        if field not in defaults or _print_attribute(value, literals) != _print_attribute(defaults[field], literals)
    ]
    text = f"%{_name(node.name)}: {types} = {node.op.name}({operands})"
    if shown:
        text += f" {{{', '.join(shown)}}}"
    if node.source is not None:
        text += f" from {json.dumps(node.source)}"
    if node.regions:
        inside = "\n".join(print_graph(region, literals, indent + "  ") for region in node.regions)
        text += f" [\n{inside}\n{indent}]"
    return text


def _print_attribute(value: Any, literals: str) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value)
        case tuple():
            return f"({', '.join(_print_attribute(part, literals) for part in value)}{',' if len(value) == 1 else ''})"
        case Literal():
            return print_literal(value, literals)
    return repr(value) if isinstance(value, float) else str(value)


def print_literal(literal: Literal, literals: str) -> str:
    array = literal.array
    if array.size <= SHORT and _reads_back(array):
        return f"{literal.type}({', '.join(_print_number(n) for n in array.reshape(-1).tolist())})"
    if literals == "full":
        return f'{literal.type}("{base64.b64encode(array.tobytes()).decode()}")'
    return f"{literal.type}({literal.digest if literals == 'digest' else '...'})"


def _reads_back(array: Array) -> bool:
    """Whether numbers say it all: complex numbers and NaN with a payload they do not."""
    if array.dtype.kind == "c":
        return False
    again = np.array(array.reshape(-1).tolist()).astype(array.dtype) if array.size else array.reshape(-1)
    return again.tobytes() == array.tobytes()


def _print_number(number: Any) -> str:
    return _print_attribute(number, "short")
