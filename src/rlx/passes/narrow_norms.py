"""What norms of a narrow net read and make in 16 bits, where it would lie in memory: products of many rows, and the
norms between them, are bound by such bytes.

What a product leads to and a norm alone reads is rounded before; a residual stream, which others read too, is not, as
its numbers may grow beyond what f16 has. What a norm makes for a product, which reads it rounded, is rounded for all
others that read it. Products of bytes count as narrow too (`of_bytes`): a norm's result is rounded to bytes exactly, by
the same kernel, and memory has it in 16 bits for those who add to it.
"""

from __future__ import annotations

from collections import deque

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Elementwise
from rlx.ops.elementwise import Cast
from rlx.ops.float8 import Float8Matmul
from rlx.ops.integers import IntegerMatmul
from rlx.ops.linalg import DotGeneral
from rlx.ops.norm import LayerNorm, RmsNorm
from rlx.ops.reduce import Reduction
from rlx.passes.driver import Context, Pass
from rlx.passes.narrow_activations import with_rounded
from rlx.passes.precision import MULTIPLIED

HALVES = (dtypes.f16, dtypes.bf16)
BYTES = (dtypes.u8, dtypes.i8, dtypes.f8e4m3)
"""Integers and floats that products of bytes take."""
MOST_STEPS = 32
"""Nodes behind a value that are looked at for bytes, the nearest first: what makes these of a row is less."""


class NarrowNorms(Pass):
    """Rounds operands and results of norms. `of_bytes` is what counts as the dtype of products of bytes, if any."""

    name = "narrow-norms"

    def __init__(self, of_bytes: DType | None = None) -> None:
        self.of_bytes = of_bytes

    def run(self, graph: Graph, context: Context) -> Graph:
        kept = set(graph.outputs.values())
        stored: dict[Value, DType] = {}
        exact: set[int] = set()
        for node in graph.nodes:
            if not isinstance(node.op, (LayerNorm, RmsNorm)) or node.types[0].dtype is not dtypes.f32:
                continue
            given, made = node.inputs[0], node.outputs[0]
            if given not in kept and graph.uses(given) == [node] and (to := led_by(given, self.of_bytes)):
                stored[given] = to
            if made in kept:
                continue
            if to := _read_as(graph, made):
                stored[made] = to
            elif self.of_bytes and (readers := _readers_of_bytes(graph, made)):
                stored[made] = self.of_bytes
                exact.update(map(id, readers))
        spent = {v: to for v, to in stored.items() if context.spend(self.name, "norm", v.node)}
        return with_rounded(graph, spent, exact)


def _readers_of_bytes(graph: Graph, value: Value) -> list[Node]:
    """Nodes by way of which bytes are made of a value that others read as it is; none where nobody else does."""
    users = graph.uses(value)
    readers = [user for user in users if leads_to_bytes(graph, user)]
    return readers if len(readers) < len(users) else []


def leads_to_bytes(graph: Graph, node: Node) -> bool:
    """Whether bytes are made of a node's result, element by element or by its rows' ends."""
    waiting, seen = deque([node]), {id(node)}
    while waiting and len(seen) <= MOST_STEPS:
        each = waiting.popleft()
        if not isinstance(each.op, (Elementwise, Reduction)):
            continue
        if isinstance(each.op, Cast) and each.types[0].dtype in BYTES:
            return True
        users = [user for value in each.outputs for user in graph.uses(value) if id(user) not in seen]
        seen.update(map(id, users))
        waiting += users
    return False


def led_by(value: Value, of_bytes: DType | None, chain: set[Value] | None = None) -> DType | None:
    """The dtype of a narrow product that a value is made of element by element; None if there is none. `chain` gets the
    values on the way there."""
    waiting, seen = [value], set() if chain is None else chain
    seen.add(value)
    while waiting:
        node: Node = waiting.pop().node
        if isinstance(node.op, MULTIPLIED) and node.types[0].dtype in HALVES:
            return node.types[0].dtype
        if of_bytes and _multiplies_bytes(node):
            return of_bytes
        if not isinstance(node.op, Elementwise):
            continue
        more = [v for v in node.inputs if v.shape == value.shape and v not in seen]
        seen.update(more)
        waiting += more
    return None


def _multiplies_bytes(node: Node) -> bool:
    exact = isinstance(node.op, (IntegerMatmul, DotGeneral)) and node.types[0].dtype is dtypes.i32
    return exact or isinstance(node.op, Float8Matmul)


def _read_as(graph: Graph, value: Value) -> DType | None:
    """The dtype in which a product reads a value that others read as it is."""
    users = graph.uses(value)
    casts = [user for user in users if isinstance(user.op, Cast) and user.types[0].dtype in HALVES]
    for cast in casts:
        if len(casts) < len(users) and any(isinstance(user.op, MULTIPLIED) for user in graph.uses(cast.outputs[0])):
            return cast.types[0].dtype
    return None
