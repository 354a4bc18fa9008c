"""What tests share: running a graph on a backend, and comparing within a tolerance."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import numpy as np
import pytest

import rlx.ops  # noqa: F401  # methods of values call ops by name
import skips
from rlx.backends.base import Backend, Options
from rlx.backends.executable import Executable
from rlx.device import registry
from rlx.errors import DeviceUnavailable, InputError, UnsupportedOp
from rlx.ir.compare import mismatch
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import EXACT, Tolerance


@cache
def commit_number() -> int:
    """A number that every commit has another of: what is left to chance in tests hangs on it, and can be repeated."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    return int(git.stdout[:8], 16) if git.returncode == 0 else 0


USERS = 3
"""NVIDIA's compiler optimises one text of so many as for users, others at each commit; the rest in half of the time."""


def cubin(source: str, architecture: str) -> bytes:
    """Machine code of CUDA C++, where a test asks whether there is any. Raises CompileError."""
    from rlx.backends.cuda import nvrtc

    quick = (crc32(source.encode()) + commit_number()) % USERS != 0
    return nvrtc.compile_cubin(source, architecture, quick=quick)


EVERY_LAYOUT = 3
"""NVIDIA's compiler has one layout of so many of a kind of tiles, others at each commit: they differ in constants."""

Layout = TypeVar("Layout")


def layouts_at_turn(layouts: Sequence[Layout], number: int, parts: int) -> Sequence[Layout]:
    """Those that one of so many architectures has at this commit. At others it has all the rest."""
    every = parts * EVERY_LAYOUT
    return layouts[(number * EVERY_LAYOUT + commit_number()) % every :: every]


def kind_of(device: str) -> str:
    """The device's name without an instruction set, which processors alone have behind it."""
    return "cpu" if device.startswith("cpu-") else device


def isa_of(device: str) -> str | None:
    """The instruction set that stands behind the device's name, if one does."""
    return device.removeprefix("cpu-") if device.startswith("cpu-") else None


def backend(device: str) -> Backend:
    """The backend of this name; `cpu-avx2` is the CPU's with that instruction set (see `options_of`)."""
    return registry.backend(kind_of(device))[0]


def options_of(device: str, disable: frozenset[str] = frozenset()) -> Options:
    """How tests compile for a device."""
    return Options(disable=disable, isa=isa_of(device))


def binding_of(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Values of the dims that are a bare name in an input's shape."""
    binding: dict[str, int] = {}
    for value in graph.inputs:
        for dim, extent in zip(value.shape, inputs[value.name].shape, strict=True):
            if not isinstance(dim, int) and str(dim).isidentifier():
                binding[str(dim)] = extent
    graph.bind(binding)
    return binding


def compile_for(device: str, graph: Graph, disable: frozenset[str] = frozenset()) -> Executable:
    """The graph's program, without weights. Raises DeviceUnavailable, UnsupportedOp, CompileError."""
    backend, ordinal = registry.backend(kind_of(device))
    return backend.compile(graph, options_of(device, disable), ordinal)


@cache
def why_absent(device: str) -> str:
    """Why a device is not here; empty if a program runs on it. A driver may be found that gives no adapter."""
    reason = registry.why_unavailable(kind_of(device))
    if reason:
        return reason
    graph = Graph()
    graph.output(graph.input("x", (1,)) + 1.0)
    try:
        compile_for(device, graph)
    except DeviceUnavailable as error:
        return str(error)
    return ""


Runner = Callable[[Mapping[str, Array]], dict[str, Array]]


def run_on(
    device: str,
    graph: Graph,
    inputs: Mapping[str, Array],
    params: Mapping[str, Array] | None = None,
    disable: frozenset[str] = frozenset(),
) -> dict[str, Array]:
    """Results by name. Skips the test if the backend cannot take the graph for a reason that `skips.py` knows."""
    return runner(device, graph, params, disable)(inputs)


def runner(
    device: str, graph: Graph, params: Mapping[str, Array] | None = None, disable: frozenset[str] = frozenset()
) -> Runner:
    """What gives results by name for inputs of any sizes, compiled once. It skips as `run_on` does."""
    rules = skips.of(device)
    refused = {f"{u.node.op.name}: {u.reason}": u.reason for u in backend(device).unsupported(graph)}
    if refused:
        unknown = [text for text, reason in refused.items() if reason not in rules.refused]
        assert not unknown, f"{device} refuses for reasons that tests/skips.py does not know: {unknown}"
        pytest.skip(f"{device}: {next(iter(refused))}")
    executable = compile_for(device, graph, disable)
    executable.set_params({**graph.data, **(params or {})})
    return lambda inputs: _results(device, graph, executable, inputs)


def _results(device: str, graph: Graph, executable: Executable, inputs: Mapping[str, Array]) -> dict[str, Array]:
    rules = skips.of(device)
    bound = executable.bind(binding_of(graph, inputs))
    if not rules.computes:
        pytest.skip(f"{device} computes nothing; it compiles this")
    arrays = [np.ascontiguousarray(inputs[value.name]).reshape(inputs[value.name].shape) for value in graph.inputs]
    if rules.narrow and any(
        a.dtype == np.int64 and a.size and np.abs(a.astype(float)).max() >= 1 << 31 for a in arrays
    ):
        with pytest.raises(InputError, match="32 bits"):
            bound(arrays)
        pytest.skip(f"{device}: inputs need integers of more than 32 bits")
    try:
        results = bound(arrays)
    except UnsupportedOp as error:  # of these sizes
        known = [reason for reason in rules.refused if reason in str(error)]
        assert known, f"{device} refuses sizes for reasons that tests/skips.py does not know: {error}"
        pytest.skip(f"{device}: {known[0]}")
    return dict(zip(graph.outputs, results, strict=True))


def assert_close(actual: Array, expected: Array, tolerance: Tolerance = EXACT) -> None:
    """Fails with the worst element if the arrays differ by more than the tolerance, in dtype or in shape."""
    difference = mismatch(np.asarray(actual), np.asarray(expected), tolerance)
    assert difference is None, str(difference)


def assert_close_on(device: str, actual: Array, expected: Array, tolerance: Tolerance = EXACT) -> None:
    """As `assert_close`, with what the device is allowed."""
    rules = skips.of(device)
    assert_close(rules.prepared(np.asarray(actual)), rules.prepared(np.asarray(expected)), rules.tolerance(tolerance))


def skip_absent(request: pytest.FixtureRequest) -> None:
    """Skips a test one of whose parameters is a device that is not here."""
    callspec = getattr(request.node, "callspec", None)
    for name in ("device", "kind", "library"):
        reason = why_absent(callspec.params[name]) if callspec is not None and name in callspec.params else ""
        if reason:
            pytest.skip(reason)
