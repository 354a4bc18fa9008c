"""Inputs of a model as inputs of our graph: tensors, sequences of them, optionals; values that the caller fixed."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.errors import GraphError, ModelError, RlxError, UnsupportedOp
from rlx.frontends.onnx.model import dtype_of
from rlx.frontends.onnx.operand import Many, Nothing, Operand
from rlx.frontends.onnx.weights import Leaves
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.literal import Array

MAX_DIM_NAME = 256  # characters that are kept


class Inputs:
    """Makes inputs. `dims` are names of dims in the file with ours; `sequences` gets the names of elements; dims with
    `sizes` are numbers."""

    def __init__(
        self,
        graph: Graph,
        leaves: Leaves,
        shapes: Mapping[str, Sequence[Any] | None],
        values: Mapping[str, Array],
        sequences: dict[str, tuple[str, ...]],
        label: str,
        sizes: Mapping[str, int],
    ) -> None:
        self.graph, self.leaves, self.label = graph, leaves, label
        self.shapes, self.values, self.sequences, self.sizes = shapes, values, sequences, sizes
        self.dims: dict[str, str] = {}
        self._taken: set[str] = set()

    def item(self, name: str, of: Any) -> Operand | None:
        """An input of a type. Sequences are as many inputs as they have elements; an optional has its element unless
        it is said to have none."""
        kind = of.WhichOneof("value")
        if kind == "optional_type":
            if name in self.shapes and self.shapes[name] is None:
                return Nothing(self.graph)
            return self.item(name, of.optional_type.elem_type)
        if kind == "sequence_type":
            return self._sequence(name, of.sequence_type.elem_type)
        if kind != "tensor_type":
            raise UnsupportedOp(f"an input of {kind or 'no type'} is not supported")
        return self._tensor(name, of.tensor_type)

    def _sequence(self, name: str, of: Any) -> Operand:
        shapes = self.shapes.get(name)
        if shapes is None or of.WhichOneof("value") != "tensor_type":
            raise UnsupportedOp("the length of a sequence must be known: pass shapes={name: [shape of each element]}")
        parts = [f"{name}.{i}" for i in range(len(shapes))]
        dtype = dtype_of(of.tensor_type.elem_type)
        self.sequences[name] = tuple(parts)
        items = [self._made(part, shape, dtype) for part, shape in zip(parts, shapes)]
        return Many(self.graph, items, dtype)

    def _tensor(self, name: str, tensor: Any) -> Operand | None:
        dtype = dtype_of(tensor.elem_type)
        if name in self.values:
            return self._fixed(name, dtype)
        if name in self.shapes:
            shape: list[Any] = list(self.shapes[name] or ())
        elif tensor.HasField("shape"):
            shape = [self._dim(d, f"{name}_{i}") for i, d in enumerate(tensor.shape.dim)]
        else:
            raise UnsupportedOp("the file gives it no rank: pass shapes={name: dims}")
        try:
            return self._made(name, shape, dtype)
        except RlxError as error:
            raise ModelError(f"{error}, at input {name!r} of {self.label}") from None

    def _made(self, name: str, shape: Sequence[Any], dtype: DType) -> Operand:
        return Operand.of(self.graph.input(name, [dims.substitute(dims.of(d), self.sizes) for d in shape], dtype))

    def _fixed(self, name: str, dtype: DType) -> Operand:
        """An input that the caller fixed to a value."""
        array = np.asarray(self.values[name])
        if dtypes.of(array.dtype) is not dtype:
            raise GraphError(f"[onnx] expected a value of {dtype} for the input {name!r}, got {array.dtype}")
        return self.leaves.make(name, array)

    def _dim(self, dim: Any, fallback: str) -> Dim | str:
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:  # some exporters write -1 for "any"
            return int(dim.dim_value)
        # "?" names nothing: two of them need not be equal
        name = dim.dim_param if any(c.isalnum() for c in dim.dim_param) else fallback
        if name not in self.dims:
            identifier = _identifier(name)
            while identifier in self._taken:
                identifier += "_"
            self._taken.add(identifier)
            self.dims[name] = identifier
        return self.dims[name]


def _identifier(name: str) -> str:
    """A name that dims may have: `seq-len` → `seq_len`, `2x` → `d2x`."""
    identifier = re.sub(r"\W", "_", name[:MAX_DIM_NAME], flags=re.ASCII) or "d"
    identifier = identifier if identifier.isidentifier() else f"d{identifier}"
    return f"{identifier}_" if keyword.iskeyword(identifier) else identifier
