"""Theoretical costs of ops: operations and bytes, for any device. Composites cost what their parts cost."""

from __future__ import annotations

from rlx.ir.graph import Graph, Node
from rlx.ir.op import Composite, Cost, Op
from rlx.ir.type import TensorType


def cost_of(node: Node) -> Cost:
    """The work of a node."""
    return _cost(node.op, tuple(value.type for value in node.inputs), node.types)


def _cost(op: Op, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
    if isinstance(op, Composite) and type(op).cost is Op.cost:
        return _of_definition(op, inputs, outputs)
    return op.cost(inputs, outputs)


def _of_definition(op: Composite, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
    """The operations of the definition; bytes as if it were one kernel: operands read and results written once."""
    graph = Graph()
    op.decompose(*(graph.input(f"x{i}", of.shape, of.dtype) for i, of in enumerate(inputs)))
    parts = [cost_of(node) for node in graph.nodes]
    flops = sum((part.flops for part in parts), start=0)
    transcendentals = sum((part.transcendentals for part in parts), start=0)
    return Cost(flops, transcendentals, op.cost(inputs, outputs).bytes)
