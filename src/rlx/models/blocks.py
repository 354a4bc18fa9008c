"""Building blocks of model families, over weights by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rlx.errors import ModelError
from rlx.frontends.files import flush_subnormals
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ops.build import layer_norm


class Weights:
    """The arrays of a checkpoint as params of a graph, made when first asked for.

    keep_dtype   the graph computes in the dtype of the checkpoint; else narrower floats are widened to f32 where they
                 are used, and stay as narrow as they are in memory
    family       of the model, for messages
    """

    def __init__(
        self,
        graph: Graph,
        arrays: Mapping[str, Array],
        prefix: str = "",
        keep_dtype: bool = True,
        family: str = "weights",
    ) -> None:
        self.graph = graph
        self._family = family
        self._arrays = arrays
        self._prefix = prefix
        self._keep_dtype = keep_dtype
        self._made: dict[str, Value] = {}

    def __call__(self, name: str, *shape: int) -> Value:
        """The weight of this name. Raises ModelError if it is missing or has another shape."""
        if name not in self._made:
            array = self._arrays.get(self._prefix + name)
            dtype = None if array is None else dtypes.of(array.dtype)
            if array is None or array.shape != shape or dtype is None or not dtype.is_float:
                actual = "no such tensor" if array is None else f"{dtype}{list(array.shape)}"
                expected = f"floats of shape {list(shape)}"
                raise ModelError(f"[{self._family}] expected {expected}, got {actual}, at {self._prefix + name!r}")
            data = flush_subnormals(array)
            weight = self.graph.param(name, data.shape, data.dtype, data)
            widens = not self._keep_dtype and weight.dtype.is_float and weight.dtype.bits < 32
            self._made[name] = weight.cast("f32") if widens else weight
        return self._made[name]

    @property
    def unused(self) -> list[str]:
        """Names in the checkpoint of what nobody asked for."""
        used = {self._prefix + name for name in self._made}
        return [name for name in self._arrays if name not in used]


@contextmanager
def named(graph: Graph, name: str) -> Iterator[None]:
    """Nodes made in the block come from the part of the model called `name`: errors and profiles say so."""
    first = len(graph.nodes)
    yield
    for node in graph.nodes[first:]:
        node.source = name if node.source is None else f"{name}.{node.source}"


def linear(weights: Weights, name: str, x: Value, inner: int, outer: int) -> Value:
    """x Wᵀ + b, the weight stored [outer, inner]."""
    with named(weights.graph, name):
        return x @ weights(f"{name}.weight", outer, inner).T + weights(f"{name}.bias", outer)


def norm(weights: Weights, name: str, x: Value, size: int, epsilon: float) -> Value:
    """Layer norm over the last axis."""
    with named(weights.graph, name):
        scale, bias = weights(f"{name}.weight", size), weights(f"{name}.bias", size)
        return layer_norm(x, scale, bias, axes=(-1,), epsilon=epsilon)


def split_heads(x: Value, heads: int) -> Value:
    """[batch, seq, heads · size] → [batch, heads, seq, size]."""
    batch, seq, hidden = x.shape
    assert isinstance(hidden, int)  # it comes from a weight
    return x.reshape(batch, seq, heads, hidden // heads).transpose(0, 2, 1, 3)


def join_heads(x: Value) -> Value:
    """[batch, heads, seq, size] → [batch, seq, heads · size]."""
    batch, heads, seq, size = x.shape
    assert isinstance(heads, int) and isinstance(size, int)
    return x.transpose(0, 2, 1, 3).reshape(batch, seq, heads * size)
