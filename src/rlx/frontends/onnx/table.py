"""The tables of importer functions, one function per ONNX op, and what such a function sees of its node.

`@onnx_op("Softmax", since=13)` registers a function from values to values. The annotations of its parameters say what
it needs of an input: `Value` a value of the graph, `Known` numbers that must be known during the import, `Operand`
either. `| None` marks inputs that may be absent, `*` takes the rest. `@symbolic("Add")` registers the same op on known
numbers, for shape arithmetic; it may return None if it cannot compute the result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from rlx.errors import ModelError, UnsupportedOp
from rlx.frontends.onnx.messages import AttributeProto
from rlx.frontends.onnx.operand import Operand
from rlx.frontends.onnx.subgraphs import Subgraphs
from rlx.frontends.onnx.weights import Leaves
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ops import build
from rlx.records import dataclass

Known = Array  # an object array of dims or bools
F = TypeVar("F", bound=Callable[..., Any])
NEWEST = 1 << 30
_MISSING: Any = object()
_HINTS = {"consumed_inputs"}  # in opset 1 it said which operands may be overwritten


@dataclass(frozen=True)
class Importer:
    """One importer function, the opsets it holds for, and the kinds of its parameters."""

    function: Callable[..., Any]
    since: int
    until: int
    parameters: tuple[tuple[str, bool], ...]  # kind of each (value, known, item), and whether it may be absent
    rest: str | None  # kind of the inputs beyond


TABLE: dict[tuple[str, str], list[Importer]] = {}
SYMBOLIC: dict[str, Callable[..., Any]] = {}
_KINDS = {"Value": "value", "Known": "known", "Operand": "operand"}


def onnx_op(*names: str, since: int = 1, until: int = NEWEST, domain: str = "") -> Callable[[F], F]:
    """Registers an importer function for ops of a domain, from one opset to another."""

    def register(function: F) -> F:
        kinds, rest = _parameters(function)
        for name in names:
            TABLE.setdefault((domain, name), []).append(Importer(function, since, until, kinds, rest))
        return function

    return register


def _parameters(function: Callable[..., Any]) -> tuple[tuple[tuple[str, bool], ...], str | None]:
    code = function.__code__  # `inspect.signature` takes many times as long, for hundreds of functions
    names = code.co_varnames[: code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)]
    kinds: list[tuple[str, bool]] = []
    for name in names[1:]:
        annotation, _, none = str(function.__annotations__.get(name, "none")).partition(" | ")
        kind = _KINDS.get(annotation, "")
        if not kind or none not in ("", "None"):
            expected = f"an annotation among {list(_KINDS)} of the input {name!r}"
            actual = function.__annotations__.get(name, "none")
            raise TypeError(
                f"[onnx_op] expected {expected}, got {actual}, at importer function {function.__qualname__!r}"
            )
        kinds.append((kind, none == "None"))
    rest = kinds.pop()[0] if code.co_flags & inspect.CO_VARARGS else None
    return tuple(kinds), rest


def symbolic(*names: str) -> Callable[[F], F]:
    """Registers what ops of the default domain do to known numbers."""

    def register(function: F) -> F:
        SYMBOLIC.update(dict.fromkeys(names, function))
        return function

    return register


def find(domain: str, name: str, opset: int) -> Importer | None:
    """The importer function for this op at this opset: of several, that for the fewest opsets."""
    fitting = [i for i in TABLE.get((domain, name), ()) if i.since <= opset <= i.until]
    return min(fitting, key=lambda i: i.until - i.since, default=None)


class OnnxNode:
    """A node of the model as importer functions see it: attributes by type, our graph to build in, ways to refuse."""

    def __init__(
        self,
        graph: Graph,
        leaves: Leaves,
        subgraphs: Subgraphs,
        proto: Any,
        name: str,
        opset: int,
        attributes: dict[str, Any],
        read: Callable[[Any], Array],
    ) -> None:
        self.graph = graph
        self._leaves = leaves
        self.subgraphs = subgraphs
        self.name = name
        self.op_type: str = proto.op_type
        self.domain: str = proto.domain
        self.opset = opset
        self.outputs: Sequence[str] = list(proto.output)
        self.inputs: list[Operand | None] = []
        self.may_measure = True
        """Whether dims may be measured here: not inside of a body that becomes a region."""
        self._attributes = attributes
        self._read = read
        self._asked: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._attributes

    def ignored(self) -> list[str]:
        """Attributes that nobody asked for and that say something else than their default."""
        known_names = self._asked | _HINTS
        return [name for name in self._attributes if name not in known_names and not self._is_default(name)]

    def _is_default(self, name: str) -> bool:
        import onnx

        try:
            declared = onnx.defs.get_schema(self.op_type, self.opset, self.domain).attributes[name].default_value
        except (onnx.defs.SchemaError, KeyError):
            return False
        attribute = self._attributes[name]
        same: bool = onnx.helper.get_attribute_value(attribute) == onnx.helper.get_attribute_value(declared)
        return attribute.type == declared.type and same

    def _get(self, name: str, default: Any, kind: int, field: str) -> Any:
        self._asked.add(name)
        attribute = self._attributes.get(name)
        if attribute is None:
            if default is _MISSING:
                raise ModelError(f"[{self.op_type}] expected the attribute {name!r}, got none")
            return default
        if attribute.type != kind:
            actual = AttributeProto.AttributeType.Name(attribute.type)
            expected = AttributeProto.AttributeType.Name(kind)
            raise ModelError(f"[{self.op_type}] expected the attribute {name!r} of type {expected}, got {actual}")
        return getattr(attribute, field)

    def integer(self, name: str, default: int | None = _MISSING) -> Any:
        """An integer attribute. Raises ModelError if it is absent and has no default."""
        return self._get(name, default, AttributeProto.INT, "i")

    def flag(self, name: str, default: bool = False) -> bool:
        """An integer attribute that says yes or no."""
        return bool(self._get(name, int(default), AttributeProto.INT, "i"))

    def real(self, name: str, default: float | None = _MISSING) -> Any:
        return self._get(name, default, AttributeProto.FLOAT, "f")

    def text(self, name: str, default: str | None = _MISSING) -> Any:
        value = self._get(name, default, AttributeProto.STRING, "s")
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def texts(self, name: str, default: Sequence[Any] | None = _MISSING) -> Any:
        value = self._get(name, default, AttributeProto.STRINGS, "strings")
        return None if value is None else tuple(value)

    def integers(self, name: str, default: Sequence[Any] | None = _MISSING) -> Any:
        value = self._get(name, default, AttributeProto.INTS, "ints")
        return None if value is None else tuple(value)

    def reals(self, name: str, default: Sequence[Any] | None = _MISSING) -> Any:
        value = self._get(name, default, AttributeProto.FLOATS, "floats")
        return None if value is None else tuple(value)

    def tensor(self, name: str) -> Array | None:
        """A tensor attribute as an array; None if it is absent."""
        attribute = self._get(name, None, AttributeProto.TENSOR, "t")
        return None if attribute is None else self._read(attribute)

    def leaf(self, array: Array) -> Operand:
        """An array of the model in our graph: a weight, or a constant if it is small."""
        return self._leaves.make(self.outputs[0], array)

    def type_attribute(self, name: str) -> Any:
        """A type; None if it is absent."""
        return self._get(name, None, AttributeProto.TYPE_PROTO, "tp")

    def graph_attribute(self, name: str) -> Any:
        """A sub-graph."""
        return self._get(name, _MISSING, AttributeProto.GRAPH, "g")

    def unsupported(self, reason: str) -> UnsupportedOp:
        """The error to raise for a node that the format allows and rlx does not take."""
        return UnsupportedOp(reason)

    def measures(self, what: str) -> None:
        """Says that the op measures a dim. Raises UnsupportedOp where none can be: in a body that becomes a region."""
        if not self.may_measure:
            raise self.unsupported(f"{what} is known only when the graph runs, inside of a body")

    def require(self, x: Value, numbers: Value, low: Dim, high: Dim, what: str) -> Value:
        """x, in runs whose `numbers` all lie in [low, high); any other fails."""
        return build.require(x, numbers, label=self.op_type, what=what, low=low, high=high)

    def wrong(self, reason: str) -> ModelError:
        """The error to raise for a node that the format forbids."""
        return ModelError(f"[{self.op_type}] {reason}")

    def axis(self, rank: int, default: int | None = _MISSING, name: str = "axis") -> int:
        """An axis attribute, counted from the front. Raises ModelError."""
        return self.normal_axis(self.integer(name, default), rank)

    def normal_axis(self, axis: Any, rank: int) -> int:
        if not isinstance(axis, int) or not -rank <= axis < max(rank, 1):
            raise self.wrong(f"expected an axis in [{-rank}, {rank}), got {axis}")
        return axis % max(rank, 1)

    def axes(self, known: Known | Sequence[int], rank: int) -> tuple[int, ...]:
        """Axes, counted from the front, without repeats. Raises ModelError."""
        axis_list = list(known.reshape(-1)) if isinstance(known, np.ndarray) else list(known)
        read = tuple(self.normal_axis(a, rank) for a in axis_list)
        if len(set(read)) != len(read):
            raise self.wrong(f"expected axes without repeats, got {axis_list}")
        return read

    def knows(self, numbers: Any, dtype: Any = None) -> Operand:
        """An item of known numbers, i64 unless said otherwise."""
        return Operand.knowing(self.graph, numbers) if dtype is None else Operand.knowing(self.graph, numbers, dtype)


def as_int(node: OnnxNode, number: Dim | bool, what: str) -> int:
    """A known number that is no formula. Raises UnsupportedOp."""
    if not isinstance(number, int):
        raise node.unsupported(f"{what} is {number}, which is known only when the graph runs")
    return int(number)


def arguments_of(node: OnnxNode, importer: Importer) -> list[Any]:
    """The node's inputs in the kinds that the importer function asks for. Raises ModelError, UnsupportedOp."""
    kinds = [*importer.parameters]
    if importer.rest is None and any(i is not None for i in node.inputs[len(kinds) :]):
        raise node.unsupported(f"input {len(kinds)} is not supported")
    arguments: list[Any] = []
    for position in range(max(len(kinds), len(node.inputs) if importer.rest else 0)):
        kind, optional = kinds[position] if position < len(kinds) else (importer.rest or "value", False)
        item = node.inputs[position] if position < len(node.inputs) else None
        if item is None and not optional:
            raise node.wrong(f"expected an input {position}, got none")
        arguments.append(None if item is None else _as(node, item, kind, position))
    return arguments


def _as(node: OnnxNode, item: Operand, kind: str, position: int) -> Any:
    if kind == "operand":
        return item
    if kind == "value":
        return item.value
    if item.known is None:
        raise node.unsupported(f"input {position} ({item.type}) is known only when the graph runs")
    return item.known


__all__ = [
    "SYMBOLIC",
    "TABLE",
    "Importer",
    "Known",
    "OnnxNode",
    "Operand",
    "arguments_of",
    "as_int",
    "find",
    "onnx_op",
    "symbolic",
]
