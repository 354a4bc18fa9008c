"""Which values between convolutions are rounded, and that all others stay as they are."""

from __future__ import annotations

from rlx import ops
from rlx.ir.graph import Graph
from rlx.passes.driver import Context
from rlx.passes.narrow_activations import NarrowActivations
from rlx.passes.pipeline import narrowed, optimise, standard
from rlx.passes.precision import policy_of

from .nets import conv, residual_net


def roundings(graph: Graph, mode: str = "f16") -> list[str]:
    """The ops whose results are rounded, of f32."""
    policy = policy_of(mode)
    ready, _ = optimise(graph, [*standard(policy=policy), *narrowed(policy)])
    ends = [node.inputs[0] for node in ready.nodes if node.op.name == "cast" and node.types[0].dtype.bits == 16]
    return sorted(value.op.name for value in ends if value.dtype.bits == 32 and value.op.name not in ("input", "param"))


def test_what_lies_in_memory_is_rounded_once() -> None:
    """The two activations that convolutions or a mean read, the one before the pool, and one of two branches: the other
    one is added where it is made."""
    graph = Graph("net")
    graph.output(residual_net(graph))
    assert roundings(graph) == ["add", "maximum", "maximum", "maximum"]


def test_pools_of_rounded_values_are_narrow() -> None:
    graph = Graph("net")
    graph.output(residual_net(graph))
    policy = policy_of("bf16")
    ready, _ = optimise(graph, [*standard(policy=policy), *narrowed(policy)])
    (pool,) = [node for node in ready.nodes if node.op.name == "reduce_window"]
    assert pool.types[0].dtype.name == "bf16"


def test_results_and_what_no_convolution_leads_to_stay() -> None:
    graph = Graph("net")
    x = graph.input("x", (1, 8, 6, 6))
    y = ops.relu(conv(graph, x, 8, "first"))
    graph.output(y, conv(graph, y, 8, "second"), ops.relu(x) + 1.0)
    assert roundings(graph) == ["maximum"]  # for the second convolution alone
    plain = Graph("plain")
    x = plain.input("x", (4, 8))
    hidden = ops.relu(x @ plain.param("w", (8, 8)))
    plain.output(hidden + hidden @ plain.param("v", (8, 8)))
    before = optimise(plain, standard(policy=policy_of("f16")))[0]
    assert NarrowActivations().run(before, Context()) is before
    assert narrowed(policy_of("f32")) == []
