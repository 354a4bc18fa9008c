"""Times by kernel: all kernels of a program are in, loops count their trips, traces load, NaN is traced to its node."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.backends.executable import KernelTime
from rlx.errors import ProfileError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.runtime.against_prediction import predicted_kernels
from rlx.runtime.profiler import Profile, check_nan, profile
from support import isa_of, kind_of
from trace_format import check_trace

PROFILED = ("reference", "cpu", "vulkan", "opengl", "webgpu", "mlx", "xla")
X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)


def net() -> Graph:
    graph = Graph("net")
    x = graph.input("x", ("n", 8), "f32")
    graph.output(rlx.reduce_max(rlx.softmax(x @ x.transpose(1, 0), axis=1), axes=(1,)), name="y")
    return graph


def recurrent() -> tuple[Graph, list[Array]]:
    """A loop of 11 trips."""
    graph = Graph("recurrent")
    sizes = {"x": (11, 1, 4), "w": (1, 4, 4), "r": (1, 4, 4), "b": (1, 8), "h": (1, 1, 4)}
    graph.output(rlx.rnn(*(graph.input(name, shape, "f32") for name, shape in sizes.items()))[0])
    return graph, [np.full(shape, 0.1, np.float32) for shape in sizes.values()]


def asking() -> Graph:
    """Two conditionals that data decide, a loop that data end, and a size that data tell."""
    graph = Graph("asking")
    x = graph.input("x", (6,), "f32")
    for _ in range(2):
        sides = []
        for number in (0.5, 2.0):
            side = Graph("side")
            side.output(side.input("x", (6,), "f32") * number)
            sides.append(side)
        (x,) = rlx.ops.if_(rlx.reduce_max(x, axes=(0,)) > 1.0, x, regions=tuple(sides))
    test, body = Graph("test"), Graph("body")
    test.output(rlx.reduce_max(test.input("x", (6,), "f32"), axes=(0,)) < 40.0)
    body.output(body.input("x", (6,), "f32") * 2.0)
    (x,) = rlx.ops.while_(x, regions=(test, body), carried=1)
    graph.output(rlx.ops.nonzero(x) * 2)
    return graph


def check_times(device: str, graph: Graph, inputs: Sequence[Array]) -> list[KernelTime]:
    """Holds what is true of the times of a run on every device, and gives them."""
    session = rlx.Session(device)
    timed = session.with_options(replace(session.options, profile=True)).compile(graph)
    results = timed.run(inputs)
    for result, plain in zip(results, session.compile(graph).run(inputs), strict=True):
        np.testing.assert_array_equal(result, plain)
    start = time.perf_counter_ns()
    times = timed.kernel_times(inputs)
    wall_ns = time.perf_counter_ns() - start
    for result, again in zip(results, timed.run(inputs), strict=True):
        np.testing.assert_array_equal(result, again)
    ran = [k for k in times if k.calls]
    assert ran and all(k.name and k.total_ns >= 0 and k.first_ns >= 0 for k in times)
    assert sum(k.total_ns for k in ran) <= 1.5 * (os.cpu_count() or 1) * wall_ns
    assert max(k.first_ns for k in ran) <= 1.5 * wall_ns
    named = names_of(graph)
    assert all(set(k.sources) <= named for k in times), [k.sources for k in times]
    assert any(k.sources for k in ran)
    return times


def names_of(graph: Graph) -> set[str]:
    inner = (names_of(region) for node in graph.nodes for region in node.regions)
    return {node.source or node.name for node in graph.nodes}.union(*inner)


@pytest.mark.devices(*PROFILED)
def test_every_kernel_has_a_time(device: str) -> None:
    times = check_times(device, net(), [X])
    assert 1 <= len(times) <= 40 and all(k.calls >= 1 and k.sources for k in times)
    starts = [k.first_ns for k in times]
    assert starts == sorted(starts)
    profiled = profile(net(), {"x": X}, rlx.Session(device), runs=3)
    assert profiled.device == device
    assert {s for k in profiled.kernels for s in k.sources} >= {"matmul_1", "softmax_2", "reduce_max_3"}
    assert profiled.total_ns == pytest.approx(sum(k.total_ns for k in profiled.by_time()))


@pytest.mark.devices(*PROFILED)
def test_what_the_host_settles_is_between_kernels(device: str) -> None:
    times = check_times(device, asking(), [np.array([0, 1, 0, 3, 0, 5], np.float32)])
    assert device in ("reference", "xla") or max(k.calls for k in times) >= 5  # a loop is one kernel to these


def test_a_profiled_program_gives_the_same_results_on_every_instruction_set(device: str) -> None:
    session = rlx.Session(kind_of(device), isa=isa_of(device))
    plain = session.compile(net()).run([X])[0]
    options = type(session.options)(isa=session.options.isa, profile=True, cache=False)
    compiled = session.with_options(options).compile(net())
    np.testing.assert_array_equal(compiled.run([X])[0], plain)
    assert len(compiled.kernel_times([X])) > 0


@pytest.mark.devices("cpu", "vulkan", "opengl", "webgpu", "mlx")  # to xla so small a loop is one instruction
def test_kernels_of_a_loop_count_their_trips(device: str) -> None:
    assert max(k.calls for k in check_times(device, *recurrent())) == 11


@pytest.mark.devices(*PROFILED)
def test_a_trace_holds_a_span_for_each_kernel_in_that_of_the_run(device: str, tmp_path: Path) -> None:
    session = rlx.Session(device)
    profiled = profile(net(), {"x": X}, session)
    profiled.save_trace(tmp_path / "trace.json", predicted_kernels(net(), {"x": X}, session, profiled), 5e6)
    events = check_trace((tmp_path / "trace.json").read_text())
    spans = {kind: [e for e in events if e.get("cat") == kind] for kind in ("kernel", "host", "copy")}
    assert [e["name"] for e in spans["kernel"]] == [k.name for k in profiled.kernels]
    host = {e["name"]: e for e in spans["host"]}
    assert host["load"]["dur"] == 5000 and host.keys() >= {"load", "run"}
    start, end = host["run"]["ts"], host["run"]["ts"] + host["run"]["dur"]
    assert all(start - 1e-6 <= e["ts"] and e["ts"] + e["dur"] <= end + 1e-6 for e in spans["kernel"])
    assert host["run"]["dur"] * 1e3 >= profiled.run_ns - 1 or device == "xla"  # a trace has microseconds
    copied = [(e["name"], e["args"]["bytes"]) for e in spans["copy"]]
    assert copied == (
        [] if device in ("reference", "cpu") else [("copy x to the device", 192), ("copy y to the host", 24)]
    )


def test_kernels_tell_sizes_and_their_share_of_the_roofline(tmp_path: Path) -> None:
    session = rlx.Session("cpu", threads=1)
    profiled = profile(net(), {"x": X}, session)
    assert profiled.threads == 1
    predicted = predicted_kernels(net(), {"x": X}, session, profiled)
    events = profiled.trace(predicted)["traceEvents"]
    kernels = [e["args"] for e in events if e.get("cat") == "kernel"]
    assert next(a for a in kernels if "matmul_1" in a["nodes"])["results"]["matmul_1"] == "f32[6, 6]"
    for args in kernels:
        assert args["share_of_roofline"] > 0 and args["bytes"] > 0 and args["bound_by"] in ("compute", "memory")
    (run,) = (e["args"] for e in events if e["name"] == "run")
    assert run["threads"] == 1 and run["kernels_ms"] == pytest.approx(profiled.total_ns / 1e6)


def test_programs_with_states_and_random_numbers_are_profiled_too() -> None:
    graph = Graph("keeps")
    state, x = graph.state("s", (3,)), graph.input("x", ("n", 3))
    graph.set_next(state, state + 1.0)
    graph.output(x + state + rlx.random_uniform(graph.random_state(), shape=(3,)), name="y")
    check_trace(json.dumps(profile(graph, [np.ones((2, 3), np.float32)], rlx.Session("cpu")).trace()))


def test_events_that_overlap_stand_in_lines_of_their_own() -> None:
    spans = [(0, 5), (5, 1), (5.5, 3), (20, 1), (6, 1)]
    kernels = tuple(KernelTime("k", (), 1, float(length), float(first)) for first, length in spans)
    events = check_trace(json.dumps(Profile("g", "d", kernels).trace()))
    assert [e["tid"] for e in events if e.get("cat") == "kernel"] == [1, 1, 2, 1, 1]


WRONG: tuple[dict[str, object], ...] = (
    {"ts": -1.0}, {"dur": None}, {"ph": "Q"}, {"tid": "1"}, {"name": ""}, {"cat": None}, {"tid": 7}, {"args": 1},
    {"ts": float("nan")}, {"ts": 3.0, "dur": 10.0},
)  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_the_check_of_traces_finds_what_is_wrong(change: dict[str, object]) -> None:
    kernels = (KernelTime("a", (), 1, 5e3, 0.0), KernelTime("b", (), 1, 1e3, 6e3))
    trace = Profile("g", "d", kernels).trace()
    check_trace(json.dumps(trace))
    trace["traceEvents"][-1].update(change)
    with pytest.raises(AssertionError):
        check_trace(json.dumps(trace))


def test_only_a_program_compiled_for_it_can_be_profiled() -> None:
    with pytest.raises(ProfileError, match=r"\[profile\] expected a program compiled for profiling"):
        rlx.Session("cpu").compile(net()).kernel_times([X])
    with pytest.raises(ProfileError, match="at least one run, got 0"):
        profile(net(), [X], rlx.Session("cpu"), runs=0)


@pytest.mark.devices("ane")
def test_a_device_that_tells_no_times_says_so(device: str) -> None:
    if device in PROFILED:
        pytest.skip(f"{device} tells times")
    with pytest.raises(ProfileError, match="on a device that can time its kernels"):
        profile(net(), [X], rlx.Session(device))


@pytest.mark.devices(*PROFILED)
def test_the_first_node_that_makes_a_nan_is_named(device: str) -> None:
    graph = Graph("bad")
    x = graph.input("x", (3,), "f32")
    root = rlx.sqrt(x - 1.0)
    root.node.source = "the root"
    graph.output(rlx.exp(root) + 1.0)
    session = rlx.Session(device)
    first = check_nan(graph, [np.array([0, 2, 3], np.float32)], session)
    assert first is not None and (first.node, first.op, first.nans) == ("the root", "sqrt", 1)
    assert check_nan(graph, [np.array([1, 2, 3], np.float32)], session) is None
    # what comes in as NaN is nobody's fault
    assert check_nan(graph, [np.array([np.nan, 2, 3], np.float32)], session) is None


def test_infinities_count_only_if_asked_for() -> None:
    graph = Graph("large")
    graph.output(rlx.exp(graph.input("x", (2,), "f32")) + 1.0)
    inputs, session = [np.array([1, 1000], np.float32)], rlx.Session("cpu")
    assert check_nan(graph, inputs, session) is None
    first = check_nan(graph, inputs, session, infinities=True)
    assert first is not None and (first.op, first.infinities) == ("exp", 1)
