"""What is said of sizes that do not go together: the node, its operands, both sizes, and the inputs they come from.

Reading it must take a glance: formulas of dims become numbers, and what is said last is left out first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rlx.errors import RlxError
from rlx.ir import dim as dims
from rlx.ir import expect
from rlx.ir.expect import Equality
from rlx.ir.type import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Graph, Node

MOST_CHARACTERS = 200
MOST_OF_A_NAME = 48
AT_NODE = ", at node "


def origins_of(inputs: Mapping[str, TensorType], binding: Mapping[str, int]) -> dict[str, str]:
    """The first input that has each dim alone on an axis, in words."""
    origins: dict[str, str] = {}
    for name, of in inputs.items():
        for axis, dim in enumerate(of.shape):
            if str(dim) in binding:
                origins.setdefault(str(dim), f"{dim} = {binding[str(dim)]} by input {name!r} axis {axis}")
    return origins


def told(
    equality: Equality, binding: Mapping[str, int], origins: Mapping[str, str], graph: Callable[[], Graph] | None = None
) -> str:
    """A sentence of an equality that does not hold.

    origins   of each dim, the input that it comes from, in words
    graph     the graph whose type rules noted the equality, where it is at hand
    """
    reason, _, label = equality.reason_at(binding).partition(AT_NODE)
    node = None if graph is None else _noted_by(equality, graph)
    of = [text for name, text in origins.items() if name in equality.symbols]
    op, operands, place = "", "", label.strip("'")
    if node is not None:
        op = "" if reason.startswith("[") else f"{node.op.name}: "
        operands = "".join(f", {value.node.source or value.name!r}" for value in node.inputs[:4])
        operands = f" of {operands[2:]}" if operands else ""
        place = place or node.source or node.name
    numbers = equality.sides(binding)

    def sentence(names: int, with_operands: bool, most: int) -> str:
        at = f"{AT_NODE}{_cut(place, most)!r}" if place else ""
        more = f" and {len(of) - names} more" if 0 < names < len(of) else ""
        come = f"; {', '.join(of[:names])}{more}" if names else ""
        return f"{op}{reason}{at}{operands if with_operands else ''}: {numbers}{come}"

    for names, with_operands, most in (
        (len(of), True, 1000), (len(of), False, 1000), (1, False, 1000), (1, False, MOST_OF_A_NAME),
    ):  # fmt: skip
        text = sentence(min(names, len(of)), with_operands, most)
        if len(text) <= MOST_CHARACTERS - len("[run] "):
            return text
    return text


def _cut(name: str, most: int) -> str:
    """The end of a long name: models say where a node is from the outside in."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def _noted_by(equality: Equality, graph: Callable[[], Graph]) -> Node | None:
    """The node whose type rule takes these dims to be equal; None where no node does, or the graph cannot be read."""
    from rlx.ir.inference import infer

    try:
        read = graph()
    except (RlxError, OSError):
        return None  # the file is gone or was written to: what is known without it is told
    wanted = (equality.left, equality.right)
    for node in read.nodes:
        if not node.inputs or not any(isinstance(d, dims.Poly) for v in node.inputs for d in v.shape):
            continue
        with expect.noting(read.assumes_equal) as noted:
            infer(node.op, tuple(v.type for v in node.inputs), node.regions)
        if any((e.left, e.right) == wanted and _same(e, equality) for e in noted):
            return node
    return None


def _same(noted: Equality, equality: Equality) -> bool:
    """Whether an equality is what a rule noted, and perhaps the name of a node after it."""
    return equality.reason.partition(AT_NODE)[0] == noted.reason


__all__ = ["MOST_CHARACTERS", "origins_of", "told"]
