"""What tests share: running a graph on a backend, and comparing within a tolerance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from rlx.backends.base import Backend, Options
from rlx.device import registry
from rlx.ir.compare import mismatch
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import EXACT, Tolerance


def backend(device: str) -> Backend:
    """The backend of this name; `cpu-avx2` is the CPU's with that instruction set (see `options_of`)."""
    return registry.backend(device.partition("-")[0])[0]


def options_of(device: str, disable: frozenset[str] = frozenset()) -> Options:
    """How tests compile for a device."""
    return Options(disable=disable, isa=device.partition("-")[2] or None)


def binding_of(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Values of the dims that are a bare name in an input's shape."""
    found: dict[str, int] = {}
    for value in graph.inputs:
        for dim, extent in zip(value.shape, inputs[value.name].shape, strict=True):
            if not isinstance(dim, int) and str(dim).isidentifier():
                found[str(dim)] = extent
    graph.bind(found)
    return found


def run_on(
    device: str,
    graph: Graph,
    inputs: Mapping[str, Array],
    params: Mapping[str, Array] | None = None,
    disable: frozenset[str] = frozenset(),
) -> dict[str, Array]:
    """Results by name. Skips the test if the backend says that it cannot take the graph."""
    made = backend(device)
    refused = made.unsupported(graph)
    if refused:
        pytest.skip(f"{device}: {refused[0].node.op.name}: {refused[0].reason}")
    executable = made.compile(graph, options_of(device, disable))
    executable.set_params({**graph.data, **(params or {})})
    bound = executable.bind(binding_of(graph, inputs))
    results = bound(
        [np.ascontiguousarray(inputs[value.name]).reshape(inputs[value.name].shape) for value in graph.inputs]
    )
    return dict(zip(graph.outputs, results, strict=True))


def assert_close(got: Array, wanted: Array, tolerance: Tolerance = EXACT) -> None:
    """Fails with the worst element if the arrays differ by more than the tolerance, in dtype or in shape."""
    found = mismatch(np.asarray(got), np.asarray(wanted), tolerance)
    assert found is None, str(found)
