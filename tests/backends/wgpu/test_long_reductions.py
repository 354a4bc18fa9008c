"""Few long rows are reduced in parts, so that more than a few workgroups have work."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array

from .conftest import compiled

CASES: dict[str, tuple[tuple[int, ...], Callable[[Value], Value], Callable[[Array], Array]]] = {
    "all": ((100, 1000), lambda x: ops.reduce_sum(x, axes=(0, 1)), lambda x: x.sum()),
    "rows": ((3, 8200), lambda x: ops.reduce_sum(x, axes=(1,)), lambda x: x.sum(1)),
    "greatest": ((2, 20001), lambda x: ops.reduce_max(x, axes=(1,)), lambda x: x.max(1)),
    "mean and store": ((2, 9000), lambda x: ops.reduce_mean(x * x, axes=(1,)) + 1.0, lambda x: (x * x).mean(1) + 1),
    "left over": ((1, 8191 + 8), lambda x: ops.reduce_sum(x, axes=(1,)), lambda x: x.sum(1)),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_in_parts(name: str, kind: str) -> None:
    shape, build, expected = CASES[name]
    graph = Graph("long")
    graph.output(build(graph.input("x", shape)))
    executable = compiled(kind, graph, {})
    assert any(step.kernel.name.endswith("_parts") for step in executable.plan.main)
    x = np.random.default_rng(0).uniform(0, 1, shape).astype(np.float32)
    (actual,) = executable.bind({})([x])
    np.testing.assert_allclose(actual, expected(x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("shape", [(65, 8192), (4, 8191)])
def test_many_or_short_rows_stay_whole(shape: tuple[int, int], kind: str) -> None:
    graph = Graph("short")
    graph.output(ops.reduce_sum(graph.input("x", shape), axes=(1,)))
    assert not any(step.kernel.name.endswith("_parts") for step in compiled(kind, graph, {}).plan.main)


def test_nan_in_any_part_is_seen(kind: str) -> None:
    graph = Graph("nan")
    graph.output(ops.reduce_max(graph.input("x", (1, 10000)), axes=(1,)))
    bound = compiled(kind, graph, {}).bind({})
    x = np.zeros((1, 10000), np.float32)
    x[0, 9999] = np.nan
    assert np.isnan(bound([x])[0]).all()
