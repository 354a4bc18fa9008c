"""What becomes of ops on a device, with reasons, and what a run starts and moves."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.claims import Dispatch
from rlx.device.policy import DevicePolicy
from rlx.device.support import OpReport, dispatch_report
from rlx.errors import InputError
from rlx.ir.graph import Graph
from rlx.runtime.graph_devices import GraphDevices
from rlx.runtime.session import Session
from support import why_absent


def net() -> Graph:
    """An encoder in little: a lookup, products, attention, a norm."""
    graph = Graph("net")
    ids = graph.input("ids", (1, "n"), "i64")
    x = rlx.gather(graph.param("table", (50, 64), "f32"), ids, axis=0)
    heads = rlx.transpose((x @ graph.param("w", (64, 64), "f32")).reshape((1, "n", 4, 16)), permutation=(0, 2, 1, 3))
    mixed = rlx.transpose(rlx.attention(heads, heads, heads), permutation=(0, 2, 1, 3)).reshape((1, "n", 64))
    y = rlx.layer_norm(x + mixed, graph.param("scale", (64,), "f32"), graph.param("bias", (64,), "f32"))
    graph.output(y, name="y")
    graph.output(rlx.reduce_max(rlx.gelu(y), axes=(2,)), name="top")
    random = np.random.default_rng(0)
    graph.data = {v.name: random.standard_normal(v.type.shape).astype(np.float32) for v in graph.params}
    return graph


IDS = [np.arange(12, dtype=np.int64)[None]]


def reports(graph: Graph, device: str, dispatch: Dispatch | None = None) -> dict[str, OpReport]:
    options = Options(dispatch=dispatch or Dispatch())
    return {op.op: op for op in dispatch_report(graph, device, options).ops}


@pytest.mark.parametrize("device", ["cpu", "vulkan", "xla"])
def test_ops_that_one_kernel_does_are_native(device: str) -> None:
    by_op = reports(net(), device)
    assert str(by_op["matmul"]).endswith("native (through dot_general)")
    assert by_op["gelu"].fate == by_op["layer_norm"].fate == "native"
    assert by_op["layer_norm"].through == ("reduce_sum",)
    assert "erf" in by_op["gelu"].through
    graph = Graph("rows")
    graph.output(rlx.softmax(graph.input("x", ("n", 8), "f32"), axis=-1))
    (softmax,) = dispatch_report(graph, device).ops
    assert (softmax.fate, softmax.through) == ("native", ("reduce_max", "reduce_sum"))


def test_what_is_taken_apart_says_why() -> None:
    graph = Graph("wide")
    q = graph.input("q", (1, 4, "n", 16), "f64")
    graph.output(rlx.attention(q, q, q, causal=True, window=4))
    wide = reports(graph, "cpu")["attention"]
    assert (wide.fate, wide.reason) == ("decomposed", "f64: the kernel is for f32, f16, bf16")
    assert reports(net(), "cpu")["attention"] == OpReport("attention_4", "attention", "native")
    forced = reports(net(), "cpu", Dispatch("force-common"))["attention"]
    assert (forced.fate, forced.reason) == ("decomposed", "the options take it apart")
    lacking = reports(net(), "xla")["attention"]
    assert lacking.fate == "decomposed" and lacking.reason.startswith("no kernel of its own: dot_general, ")
    for device in ("cpu", "vulkan", "xla", "mlx"):
        for op in (*reports(net(), device).values(), *reports(graph, device).values()):
            assert (op.fate == "decomposed") <= bool(op.reason), op


@pytest.mark.parametrize("device", ["cpu", "vulkan", "mlx", "reference"])
def test_a_profile_counts_what_runs(device: str) -> None:
    reason = why_absent(device)
    if reason:
        pytest.skip(reason)
    profiled = GraphDevices(net(), DevicePolicy().only(device)).io_profile(device, IDS)
    program = Session(device).with_options(Options(profile=True)).compile(net())
    assert profiled.kernel_launches == sum(kernel.calls for kernel in program.kernel_times(IDS))
    assert profiled.launches_exact == (device != "mlx")
    assert profiled.unified_memory and profiled.host_readback_bytes == 0


def test_a_profile_of_xla_counts_what_xla_is_given() -> None:
    reason = why_absent("xla")
    if reason:
        pytest.skip(reason)
    profiled = GraphDevices(net(), DevicePolicy().only("xla")).io_profile("xla", IDS)
    program = Session("xla").with_options(Options(profile=True)).compile(net())
    ran = sum(kernel.calls for kernel in program.kernel_times(IDS))
    assert not profiled.launches_exact and ran <= profiled.kernel_launches


def test_a_profile_of_some_outputs_is_that_of_their_program() -> None:
    devices = GraphDevices(net(), DevicePolicy().only("cpu", "null", "null:1"))
    whole, part = devices.io_profile("cpu", IDS), devices.io_profile("cpu", IDS, outputs=["y"])
    alone = Session("cpu").compile(net()).select(["y"])
    assert part == GraphDevices(alone.graph, DevicePolicy().only("cpu")).io_profile("cpu", IDS)
    assert part.kernel_launches <= whole.kernel_launches  # the row of the norm gives the other one too
    assert part.device_traffic_bytes < whole.device_traffic_bytes
    assert part.host_output_bytes == 12 * 64 * 4
    none = devices.io_profile("cpu", IDS, outputs=[])
    assert (none.host_output_bytes, none.device_traffic_bytes) == (0, 0)
    with pytest.raises(InputError, match="expected outputs among"):
        devices.io_profile("cpu", IDS, outputs=["z"])


def test_memory_of_their_own_is_read_back() -> None:
    devices = GraphDevices(net(), DevicePolicy().only("null", "null:1"))
    discrete, integrated = devices.io_profile("null", IDS), devices.io_profile("null:1", IDS)
    assert (discrete.unified_memory, integrated.unified_memory) == (False, True)
    assert (discrete.host_readback_bytes, integrated.host_readback_bytes) == (discrete.host_output_bytes, 0)
    report = json.loads(json.dumps(discrete.as_dict()))
    assert report["host_readback_bytes"] == 12 * 64 * 4 + 12 * 4 and report["unified_memory"] is False
