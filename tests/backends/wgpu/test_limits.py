"""What does not fit is refused with a reason, before anything runs wrongly."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.wgpu import BACKENDS, build, layout
from rlx.errors import DeviceUnavailable, InputError, OutOfMemory, UnsupportedOp
from rlx.ir.graph import Graph

from .conftest import compiled


def test_a_buffer_that_is_too_large(kind: str) -> None:
    graph = Graph("large")
    x = graph.input("x", ("n", 1024))
    graph.output(x + 1.0)
    executable = compiled(kind, graph)
    with pytest.raises(OutOfMemory, match="buffers of at most"):
        executable.bind({"n": executable.device.max_binding // 1024})


def test_indices_that_need_64_bits(kind: str) -> None:
    graph = Graph("large")
    x = graph.input("x", ("n",), "i64")
    graph.output(ops.iota(graph, shape=("n",), dtype="i64") * (1 << 30) + x)
    executable = compiled(kind, graph)
    rows = np.zeros(2, np.int64)
    (actual,) = executable.bind({"n": 2})([rows])
    assert actual.tolist() == [0, 1 << 30]
    with pytest.raises(UnsupportedOp, match="32-bit indices"):
        executable.bind({"n": 3})


def test_loops_that_the_driver_would_end(kind: str) -> None:
    """llvmpipe ends loops after 65535 iterations without a word: what needs more is refused, not computed wrongly."""
    graph = Graph("long")
    x, y = graph.input("x", (2, "n")), graph.input("y", (2, "k"))
    weight = graph.input("w", ("k", 3))
    graph.output(ops.reduce_sum(x, axes=(1,)), y @ weight)
    executable = compiled(kind, graph)
    if executable.device.max_iterations > 1 << 17:
        pytest.skip(f"{executable.device.name} has no such limit")
    for n, k in ((1, 70_000), (10_000_000, 1)):
        with pytest.raises(UnsupportedOp, match="ends loops"):
            executable.bind({"n": n, "k": k})
    long, deep = np.ones((2, 1_000_000), np.float32), np.ones((2, 50_000), np.float32)
    sums, product = executable.bind({"n": 1_000_000, "k": 50_000})([long, deep, np.ones((50_000, 3), np.float32)])
    assert sums.tolist() == [1e6, 1e6]
    assert product.tolist() == [[5e4] * 3] * 2


def test_missing_weights(kind: str) -> None:
    graph = Graph("weights")
    graph.output(graph.input("x", (3,)) + graph.param("w", (3,)))
    executable = compiled(kind, graph)
    with pytest.raises(InputError, match="got none for"):
        executable.bind({})([np.zeros(3, np.float32)])
    executable.set_params({"w": np.ones(3, np.float32)})
    assert executable.bind({})([np.zeros(3, np.float32)])[0].tolist() == [1, 1, 1]


def test_an_adapter_that_is_not_there(kind: str) -> None:
    graph = Graph("none")
    graph.output(graph.input("x", (3,)) + 1.0)
    with pytest.raises(DeviceUnavailable, match="adapters here"):
        BACKENDS[kind]().compile(graph, Options(), ordinal=17)


def test_limits_of_the_standard(kind: str) -> None:
    """`webgpu` takes the best adapter, within the limits that every WebGPU device has."""
    graph = Graph("portable")
    x = graph.input("x", (4, 8))
    graph.output(ops.softmax(x @ graph.param("w", (8, 8)), axis=-1))
    executable = BACKENDS["webgpu"]().compile(graph, Options())
    executable.set_params({"w": np.eye(8, dtype=np.float32)})
    rows = np.arange(32, dtype=np.float32).reshape(4, 8)
    power = np.exp(rows - rows.max(-1, keepdims=True))
    np.testing.assert_allclose(executable.bind({})([rows])[0], power / power.sum(-1, keepdims=True), rtol=1e-5)


def many_weights(count: int) -> Graph:
    graph = Graph("weights")
    total = graph.input("x", (64,))
    for i in range(count):
        total = total + graph.param(f"w{i}", (64,))
    graph.output(total)
    return graph


def test_weights_in_pieces() -> None:
    """No device is needed: weights are spread over pieces that a binding takes, and a kernel has few bindings."""
    whole = build.build(many_weights(12), Options(), 1 << 20)
    assert len(whole.heaps.kept) == 1
    pieces = build.build(many_weights(6), Options(), 256)
    assert len(pieces.heaps.kept) == 6
    assert {len(step.heaps) for step in pieces.main} == {8}  # with the input, and the output
    with pytest.raises(UnsupportedOp, match="pieces of memory"):
        build.build(many_weights(12), Options(), 256)


def test_what_is_refused_has_a_reason() -> None:
    graph = Graph("refused")
    x = graph.input("x", (3,), "f64")
    graph.output(ops.exp(x), graph.input("y", (3,)) + 1.0, ops.cast(graph.input("z", (3,), "c64"), to="f32"))
    refused = {u.node.name: u.reason for u in BACKENDS["vulkan"]().unsupported(graph)}
    assert refused["x"] == "WGSL has no f64"
    assert refused["z"] == "WGSL has no complex numbers"
    assert "y" not in refused
    with pytest.raises(UnsupportedOp, match="WGSL has no f64"):
        build.build(graph, Options(), 1 << 20)


def test_buffers_do_not_overlap() -> None:
    """Buffers that are alive at once have places of their own in the arena, in the sizes that they have there."""
    graph = Graph("arena")
    x = graph.input("x", ("n", 8), "bf16")
    y = graph.input("y", ("n", 3), "i64")
    graph.output(ops.softmax(x, axis=-1), ops.gather(x, y[:, 0], axis=0), y * 2, ops.gt(x, 0.0))
    plan = build.build(graph, Options(), 1 << 20)
    for n in (1, 5, 40):
        arena = layout.place_arena(plan.program, plan.memory, plan.heaps, {"n": n})
        ends = []
        for number in (*plan.program.inputs, *plan.program.outputs):
            buffer = plan.program.buffers[number]
            size = layout.stored_bytes(buffer, plan.heaps.target)
            nbytes = size if isinstance(size, int) else int(str(size).split("*")[0]) * n
            ends.append((arena.start[number] * 4, arena.start[number] * 4 + nbytes))
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
        assert ends[-1][1] <= arena.pieces[layout.ARENA].outputs_end <= arena.nbytes
