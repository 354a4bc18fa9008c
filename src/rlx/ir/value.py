"""Values of a graph, and the nodes that they are results of. Python's operators on values build nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.arguments import is_index
from rlx.errors import GraphError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect, indexing
from rlx.ir.concrete import Concrete
from rlx.ir.dim import Shape
from rlx.ir.dtype import DType
from rlx.ir.literal import Array
from rlx.ir.methods import ArrayMethods, no_attribute
from rlx.ir.op import Constant, Op
from rlx.ir.type import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Graph


class Value(ArrayMethods, Concrete):
    """One result of a node. Operators and methods build nodes: `(x @ w + b).sum(0)`."""

    __slots__ = ("index", "node")
    __array_priority__ = 1000

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.index = index

    @property
    def graph(self) -> Graph:
        return self.node.graph

    @property
    def type(self) -> TensorType:
        return self.node.types[self.index]

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def name(self) -> str:
        return self.node.name if self.index == 0 else f"{self.node.name}.{self.index}"

    @property
    def op(self) -> Op:
        return self.node.op

    @property
    def constant(self) -> Array | None:
        """The array if this is a constant, else None."""
        return self.node.op.value.array if isinstance(self.node.op, Constant) else None

    def __eq__(self, other: object) -> bool:
        """Whether this is the same result of the same node (`ops.eq` compares elements)."""
        return isinstance(other, Value) and self.node is other.node and self.index == other.index

    def __hash__(self) -> int:
        return id(self.node) + self.index

    if not TYPE_CHECKING:  # which knows all attributes, and would take any

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"

    def cast(self, to: Any) -> Value:
        """This value in another dtype; itself if it has it."""
        target = dtypes.of(to)
        return self if target is self.dtype else self.graph.build("cast", self, to=target)

    def reshape(self, *shape: Any) -> Value:
        """New shape of as many elements; one entry may be -1."""
        target_shape = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        target = indexing.resolve_reshape(self.shape, tuple(dims.of(d) for d in target_shape))
        return self if target == self.shape else self.graph.build("reshape", self, shape=target)

    def transpose(self, *permutation: Any) -> Value:
        """Axes in this order, as ints or as one tuple; reversed if none are given."""
        given = permutation[0] if len(permutation) == 1 and isinstance(permutation[0], (tuple, list)) else permutation
        order = tuple(given) or tuple(reversed(range(self.rank)))
        if not all(map(is_index, order)):
            raise GraphError(f"[transpose] expected axes as ints, or one tuple of them, got {order}")
        return self.graph.build("transpose", self, permutation=expect.axes(order, self.rank, "permutation"))

    @property
    def T(self) -> Value:
        return self.transpose()

    def __add__(self, other: Any) -> Value:
        return self.graph.build("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.graph.build("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.graph.build("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.graph.build("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.graph.build("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.graph.build("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.graph.build("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.graph.build("div", other, self)

    def __mod__(self, other: Any) -> Value:
        return self.graph.build("mod", self, other)

    def __rmod__(self, other: Any) -> Value:
        return self.graph.build("mod", other, self)

    def __rpow__(self, other: Any) -> Value:
        return self.graph.build("pow", other, self)

    def __pow__(self, other: Any) -> Value:
        return self.graph.build("pow", self, other)

    def __neg__(self) -> Value:
        return self.graph.build("neg", self)

    def __abs__(self) -> Value:
        return self.graph.build("abs", self)

    def __matmul__(self, other: Any) -> Value:
        return self.graph.build("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Value:
        return self.graph.build("matmul", other, self)

    def __lt__(self, other: Any) -> Value:
        return self.graph.build("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return self.graph.build("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.graph.build("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return self.graph.build("ge", self, other)

    def __and__(self, other: Any) -> Value:
        return self.graph.build("bitwise_and", self, other)

    def __or__(self, other: Any) -> Value:
        return self.graph.build("bitwise_or", self, other)

    def __xor__(self, other: Any) -> Value:
        return self.graph.build("bitwise_xor", self, other)

    def __rand__(self, other: Any) -> Value:
        return self.graph.build("bitwise_and", other, self)

    def __ror__(self, other: Any) -> Value:
        return self.graph.build("bitwise_or", other, self)

    def __rxor__(self, other: Any) -> Value:
        return self.graph.build("bitwise_xor", other, self)

    def __invert__(self) -> Value:
        return self.graph.build("bitwise_not", self)

    def __getitem__(self, key: Any) -> Value:
        """Ints, slices with int or dim ends, None and `...`, as in NumPy, and integers in one array or value."""
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(each, (Value, np.ndarray, list)) for each in keys):
            return self._gathered(keys)
        index = indexing.plan(self.shape, keys)
        part = self
        if not index.keeps_all(self.shape):
            part = self.graph.build("slice", self, starts=index.starts, stops=index.stops, steps=index.steps)
        return part if part.shape == index.shape else self.graph.build("reshape", part, shape=index.shape)

    def _gathered(self, keys: tuple[Any, ...]) -> Value:
        """The elements at places that an array or a value lists, with slices along other axes."""
        arrays = [i for i, each in enumerate(keys) if isinstance(each, (Value, np.ndarray, list))]
        others = [each for i, each in enumerate(keys) if i != arrays[0]]
        if not all(each is None or each is Ellipsis or isinstance(each, slice) for each in others):
            raise GraphError(f"[index] expected one array of indices beside slices, or rlx.take(…), got {keys!r}")
        given = keys[arrays[0]]
        places = self.graph.operand(self, np.asarray(given) if isinstance(given, list) else given)
        if not places.dtype.is_integer:
            mask = "rlx.masked_select(x, mask), whose size a run measures, or rlx.where(mask, x, other)"
            raise GraphError(f"[index] expected integers, or for a mask {mask}, got x[{places!r}]")
        part = self[tuple(slice(None) if i == arrays[0] else each for i, each in enumerate(keys))]
        dots = next((i for i, each in enumerate(keys) if each is Ellipsis), len(keys))
        axis = arrays[0] if arrays[0] < dots else part.rank - (len(keys) - arrays[0])
        return self.graph.build("gather", part, places, axis=axis)


class Node:
    """An op applied. `source` names what it came from (the node in a model file, the pass that made it)."""

    __slots__ = ("graph", "inputs", "name", "op", "regions", "source", "types")

    def __init__(
        self,
        graph: Graph,
        op: Op,
        inputs: tuple[Value, ...],
        types: tuple[TensorType, ...],
        name: str,
        source: str | None,
        regions: tuple[Graph, ...],
    ) -> None:
        self.graph = graph
        self.op = op
        self.inputs = inputs
        self.types = types
        self.name = name
        self.source = source
        self.regions = regions

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (Value(self, 0),) if len(self.types) == 1 else tuple([Value(self, i) for i in range(len(self.types))])

    def __repr__(self) -> str:
        inside = ", ".join(f"%{v.name}" for v in self.inputs)
        return f"%{self.name}: {', '.join(map(str, self.types))} = {self.op.name}({inside})"
