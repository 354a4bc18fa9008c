"""Composites that rearrange elements: reversed sequences, and columns put back into images."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Range, Tolerance, op
from rlx.ir.type import TensorType
from rlx.ops import build

Array = np.ndarray[Any, Any]


@op
class ReverseSequence(Composite):
    """Of every batch element the first `lengths` steps backwards, the rest as it is.

    x        any [...]
    lengths  int [B], B the extent of `batch_axis`
    """

    time_axis: int = 0
    batch_axis: int = 1

    def infer(self, x: TensorType, lengths: TensorType) -> TensorType:
        _, batch = expect.axes((self.time_axis, self.batch_axis), x.rank)
        expect.integer(lengths, "lengths")
        expect.rank(lengths, 1, "lengths", at_most=1)
        expect.same_dim(lengths.shape[0], x.shape[batch], f"expected a length for each batch element of {x}")
        return x

    def ranges(self, x: TensorType, lengths: TensorType) -> tuple[Range, ...]:
        return (Range(1, 0, dims.add(x.shape[self.time_axis], 1), "lengths"),)

    def reference(self, x: Array, lengths: Array) -> Array:
        rows = np.moveaxis(x, (self.batch_axis, self.time_axis), (0, 1))
        reversed_rows = rows.copy()
        for row, length in enumerate(np.clip(lengths.astype(np.int64), 0, rows.shape[1])):
            reversed_rows[row, :length] = rows[row, :length][::-1]
        return np.moveaxis(reversed_rows, (0, 1), (self.batch_axis, self.time_axis))

    def decompose(self, x: Value, lengths: Value) -> Value:
        time, batch = expect.axes((self.time_axis, self.batch_axis), x.rank)
        shape = tuple(d if i in (time, batch) else 1 for i, d in enumerate(x.shape))
        step = build.iota(x.graph, shape=shape, dtype="i64", axis=time)
        length = lengths.cast("i64").reshape(tuple(d if i == batch else 1 for i, d in enumerate(x.shape)))
        length = build.minimum(length, build.dims_tensor(x.graph, values=(x.shape[time],)).reshape())
        source = build.select(step < length, length - 1 - step, step)
        return build.gather_elements(x, build.broadcast_to(source, shape=x.shape), axis=time)


@op
class Col2im(Composite):
    """Blocks of an image laid back where they came from; where they overlap they add up. The inverse of im2col.

    x        number [N, C · Πblock, L], L blocks in row-major order of their places
    result   [N, C, image...]
    """

    image: tuple[Dim, ...]
    block: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    tolerance = Tolerance(64, scale=1)

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, "int", "uint", "float")
        expect.rank(x, 3, at_most=3)
        parts = (self.image, self.block, self.strides, self.dilations, self.low, self.high)
        if len({len(part) for part in parts}) != 1 or any(n < 1 for n in (*self.block, *self.strides, *self.dilations)):
            raise ShapeError(f"expected a block, strides, dilations and pads for each axis of {list(self.image)}")
        channels = dims.exact_div(x.shape[1], int(np.prod(self.block)))
        if channels is None:
            raise ShapeError(f"expected channels that are a multiple of the block {list(self.block)}, got {x}")
        expect.same_dim(x.shape[2], dims.product(self._places()), f"expected as many blocks as fit, got {x}")
        return x.with_shape((x.shape[0], channels, *self.image))

    def _places(self) -> tuple[Dim, ...]:
        """Number of blocks along each axis."""
        parts = zip(self.image, self.block, self.strides, self.dilations, self.low, self.high)
        return tuple(dims.add(dims.floordiv(dims.add(d, a + b - g * (k - 1) - 1), s), 1) for d, k, s, g, a, b in parts)

    def reference(self, x: Array) -> Array:
        places = [dims.evaluate(p, {}) for p in self._places()]
        image = [dims.evaluate(d, {}) for d in self.image]
        channels = x.shape[1] // int(np.prod(self.block))
        wide = x.astype(np.float64) if x.dtype.kind not in "iu" else x
        parts: Any = wide.reshape(x.shape[0], channels, *self.block, *places)
        total = np.zeros(
            (x.shape[0], channels, *(d + a + b for d, a, b in zip(image, self.low, self.high))), wide.dtype
        )
        for tap in itertools.product(*map(range, self.block)):
            where: Any = tuple(
                slice(t * g, t * g + (n - 1) * s + 1, s)
                for t, g, n, s in zip(tap, self.dilations, places, self.strides)
            )
            total[(slice(None), slice(None), *where)] += parts[(slice(None), slice(None), *tap)]
        cut: Any = tuple(slice(a, a + d) for a, d in zip(self.low, image))
        return np.asarray(total[(slice(None), slice(None), *cut)]).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        """Each position of the block by itself: its elements spread out, moved into place, added."""
        channels = dims.floordiv(x.shape[1], int(np.prod(self.block)))
        places = self._places()
        parts = x.reshape(x.shape[0], channels, int(np.prod(self.block)), *places)
        total: Value | None = None
        for number, tap in enumerate(itertools.product(*map(range, self.block))):
            part = build.dilate(parts[:, :, number], steps=(1, 1, *self.strides))
            low = [t * g - a for t, g, a in zip(tap, self.dilations, self.low)]
            high = [dims.add(d, dims.mul(dims.add(span, a), -1)) for d, span, a in zip(self.image, part.shape[2:], low)]
            part = build.pad(part, low=(0, 0, *low), high=(0, 0, *high))
            total = part if total is None else total + part
        assert total is not None  # a block has an element at least
        return total
