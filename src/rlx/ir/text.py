"""Graphs as text: `print_graph` writes, `parse_graph` reads back an equal graph.

    graph "mlp" {
      bound batch 1 64
      %x: f32[batch, 4] = input() {type=f32[batch, 4]}
      %w: f32[4, 3] = param() {type=f32[4, 3]}
      %y: f32[batch, 3] = dot_general(%x, %w) {lhs_contract=(1,), rhs_contract=(0,)} from "layer/MatMul"
      return out=%y
    }

Lines with `next` say which output a state becomes; those with `given`, `equal` (and the side that may be 1, if one may)
and `assumes_equal` say what `Graph` knows of dims. A result that is not the node's first is written `%name#1`.
Attributes that have their default are left out. Regions follow their node in brackets. Data of params is no part of
the text.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np

from rlx.errors import GraphError, RlxError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.expect import SPREADS, Equality
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.literal import Literal
from rlx.ir.op import Op, lookup
from rlx.ir.printing import PLAIN, print_graph, print_literal
from rlx.ir.type import TensorType
from rlx.ir.verify import check_states

MAX_DEPTH = 32  # regions in regions

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[A-Za-z_][\w./+-]*|-?\d+|[%#(){}\[\]=,:])')


def parse_graph(text: str) -> Graph:
    """Reads what `print_graph` wrote with `literals="full"`. Raises GraphError that names the line."""
    reader = _Reader(text)
    graph = reader.graph(0)
    reader.end()
    check_states(graph)
    return graph


class _Reader:
    """Reads from front to back; `at` is the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, what: str) -> GraphError:
        line = self.text.count("\n", 0, self.at) + 1
        return GraphError(f"[parse] {what}, at line {line}: {self.text[self.at : self.at + 40]!r}")

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return match.group(1) if match else ""

    def next(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise self.fail("expected a word, a number, a string or a mark")
        self.at = match.end()
        return match.group(1)

    def expect(self, token: str) -> None:
        if self.peek() != token:
            raise self.fail(f"expected {token!r}")
        self.next()

    def end(self) -> None:
        if self.text[self.at :].strip():
            raise self.fail("expected the end of the text")

    def name(self) -> str:
        token = self.next()
        if token.startswith('"'):
            return self.decoded(token)
        if not PLAIN.match(token):
            raise self.fail(f"expected a name, got {token!r}")
        return token

    def decoded(self, token: str) -> str:
        try:
            read = json.loads(token)
        except ValueError:
            raise self.fail(f"expected a string, got {token!r}") from None
        if not isinstance(read, str):
            raise self.fail(f"expected a string, got {token!r}")
        return read

    def raw(self, stops: str) -> str:
        """The text up to one of these marks outside of brackets and strings."""
        start, depth = self.at, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.next()
                continue
            if depth == 0 and char in stops:
                return self.text[start : self.at].strip()
            depth += (char in "([{") - (char in ")]}")
            self.at += 1
        raise self.fail(f"expected one of {stops!r}")

    def graph(self, depth: int) -> Graph:
        if depth > MAX_DEPTH:
            raise self.fail(f"expected at most {MAX_DEPTH} regions in each other")
        self.expect("graph")
        graph = Graph(self.name())
        self.expect("{")
        values: dict[str, Node] = {}
        equalities: list[Equality] = []
        while (token := self.peek()) not in ("return", "}", ""):
            if token == "%":
                self.node(graph, values, depth)
            elif token == "bound":
                self.bound(graph)
            elif token == "next":
                self.next()
                state = self.name()
                if state in graph.states:
                    raise self.fail(f"expected one next value of each state, got another of {state!r}")
                graph.states[state] = self.name()
            elif token == "given":
                self.next()
                graph.given = (*graph.given, self.name())
            elif token == "equal":
                self.next()
                left, right, reason = (self.decoded(self.next()) for _ in range(3))
                spreads = self.next() if self.peek() in SPREADS else ""
                equalities.append(Equality(dims.parse(left), dims.parse(right), reason, spreads))
            elif token == "assumes_equal":
                self.next()
                graph.assumes_equal = True
            else:
                raise self.fail("expected a node, bound, next, given, equal, assumes_equal or return")
        self.expect("return")
        while self.peek() != "}":
            key = self.name()
            self.expect("=")
            graph.outputs[key] = self.reference(values)
            if self.peek() == ",":
                self.next()
        self.expect("}")
        graph.equalities = equalities
        return graph

    def bound(self, graph: Graph) -> None:
        self.next()
        name, low, high = self.name(), self.next(), self.next()
        try:
            graph.bounds[name] = (int(low), None if high == "inf" else int(high))
        except ValueError:
            raise self.fail("expected two numbers") from None

    def reference(self, values: dict[str, Node]) -> Value:
        self.expect("%")
        name, index = self.name(), 0
        if self.peek() == "#":
            self.next()
            digits = self.next()
            index = int(digits) if digits.isdigit() else -1
        node = values.get(name)
        if node is None or not 0 <= index < len(node.types):
            raise self.fail(f"expected a result of an earlier node, got {name!r} #{index}")
        return Value(node, index)

    def node(self, graph: Graph, values: dict[str, Node], depth: int) -> None:
        self.expect("%")
        name = self.name()
        self.expect(":")
        types = self.raw("=")
        self.expect("=")
        cls = lookup(self.name())
        operands = self.operands(values)
        op = self.attributes(cls)
        source = None
        if self.peek() == "from":
            self.next()
            source = self.decoded(self.next())
        regions = self.regions(depth)
        if name in values:
            raise self.fail(f"expected a new name, got {name!r} twice")
        graph.add(op, *operands, name=name, source=source, regions=regions)
        node = graph.nodes[-1]
        if ", ".join(map(str, node.types)) != types:
            raise self.fail(f"expected the types {', '.join(map(str, node.types))} of {name!r}, got {types}")
        values[name] = node

    def operands(self, values: dict[str, Node]) -> list[Value]:
        self.expect("(")
        operands = []
        while self.peek() != ")":
            operands.append(self.reference(values))
            if self.peek() == ",":
                self.next()
        self.expect(")")
        return operands

    def regions(self, depth: int) -> list[Graph]:
        regions: list[Graph] = []
        if self.peek() == "[":
            self.next()
            while self.peek() == "graph":
                regions.append(self.graph(depth + 1))
            self.expect("]")
        return regions

    def attributes(self, cls: type[Op]) -> Op:
        kinds = {field: annotation for field, annotation, _ in cls.fields}
        attributes: dict[str, Any] = {}
        if self.peek() == "{":
            self.next()
            while self.peek() != "}":
                field = self.name()
                self.expect("=")
                if field not in kinds:
                    raise self.fail(f"expected an attribute of {cls.name}, got {field!r}")
                attributes[field] = self.attribute(kinds[field], self.raw(",}"))
                if self.peek() == ",":
                    self.next()
            self.expect("}")
        try:
            return cls(**attributes)
        except TypeError:
            raise self.fail(f"expected the attributes {', '.join(kinds)} of {cls.name}") from None

    def attribute(self, kind: str, text: str) -> Any:
        if text == "none" and kind.endswith(" | None"):
            return None
        kind = kind.removesuffix(" | None")
        kind = "tuple[Dim, ...]" if kind == "Shape" else kind
        try:
            if kind.startswith("tuple["):
                inner = kind[len("tuple[") : -len(", ...]")]
                return tuple(self.attribute(inner, part) for part in _parts(text))
            return _READ[kind](text)
        except (ValueError, KeyError, RlxError):
            raise self.fail(f"expected an attribute of kind {kind}, got {text!r}") from None


def _parts(text: str) -> list[str]:
    """The parts of `(a, b,)`, split at commas outside of brackets and strings."""
    if not (text.startswith("(") and text.endswith(")")):
        raise ValueError(text)
    reader = _Reader(text[1:-1] + ",")
    parts = []
    while reader.text[reader.at :].strip(" ,"):
        parts.append(reader.raw(","))
        reader.expect(",")
    return parts


def _read_bool(text: str) -> bool:
    return {"true": True, "false": False}[text]


def read_type(text: str) -> TensorType:
    """The type that `str` of it prints. Raises ValueError, ShapeError, DTypeError."""
    name, bracket, rest = text.partition("[")
    if not bracket or not rest.endswith("]"):
        raise ValueError(text)
    return TensorType.of((dims.parse(part) for part in _parts(f"({rest[:-1]})")), dtypes.parse(name))


def read_literal(text: str) -> Literal:
    head, bracket, rest = text.partition("](")
    if not bracket or not rest.endswith(")"):
        raise ValueError(text)
    of = read_type(head + "]")
    body = rest[:-1]
    shape = tuple(dims.evaluate(d, {}) for d in of.shape)
    if body.startswith('"'):
        data = base64.b64decode(json.loads(body), validate=True)
        return Literal(np.frombuffer(data, of.dtype.numpy).reshape(shape))
    numbers = [_read_number(part) for part in _parts(f"({body})")]
    return Literal(np.array(numbers).reshape(shape).astype(of.dtype.numpy))


def _read_number(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return float(text)


_READ: dict[str, Any] = {
    "int": int,
    "float": float,
    "bool": _read_bool,
    "str": json.loads,
    "Dim": dims.parse,
    "DType": dtypes.parse,
    "TensorType": read_type,
    "Literal": read_literal,
}

__all__ = ["parse_graph", "print_graph", "print_literal", "read_literal", "read_type"]
