"""Which operands and results of norms are rounded, and that memory holds them so."""

from __future__ import annotations

import numpy as np

from rlx import ops
from rlx.backends.cuda.build import program_of
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Value
from rlx.kernel.ir.program import leaves
from rlx.passes.pipeline import names, narrowed, optimise, standard
from rlx.passes.precision import policy_of
from rlx.runtime.quantised import quantised


def held(graph: Graph, name: str, *shape: int) -> Value:
    return graph.param(name, shape, data=np.ones(shape, np.float32))


def norm(graph: Graph, x: Value, name: str) -> Value:
    y: Value = ops.layer_norm(x, held(graph, f"{name}.scale", 64), held(graph, f"{name}.bias", 64), epsilon=1e-5)
    return y


def block(graph: Graph, x: Value, name: str) -> Value:
    """A layer whose norm follows the sum: all that is added was normed."""
    hidden = ops.gelu(x @ held(graph, f"{name}.up", 64, 128))
    return norm(graph, x + hidden @ held(graph, f"{name}.down", 128, 64), name)


def roundings(graph: Graph, mode: str | None = "f16", narrows: bool = True) -> int:
    """How many values are rounded and widened again."""
    policy = None if mode is None else policy_of(mode)
    ready, _ = optimise(graph, standard(policy=policy, narrows=dtypes.f16 if narrows else None))
    ends = [node.inputs[0] for node in ready.nodes if node.op.name == "cast" and node.types[0].dtype.bits == 32]
    return sum(value.node.op.name == "cast" and value.dtype.bits == 16 for value in ends)


def after_norms() -> Graph:
    graph = Graph("net")
    x = graph.input("x", ("n", 64))
    graph.output(block(graph, block(graph, norm(graph, x, "first"), "second"), "third"))
    return graph


def test_operands_and_results_of_norms_are_rounded() -> None:
    """The results of the first and the second norm, which products read, and the operands of the second and the third;
    the operand of the first is an input, and the result of the third is the graph's."""
    assert roundings(after_norms()) == 4
    assert roundings(after_norms(), "bf16") == 4


def test_nothing_is_rounded_unasked() -> None:
    assert roundings(after_norms(), narrows=False) == 0
    assert roundings(after_norms(), None) == 0
    assert roundings(after_norms(), "f32_fast") == 0
    assert "narrow-norms" in names()


def test_a_residual_stream_stays_as_it_is() -> None:
    """Where norms come before products, sums of many layers may be greater than numbers of 16 bits are."""
    graph = Graph("net")
    x = graph.input("x", ("n", 64))
    for name in ("first", "second"):
        x = x + norm(graph, x, name) @ held(graph, f"{name}.w", 64, 64)
    graph.output(x)
    assert roundings(graph) == 0


def test_what_is_rounded_lies_in_memory_so() -> None:
    """Both the kernel that makes it and all that read it have 16 bits, though several read it."""
    graph = after_norms()
    policy = policy_of("f16")
    ready, _ = optimise(graph, standard(policy=policy, narrows=dtypes.f16))
    program = program_of(ready)
    wide = [
        kernel.name
        for kernel in leaves(program.main)
        for number in kernel.slots[: kernel.writes]
        if program.buffers[number].dtype.bits == 32 and program.buffers[number].kind == "temp"
    ]
    assert wide == []


def test_beside_products_of_bytes_norms_are_rounded_for_those_who_add_to_them() -> None:
    """As in f16, while bytes are made of a norm's own numbers."""
    graph = quantised(after_norms())
    policy = policy_of("f16")
    ready, _ = optimise(graph, standard(policy=policy, narrows=dtypes.f16))
    rounded = [node for node in ready.nodes if node.op.name == "cast" and node.types[0].dtype is dtypes.f16]
    assert len(rounded) == 4
    for node in rounded:
        users = [user for user in ready.uses(node.inputs[0]) if user is not node]
        assert not any(user.op.name == "add" and user.inputs[1] == node.inputs[0] for user in users)
        widened = [user for user in ready.uses(node.outputs[0]) if user.types[0].dtype is dtypes.f32]
        assert widened and not any(
            reader.op.name in ("reduce_min", "reduce_max") for user in widened for reader in ready.uses(user.outputs[0])
        )
    assert roundings(graph, narrows=False) == 0


def test_rows_of_products_that_become_bytes_are_rounded() -> None:
    """The gelu between both products of a layer, by whose rows bytes are made, and nothing of the norms."""
    graph = quantised(after_norms())
    ready, report = optimise(graph, [*standard(), *narrowed(dtypes.f16)])
    assert report.rewrites["narrow-rows/rows"] == 2
    rounded = [node for node in ready.nodes if node.op.name == "cast" and node.types[0].dtype is dtypes.f16]
    assert [node.types[0].shape[-1] for node in rounded] == [128, 128]
