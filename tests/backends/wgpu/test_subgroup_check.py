"""Reductions that lanes share through subgroups: right, the same in every run, and without them where they are not
usable."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.backends.wgpu import subgroup_check
from rlx.backends.wgpu.device import SUBGROUPS
from rlx.ir.graph import Graph
from rlx.ir.literal import Array

from .conftest import Check, compiled

RANDOM = np.random.default_rng(5)
EXCHANGE = "subgroupShuffleXor"


def rows(dtype: str = "f32") -> tuple[Graph, dict[str, Array]]:
    """Long rows, which workgroups share, in all that may be joined."""
    graph = Graph("rows")
    x = graph.input("x", (5, 5000), dtype)
    graph.output(*(reduce(x, axes=(1,)) for reduce in (ops.reduce_sum, ops.reduce_max, ops.reduce_min)))
    if dtype == "f32":
        graph.output(ops.softmax(x, axis=1), ops.layer_norm(x, graph.param("g", (5000,)), graph.param("b", (5000,))))
        graph.output(ops.reduce_prod(x * 0.01 + 1.0, axes=(1,)), ops.argmax(x, axis=1))
        graph.output(ops.reduce_any(ops.gt(x, 3.5), axes=(1,)), ops.reduce_all(ops.lt(x, 3.5), axes=(1,)))
    values = RANDOM.standard_normal((5, 5000)) * (1 if x.dtype.is_float else 1e5)
    return graph, {"x": values.astype(x.dtype.numpy)}


PARAMS = {name: RANDOM.standard_normal(5000).astype(np.float32) for name in "gb"}


@pytest.fixture
def grouped(kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kind of driver that has subgroups."""
    monkeypatch.setenv("RLX_WGPU_SUBGROUPS", "1")
    if not set(SUBGROUPS) & set(compiled(kind, rows()[0]).device.features):
        pytest.skip(f"{kind}: the driver has no subgroups")
    return kind


def text(kind: str) -> str:
    return "".join(step.shader.text for step in compiled(kind, rows()[0]).plan.main)


@pytest.mark.parametrize("dtype", ["f32", "i32", "u32", "i64", "u64", "bf16", "i8"])
def test_long_rows(dtype: str, grouped: str, check: Check) -> None:
    assert EXCHANGE in text(grouped)
    graph, inputs = rows(dtype)
    check(graph, [({}, inputs)], PARAMS)


def test_nan_and_infinities(grouped: str, check: Check) -> None:
    graph, inputs = rows()
    x = inputs["x"]
    x[0, 4321], x[1, 70], x[2, 1] = np.nan, np.inf, -np.inf
    x[3, :], x[4, 17:19] = -np.inf, (np.inf, -np.inf)
    check(graph, [({}, inputs)], PARAMS)


def test_every_run_gives_the_same(grouped: str) -> None:
    graph, inputs = rows()
    executable = compiled(grouped, graph, PARAMS)
    first = [array.tobytes() for array in executable.bind({})([inputs["x"]])]
    for _ in range(3):
        assert [array.tobytes() for array in executable.bind({})([inputs["x"]])] == first


def test_attention_of_few_queries(grouped: str, check: Check) -> None:
    graph = Graph("decoder")
    q = graph.input("q", (1, 8, 1, 16))
    k, v = (graph.input(name, (1, 2, 500, 16)) for name in "kv")
    graph.output(ops.attention(q, k, v, graph.input("m", (500,), "bool")))
    assert EXCHANGE in compiled(grouped, graph).plan.main[0].shader.text
    inputs = {v.name: RANDOM.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    for share in (0.5, 0.01, 0.0):
        check(graph, [({}, {**inputs, "m": RANDOM.random(500) < share})])


def test_the_flag_leaves_none(grouped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_WGPU_SUBGROUPS", "0")
    assert EXCHANGE not in text(grouped) and "subgroup_size" not in text(grouped)


def test_portable_devices_have_none(grouped: str) -> None:
    assert EXCHANGE in text(grouped) and EXCHANGE not in text("webgpu")


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("sizes[at] = size", "sizes[at] = size + (group.x & 1u)"),
        ("sizes[at] = size", "sizes[at] = 128u"),
        ("places[at] = place", "places[at] = size - 1u - place"),
        ("subgroupShuffleXor(lane,", "subgroupShuffleXor(lane & 62u,"),
    ],
)
def test_what_is_not_usable_is_found(right: str, wrong: str, grouped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = compiled(grouped, rows()[0]).device
    assert subgroup_check.usable(device)
    assert right in subgroup_check.SHADER
    monkeypatch.setattr(subgroup_check, "SHADER", subgroup_check.SHADER.replace(right, wrong))
    assert not subgroup_check.usable(device)
    monkeypatch.setitem(device.__dict__, "_usable_subgroups", False)
    assert EXCHANGE not in text(grouped)
