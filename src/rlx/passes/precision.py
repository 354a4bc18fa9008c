"""The precision policy: which nodes compute in another dtype than they are written in. The default changes nothing.

With `f16` or `bf16` products, convolutions and attention of f32 take their operands in that dtype and add up in f32,
as matrix units do; their results, rounded once, and everything else stay f32. Weights are rounded once, when they are
prepared. GPUs with kernels in C++ also round what convolutions lead to, and what norms read and make, where it lies in
memory (`narrow_activations.py`, `narrow_norms.py`).
With `f32_fast` the graph stays as it is, and targets with matrix units may make products of f32 of several
ones of shorter floats, with errors of f32's size (`kernel.passes.float_parts`); others compute in f32.
`int8` and `f8` are no policies but other graphs (`quantise.py`), whose floats a target may narrow as with `f16`.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.errors import DTypeError, OptionError, did_you_mean
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Op
from rlx.ops import build
from rlx.ops.contraction import Einsum
from rlx.ops.convolution import Conv, ConvTranspose
from rlx.ops.experts import GroupedMatmul
from rlx.ops.linalg import DotGeneral, Matmul
from rlx.ops.packed import PackedMatmul
from rlx.ops.transformer import Attention
from rlx.passes.driver import Context, Pass, Rebuild

Policy = Callable[[Node], DType | None]
MODES = ("f32", "f32_fast", "f16", "bf16", "int8", "f8")
MULTIPLIED = (DotGeneral, Matmul, Einsum, Conv, ConvTranspose, GroupedMatmul, Attention)
"""Ops that do almost all of the arithmetic."""
LEAST_MASK = -65504.0
"""The least number of f16. What masks add to scores is far below that often, and would be -inf, which sums to NaN where
nothing else is in a row."""


def policy_of(mode: str, also: tuple[type[Op], ...] = ()) -> Policy | None:
    """The policy of a precision mode; None for f32 and f32_fast, which leave the graph as it is, and for int8 and f8,
    which are other graphs (`passes.quantise`). `also` are composites of a target that are products. Raises
    OptionError."""
    if mode not in MODES:
        near = did_you_mean(_called_here(mode), MODES)
        raise OptionError(f"[session] expected a precision of {', '.join(MODES)}, got {mode!r}{near}")
    target = {"f16": dtypes.f16, "bf16": dtypes.bf16}.get(mode)
    if target is None:
        return None

    def narrow(node: Node) -> DType | None:
        floats = {v.dtype for v in node.inputs if v.dtype.is_float}
        return target if isinstance(node.op, (*MULTIPLIED, *also)) and floats == {dtypes.f32} else None

    return narrow


def _called_here(mode: object) -> str:
    """A mode by the name that its dtype has here: what NumPy calls float16 is f16."""
    try:
        return dtypes.of(mode).name
    except DTypeError:
        return str(mode)


class Precision(Pass):
    """Where the policy names a float dtype for a node, its float operands are cast to it and its results back."""

    name = "precision"

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy

    def run(self, graph: Graph, context: Context) -> Graph:
        if self.policy is None:
            return graph
        rebuild = Rebuild(graph)
        applied = 0
        for node in graph.nodes:
            target = self.policy(node)
            if target is None or not _changes(node, target) or not context.spend(self.name, "compute-in", node):
                rebuild.keep(node)
                continue
            if not target.is_float:
                raise DTypeError(f"[precision] expected a float dtype for node {node.name!r}, got {target}")
            operands = [rebuild[v] for v in node.inputs]
            if isinstance(node.op, Attention) and target is dtypes.f16 and len(operands) > 3:
                mask = operands[3]
                operands[3] = mask if mask.dtype.kind == "bool" else build.maximum(mask, LEAST_MASK)
            first = len(rebuild.new.nodes)
            count = 1 if isinstance(node.op, PackedMatmul) else len(operands)  # scales are not what is multiplied
            narrow = (v.cast(target) if v.dtype.is_float else v for v in operands[:count])
            outputs = rebuild.new.add(node.op, *narrow, *operands[count:])
            results = outputs if isinstance(outputs, tuple) else (outputs,)
            rebuild.replace(node, *(_back(v, t.dtype) for v, t in zip(results, node.types)), first=first)
            applied += 1
        return rebuild.finish() if applied else graph


def _changes(node: Node, target: DType) -> bool:
    return not node.regions and any(v.dtype.is_float and v.dtype is not target for v in node.inputs)


def _back(value: Value, dtype: DType) -> Value:
    return value.cast(dtype) if value.dtype.is_float else value
