"""Tensors of the model as params and constants of the program."""

from __future__ import annotations

from rlx.frontends.files import flush_subnormals
from rlx.frontends.onnx.operand import MAX_KNOWN, Operand
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.ir.literal import Array

MAX_CONSTANT_BYTES = 1 << 16


class Leaves:
    """Makes params and constants of the arrays of a model, under their own names where those are free. `finish` reads
    the data of params, which nobody does before: a model that is refused is refused at once."""

    def __init__(self, graph: Graph, keep_subnormals: bool) -> None:
        self.graph = graph
        self._keep_subnormals = keep_subnormals
        self._taken: set[str] = set()
        self._seen = 0  # nodes whose names are in `_taken`

    def make(self, name: str, array: Array) -> Operand:
        """A weight for floats of more than one element and for big integer tables, else a constant.

        A few integers are known numbers and come into the graph only where a value is made of them.
        """
        dtype = dtypes.of(array.dtype)
        if array.size <= MAX_KNOWN and not dtype.is_inexact and dtype.bits >= 8:
            return Operand.knowing(self.graph, array.astype(object), dtype)
        if array.size <= 1 or (not dtype.is_inexact and array.nbytes <= MAX_CONSTANT_BYTES):
            return Operand.of(self.graph.constant(array))
        return Operand.of(self.graph.param(self._free(name), array.shape, array.dtype, array))

    def finish(self) -> None:
        """Makes subnormal weights zero, unless they are wanted."""
        if not self._keep_subnormals:
            for name, array in self.graph.data.items():
                self.graph.data[name] = flush_subnormals(array)

    def _free(self, name: str) -> str:
        self._taken.update(node.name for node in self.graph.nodes[self._seen :])
        self._seen = len(self.graph.nodes)
        number = 1
        stem = name
        while name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        return name
