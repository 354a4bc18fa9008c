"""Timestamps: what they cost programs that do not ask, long programs, and adapters that have none."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.wgpu import BACKENDS, timers
from rlx.backends.wgpu.executable import WgpuExecutable
from rlx.errors import ProfileError
from rlx.ir.graph import Graph
from rlx.runtime.profiler import profile

from .conftest import compiled


def chain(length: int) -> Graph:
    graph = Graph("chain")
    x = graph.input("x", (4, 4))
    for _ in range(length):
        x = x @ x
    graph.output(x)
    return graph


def timed(kind: str, graph: Graph) -> WgpuExecutable:
    executable = BACKENDS[kind]().compile(graph, Options(profile=True))
    assert isinstance(executable, WgpuExecutable)
    return executable


def test_programs_that_are_not_timed_ask_for_no_timestamps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = compiled(kind, chain(3))
    assert not executable.capabilities.profiling
    raw = type(executable.device.raw)
    monkeypatch.setattr(raw, "create_query_set", lambda *_, **__: pytest.fail("a query set was made"))
    bound = executable.bind({})
    bound([np.eye(4, dtype=np.float32)])
    with pytest.raises(ProfileError, match=r"\[profile\] expected a program compiled for profiling"):
        bound.profile([np.eye(4, dtype=np.float32)])


def test_more_dispatches_than_a_query_set_holds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = timed(kind, chain(9))
    assert executable.capabilities.profiling
    monkeypatch.setattr(timers, "TIMED_TOGETHER", 4)
    times = executable.bind({}).profile([np.eye(4, dtype=np.float32)])
    assert [k.calls for k in times] == [1] * 9
    starts = [k.first_ns for k in times]
    assert starts == sorted(starts)


def test_an_adapter_without_timestamps_says_so(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = compiled(kind, chain(1)).device
    monkeypatch.setattr(device, "tick_ns", None)
    with pytest.raises(ProfileError, match=r"\[profile\] expected an adapter with the feature timestamp-query, got "):
        timed(kind, chain(1))
    with pytest.raises(ProfileError, match="timestamp-query"):
        profile(chain(1), [np.eye(4, dtype=np.float32)], rlx.Session(kind))


def test_work_that_is_not_there_takes_no_time(kind: str) -> None:
    graph = Graph("empty")
    graph.output(graph.input("x", ("n", 3)) + 1.0)
    times = timed(kind, graph).bind({"n": 0}).profile([np.zeros((0, 3), np.float32)])
    assert [(k.calls, k.total_ns, k.first_ns) for k in times] == [(0, 0.0, 0.0)]
