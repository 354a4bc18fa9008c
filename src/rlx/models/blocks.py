"""Building blocks of model families, over weights by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from rlx.errors import ModelError
from rlx.frontends.files import flush_subnormals
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ops.build import gather, layer_norm, packed_matmul
from rlx.ops.packed import WIDTHS, packed_rows
from rlx.records import dataclass

SCALES, MINIMA = "{}.scales", "{}.minima"
"""Names of what goes with a matrix whose elements have few bits."""


@dataclass(frozen=True)
class Matrix:
    """A weight of [outer, inner]: floats, or integers of few bits with scales as `PackedMatmul` takes them.

    parts   the floats; or the integers u8 [outer, bytes], f32 scales, and minima if there are any
    bits    of an element; 0 for floats
    """

    parts: tuple[Value, ...]
    inner: int
    bits: int = 0

    def applied(self, x: Value) -> Value:
        """x Wᵀ."""
        if not self.bits:
            return x @ self.parts[0].cast(x.dtype).T
        block = self.inner // self._blocks
        made: Value = packed_matmul(
            x, *self.parts, depth=self.inner, bits=self.bits, block=block, added=len(self.parts) == 3
        )
        return made

    def rows(self, numbers: Value) -> Value:
        """The rows of these numbers, i64[...], as floats [..., inner]: no others are unpacked."""
        found = [gather(part, numbers, axis=0) for part in self.parts]
        return packed_rows(*found, bits=self.bits) if self.bits else found[0]

    @property
    def _blocks(self) -> int:
        count = self.parts[1].shape[1]
        assert isinstance(count, int)  # it comes from a weight
        return count


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

    def matrix(self, name: str, outer: int, inner: int) -> Matrix:
        """The weight of this name, which may be packed: then there are scales, and perhaps minima, beside it. Raises
        ModelError as a call does."""
        if self._prefix + SCALES.format(name) not in self._arrays:
            return Matrix((self(name, outer, inner),), inner)
        integers, scales = (self._arrays[self._prefix + each] for each in (name, SCALES.format(name)))
        minima = self._arrays.get(self._prefix + MINIMA.format(name))
        bits, blocks = 8 * integers.shape[-1] // inner, scales.shape[-1]
        fits = bits in WIDTHS and integers.shape == (outer, bits * inner // 8) and scales.shape == (outer, blocks)
        fits = fits and integers.dtype == np.uint8 and inner % blocks == 0 and inner // blocks * bits % 8 == 0
        if not fits or (minima is not None and minima.shape != scales.shape):
            actual = f"{dtypes.of(integers.dtype)}{list(integers.shape)} with scales {list(scales.shape)}"
            expected = f"packed elements of shape {[outer, inner]}"
            raise ModelError(f"[{self._family}] expected {expected}, got {actual}, at {self._prefix + name!r}")
        parts = [self._param(name, integers), self._param(SCALES.format(name), scales).cast("f32")]
        if minima is not None:
            parts.append(self._param(MINIMA.format(name), minima).cast("f32"))
        return Matrix(tuple(parts), inner, bits)

    @property
    def are_packed(self) -> bool:
        """Whether some of the weights are."""
        return any(name.endswith(SCALES.format("")) for name in self._arrays)

    def _param(self, name: str, array: Array) -> Value:
        if name not in self._made:
            self._made[name] = self.graph.param(name, array.shape, array.dtype, array)
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
