"""Times by kernel: all kernels of a program are in, loops count their trips, traces load, NaN is traced to its node."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.errors import ProfileError
from rlx.ir.graph import Graph
from rlx.runtime.profiler import check_nan, profile

PROFILED = ("cpu", "reference")
X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)


def net() -> Graph:
    graph = Graph("net")
    x = graph.input("x", ("n", 8), "f32")
    graph.output(rlx.reduce_max(rlx.softmax(x @ x.transpose(1, 0), axis=1), axes=(1,)), name="y")
    return graph


@pytest.mark.parametrize("device", PROFILED)
def test_every_kernel_has_a_time(device: str) -> None:
    found = profile(net(), {"x": X}, rlx.Session(device), runs=3)
    assert found.device == device
    assert found.kernels and all(k.calls == 1 and k.total_ns > 0 and k.sources for k in found.kernels)
    starts = [k.first_ns for k in found.kernels]
    assert starts == sorted(starts)
    assert found.total_ns == pytest.approx(sum(k.total_ns for k in found.by_time()))


def test_a_profiled_program_gives_the_same_results_on_every_instruction_set(device: str) -> None:
    name, _, isa = device.partition("-")
    session = rlx.Session(name, isa=isa or None)
    plain = session.compile(net()).run([X])[0]
    options = type(session.options)(isa=session.options.isa, profile=True, cache=False)
    compiled = session.with_options(options).compile(net())
    np.testing.assert_array_equal(compiled.run([X])[0], plain)
    assert len(compiled.kernel_times([X])) > 0


def test_kernels_of_a_loop_count_their_trips() -> None:
    graph = Graph("recurrent")
    sizes = {"x": (11, 1, 4), "w": (1, 12, 4), "r": (1, 12, 4), "b": (1, 24), "h": (1, 1, 4)}
    values = [graph.input(name, shape, "f32") for name, shape in sizes.items()]
    graph.output(rlx.rnn(*[values[0], values[1][:, :4], values[2][:, :4], values[3][:, :8], values[4]])[0])
    found = profile(graph, [np.zeros(s, np.float32) for s in sizes.values()], rlx.Session("cpu"))
    assert max(k.calls for k in found.kernels) == 11


def test_a_trace_holds_an_event_for_each_kernel(tmp_path: Path) -> None:
    found = profile(net(), {"x": X}, rlx.Session("cpu"))
    found.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == [k.name for k in found.kernels]


def test_only_a_program_compiled_for_it_can_be_profiled() -> None:
    with pytest.raises(ProfileError, match=r"\[profile\] expected a program compiled for profiling"):
        rlx.Session("cpu").compile(net()).kernel_times([X])
    with pytest.raises(ProfileError, match="at least one run, got 0"):
        profile(net(), [X], rlx.Session("cpu"), runs=0)


@pytest.mark.parametrize("device", PROFILED)
def test_the_first_node_that_makes_a_nan_is_named(device: str) -> None:
    graph = Graph("bad")
    x = graph.input("x", (3,), "f32")
    root = rlx.sqrt(x - 1.0)
    root.node.source = "the root"
    graph.output(rlx.exp(root) + 1.0)
    session = rlx.Session(device)
    found = check_nan(graph, [np.array([0, 2, 3], np.float32)], session)
    assert found is not None and (found.node, found.op, found.nans) == ("the root", "sqrt", 1)
    assert check_nan(graph, [np.array([1, 2, 3], np.float32)], session) is None
    # what comes in as NaN is nobody's fault
    assert check_nan(graph, [np.array([np.nan, 2, 3], np.float32)], session) is None


def test_infinities_count_only_if_asked_for() -> None:
    graph = Graph("large")
    graph.output(rlx.exp(graph.input("x", (2,), "f32")) + 1.0)
    inputs, session = [np.array([1, 1000], np.float32)], rlx.Session("cpu")
    assert check_nan(graph, inputs, session) is None
    found = check_nan(graph, inputs, session, infinities=True)
    assert found is not None and (found.op, found.infinities) == ("exp", 1)
