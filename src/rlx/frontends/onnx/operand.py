"""What a name of an ONNX graph stands for during the import: a value of our graph, or numbers that are already known.

Shape arithmetic (`Shape → Gather → Concat → Reshape`) is evaluated during the import, on dims: an operand then *knows*
its numbers, an object array of dims (or bools). It becomes a tensor only where one is needed at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import UnsupportedOp
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim, Poly, Shape
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.op import Input, Param
from rlx.ir.type import TensorType
from rlx.ops.shape import DimsTensor

MAX_KNOWN = 1024  # elements
_MAX_CHAIN = 64


class Operand:
    """A value, or known numbers that become a value when asked for."""

    __slots__ = ("_graph", "_known", "_tried", "_value", "dtype")

    def __init__(self, graph: Graph, value: Value | None, known: Array | None, dtype: DType) -> None:
        self._graph = graph
        self._value = value
        self._known = known
        self._tried = known is not None
        self.dtype = dtype

    @staticmethod
    def of(value: Value) -> Operand:
        return Operand(value.graph, value, None, value.dtype)

    @staticmethod
    def knowing(graph: Graph, numbers: Any, dtype: DType = dtypes.i64) -> Operand:
        """An item of dims (or bools), in an object array or in lists."""
        known = np.empty(np.shape(numbers), object)
        known[...] = numbers
        return Operand(graph, None, known, dtype)

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def shape(self) -> Shape:
        return self._value.shape if self._value is not None else self.known_or_fail.shape

    @property
    def type(self) -> TensorType:
        return TensorType(self.shape, self.dtype)

    @property
    def known_or_fail(self) -> Array:
        known = self.known
        assert known is not None
        return known

    @property
    def known(self) -> Array | None:
        """The numbers as an object array, if this is an integer or bool tensor that the import can tell."""
        if not self._tried:
            self._tried = True
            self._known = _numbers(self._value) if self._value is not None else None
        return self._known

    @property
    def value(self) -> Value:
        """The value in the graph; known numbers become a constant, or a tensor made of dims."""
        if self._value is None:
            self._value = _materialise(self._graph, self.known_or_fail, self.dtype)
        return self._value


class Many(Operand):
    """A sequence: items that the import knows by their number. It is no tensor, and what asks for one is refused."""

    __slots__ = ("items",)

    def __init__(self, graph: Graph, items: list[Operand], dtype: DType) -> None:
        super().__init__(graph, None, None, dtype)
        self._tried = True
        self.items = items

    @property
    def shape(self) -> Shape:
        raise UnsupportedOp(f"a sequence of {len(self.items)} elements stands where a tensor is expected")

    @property
    def value(self) -> Value:
        raise UnsupportedOp(f"a sequence of {len(self.items)} elements stands where a tensor is expected")


class Alike(Operand):
    """A sequence of elements of one type, one after another along the first axis of a value. It may have as many as
    only a run knows."""

    __slots__ = ("stacked",)

    def __init__(self, stacked: Value) -> None:
        super().__init__(stacked.graph, None, None, stacked.dtype)
        self._tried = True
        self.stacked = stacked

    @property
    def length(self) -> Dim:
        return self.stacked.shape[0]

    @property
    def shape(self) -> Shape:
        raise UnsupportedOp(f"a sequence of {self.length} elements stands where a tensor is expected")

    @property
    def value(self) -> Value:
        raise UnsupportedOp(f"a sequence of {self.length} elements stands where a tensor is expected")


class Growing(Operand):
    """A sequence that a loop carries, as its body knows it: what each trip appends, not what was there before.

    origin  what it has in common with itself at the end of the body, and with no other sequence
    parts   what was appended, each along a first axis of its own
    """

    __slots__ = ("origin", "parts")

    def __init__(self, graph: Graph, dtype: DType, origin: object, parts: tuple[Value, ...] = ()) -> None:
        super().__init__(graph, None, None, dtype)
        self._tried = True
        self.origin = origin
        self.parts = parts

    def with_parts(self, graph: Graph, parts: Iterable[Value]) -> Growing:
        """The same sequence in a graph, with what was appended to it there."""
        return Growing(graph, self.dtype, self.origin, tuple(parts))

    @property
    def shape(self) -> Shape:
        raise UnsupportedOp("a loop carries a sequence, and its body does more with it than to append to it")

    @property
    def value(self) -> Value:
        raise UnsupportedOp("a loop carries a sequence, and its body does more with it than to append to it")


class Nothing(Operand):
    """An optional without an element."""

    __slots__ = ()

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, None, None, dtypes.f32)
        self._tried = True

    @property
    def shape(self) -> Shape:
        raise UnsupportedOp("an optional without an element stands where a tensor is expected")

    @property
    def value(self) -> Value:
        raise UnsupportedOp("an optional without an element stands where a tensor is expected")


def flattened(items: Sequence[Operand]) -> list[Operand]:
    """Items with what sequences are made of in their place."""
    return [each for item in items for each in _parts(item)]


def _parts(item: Operand) -> list[Operand]:
    match item:
        case Many():
            return flattened(item.items)
        case Alike():
            return [Operand.of(item.stacked)]
        case Growing():
            return [Operand.of(part) for part in item.parts]
    return [item]


def structure(items: Sequence[Operand]) -> list[Any]:
    """What `flattened` forgets: None for a tensor, a list for a sequence, a word or more for others."""
    return [_kind(item) for item in items]


def _kind(item: Operand) -> Any:
    match item:
        case Many():
            return structure(item.items)
        case Alike():
            return "alike"
        case Growing():
            return ("growing", id(item.origin), len(item.parts))
        case Nothing():
            return "nothing"
    return None


def rebuilt(graph: Graph, like: Sequence[Operand], flat: Iterator[Operand]) -> list[Operand]:
    """Items of the structure of others from a flat list of theirs."""
    return [_rebuilt(graph, item, flat) for item in like]


def _rebuilt(graph: Graph, like: Operand, flat: Iterator[Operand]) -> Operand:
    match like:
        case Many():
            return Many(graph, rebuilt(graph, like.items, flat), like.dtype)
        case Alike():
            return Alike(next(flat).value)
        case Growing():
            return like.with_parts(graph, [next(flat).value for _ in like.parts])
    return next(flat)


def is_number(number: Any) -> bool:
    """Whether this dim is known as a number."""
    return not isinstance(number, Poly)


def numbers(known: Array) -> Sequence[Dim]:
    """The flat list of an object array."""
    return list(known.reshape(-1))


def _materialise(graph: Graph, known: Array, dtype: DType) -> Value:
    if all(is_number(n) for n in known.reshape(-1)):
        return graph.constant(known.astype(dtype.numpy), name=None)
    dims_tensor = graph.add(DimsTensor(tuple(numbers(known)), dtype))
    assert isinstance(dims_tensor, Value)
    return dims_tensor.reshape(*known.shape) if known.ndim != 1 else dims_tensor


def _numbers(value: Value) -> Array | None:
    if value.dtype.kind not in ("int", "uint", "bool") or not _is_small(value):
        return None
    array = _evaluate(value, 0, {})
    return None if array is None else array.astype(object)


def _is_small(value: Value) -> bool:
    size = value.type.size
    return isinstance(size, int) and size <= MAX_KNOWN


def _evaluate(value: Value, depth: int, cache: dict[Value, Array | None]) -> Array | None:
    """The array of a small value that hangs on constants only."""
    if value.constant is not None:
        return value.constant
    if value not in cache:
        cache[value] = _run(value, depth, cache)
    return cache[value]


def _run(value: Value, depth: int, cache: dict[Value, Array | None]) -> Array | None:
    node = value.node
    if depth > _MAX_CHAIN or isinstance(node.op, (Input, Param)) or node.regions:
        return None
    if _has_symbols(tuple(node.op.attributes().values())):
        return None
    if not all(_is_small(v) for v in (*node.inputs, *node.outputs)):
        return None
    operands = [_evaluate(v, depth + 1, cache) for v in node.inputs]
    if any(o is None for o in operands):
        return None
    result = node.op.reference(*operands)
    results = result if isinstance(result, tuple) else (result,)
    return np.asarray(results[value.index], value.dtype.numpy)


def _has_symbols(attributes: tuple[Any, ...]) -> bool:
    return any(isinstance(a, Poly) or (isinstance(a, tuple) and _has_symbols(a)) for a in attributes)
