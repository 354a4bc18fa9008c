"""Which composites a backend runs without decomposing them: those that it supports, restricted by the user's
options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from rlx.arguments import methods_checked
from rlx.errors import OptionError, UnsupportedOp, did_you_mean
from rlx.ir import dim as dims
from rlx.ir.op import Constant, Param
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.ir.graph import Node, Value

Policy = Literal["prefer-native", "force-common", "force-native"]
Claim: TypeAlias = "Callable[[Node], str | None]"
"""A node → None if the backend has no kernel for such ops, "" if it takes the node, else why it does not."""


@methods_checked()
@dataclass(frozen=True)
class Dispatch:
    """`prefer-native` takes the backend's own kernels where there are any; `force-common` decomposes everything, as all
    backends would; `force-native` refuses a graph where a kernel of its own does not take a node. `overrides` say it
    for single ops, by name."""

    policy: Policy = "prefer-native"
    overrides: tuple[tuple[str, Policy], ...] = ()

    def __post_init__(self) -> None:
        """Raises OptionError for a policy or an op that there is not."""
        for op, policy in (("", self.policy), *self.overrides):
            if op:
                _check_op(op)
            if policy not in get_args(Policy):
                expected = f"expected one of {', '.join(get_args(Policy))}{f' for {op}' if op else ''}"
                raise OptionError(f"[dispatch] {expected}, got {policy!r}{did_you_mean(str(policy), get_args(Policy))}")

    def of(self, op: str) -> Policy:
        return dict(self.overrides).get(op, self.policy)

    def claims(self, claim: Claim) -> Callable[[Node], bool]:
        """What the pass that decomposes asks. Its answers raise UnsupportedOp for what is forced and cannot be."""

        def decide(node: Node) -> bool:
            policy = self.of(node.op.name)
            reason = None if policy == "force-common" else claim(node)
            if reason and policy == "force-native":
                at = node.source or node.name
                raise UnsupportedOp(
                    f"[{node.op.name}] expected what the native kernel takes, got {reason}, at node {at}"
                )
            return reason == ""

        return decide


def _check_op(name: str) -> None:
    import rlx.ops  # noqa: F401  # whose modules fill the registry
    from rlx.ir.op import REGISTRY

    if name not in REGISTRY:
        raise OptionError(f"[dispatch] expected ops, got {name!r}{did_you_mean(name, REGISTRY)}")


PREFER_NATIVE = Dispatch()

MOST_FEATURES = 256
"""Of a head: kernels keep a row of them close by."""


def attention_unsupported(node: Node) -> str:
    """What `FusedAttention` does not say of an attention, or no kernel takes; empty if there is nothing."""
    from rlx.ops.transformer import Attention

    assert isinstance(node.op, Attention)
    sizes = [node.inputs[i].type.shape[3] for i in (0, 2)]
    if not all(isinstance(size, int) for size in sizes):
        return "a head size that is not known"
    if any(isinstance(size, int) and size > MOST_FEATURES for size in sizes):
        return f"a head size over {MOST_FEATURES}"
    heads, shared = (node.inputs[i].type.shape[1] for i in (0, 1))
    return "" if isinstance(dims.exact_div(heads, shared), int) else "a number of heads to a key that is not known"


def is_static(value: Value) -> bool:
    """Whether a value is made of weights and constants alone."""
    pending, seen = [value.node], {id(value.node)}
    while pending:
        node = pending.pop()
        if node.regions or not (node.inputs or isinstance(node.op, (Param, Constant))):
            return False
        for operand in node.inputs:
            if id(operand.node) not in seen:
                seen.add(id(operand.node))
                pending.append(operand.node)
    return True
