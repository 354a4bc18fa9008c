"""Adapters under test: every kind of driver that this machine has. Tests are skipped, with the reason, where there is
none; on Linux, mesa-vulkan-drivers and libegl1 bring software ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from rlx.backends.base import Options
from rlx.backends.wgpu import BACKENDS
from rlx.backends.wgpu.executable import WgpuExecutable
from rlx.ir.graph import Graph
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from support import assert_close, why_absent

KINDS = ("vulkan", "opengl")
Check = Callable[..., list[Array]]


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Name of a backend that has a device here."""
    name = str(request.param)
    reason = why_absent(name)
    if reason:
        pytest.skip(f"{name}: {reason}")
    return name


def compiled(kind: str, graph: Graph, params: Mapping[str, Array] | None = None) -> WgpuExecutable:
    executable = BACKENDS[kind]().compile(graph, Options())
    assert isinstance(executable, WgpuExecutable)
    executable.set_params({**graph.data, **(params or {})})
    return executable


@pytest.fixture
def check(kind: str) -> Check:
    """Runs a graph at one or more bindings of its dims, and compares with the reference."""

    def run(
        graph: Graph,
        calls: Sequence[tuple[Mapping[str, int], Mapping[str, Array]]],
        params: Mapping[str, Array] | None = None,
        tolerance: Tolerance | None = None,
    ) -> list[Array]:
        executable = compiled(kind, graph, params)
        results: list[Array] = []
        for binding, inputs in calls:
            results = executable.bind(binding)([inputs[v.name] for v in graph.inputs])
            expected = evaluate(graph, inputs, {**graph.data, **(params or {})}, binding)
            for actual, reference in zip(results, expected, strict=True):
                assert_close(actual, reference, tolerance or Tolerance(64, scale=1))
        return results

    return run
