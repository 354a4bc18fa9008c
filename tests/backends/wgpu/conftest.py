"""Adapters under test: every kind of driver that this machine has. Tests are skipped, with the reason, where there is
none; on Linux, mesa-vulkan-drivers and libegl1 bring software ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import pytest

from rlx.backends.base import Options
from rlx.backends.wgpu import BACKENDS
from rlx.backends.wgpu.executable import WgpuExecutable
from rlx.ir.graph import Graph
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from support import assert_close, commit_number, why_absent

KINDS = ("vulkan", "opengl")
ATTENTION = 4
"""OpenGL has one sweep of attention of so many, others at each commit: its kernels are Vulkan's, and a compiler of
shaders takes most of a second for each."""
ATTENTION_TESTS = Path(__file__).with_name("test_attention.py")
Check = Callable[..., list[Array]]


def is_repeated(item: pytest.Item) -> bool:
    """Whether Vulkan alone has a case of a sweep at this commit."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    if item.path != ATTENTION_TESTS or parameters.get("kind") != "opengl" or len(parameters) == 1:
        return False
    return (crc32(item.nodeid.encode()) + commit_number()) % ATTENTION != 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    repeated = [item for item in items if is_repeated(item)]
    if repeated:
        config.hook.pytest_deselected(items=repeated)
        left_out = set(repeated)
        items[:] = [item for item in items if item not in left_out]


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
