"""Kernels whose tiles are set by hand give the same."""

from __future__ import annotations

import pytest

from codegen.simt.kernel_cases import kernel_cases
from kernel.schedule.graphs import scheduled
from rlx import flags
from rlx.backends.base import Options
from rlx.backends.wgpu.build import build
from rlx.backends.wgpu.device import PORTABLE_BINDING
from rlx.ir.graph import Graph
from rlx.ir.op import Tolerance

from .conftest import Check

CASES = {str(case): case for case in kernel_cases()}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("sorted", "bitonic:workgroup.elements=64"),
        ("attention: tiles of queries", "attention:thread.queries=1,workgroup.keys=3"),
        ("attention: halves", "attention:thread.queries=3"),
        ("attention: one query", "split-kv:workgroup.keys=64"),
        ("attention: few queries", "split-kv:workgroup.queries=3,workgroup.keys=192"),
    ],
)
def test_tiles_set_by_hand(check: Check, name: str, changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setenv(flags.schedule.name, changed)
    inputs = {value.name: array for value, array in zip(case.made.inputs, case.arrays)}
    check(case.graph(), [(case.binding, inputs)], tolerance=case.tolerance)


CHANGES = [
    ("rows", "rows:workgroup.rows=1"),
    ("rows", "rows:workgroup.rows=64"),
    ("columns", "rows:workgroup.rows=64,register.terms=7"),
    ("columns", "rows:workgroup.rows=1"),
    ("scatters", "scatter:thread.updates=1"),
    ("scatters", "scatter:thread.updates=150"),
    ("scans", "prefix-scan:workgroup.rows=1,thread.elements=3"),
    ("scans", "prefix-scan:workgroup.rows=64"),
    ("rankings", "top-k:thread.elements=50"),
    ("transposes", "transpose:workgroup.side=32"),
    ("turned", "transpose:workgroup.side=8"),
    ("turned", "transpose:workgroup.side=16"),
]


@pytest.mark.parametrize(("name", "changed"), CHANGES)
def test_loops_and_irregular_work_set_by_hand(
    check: Check, name: str, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = scheduled(name)
    before = texts(item.graph)
    monkeypatch.setenv(flags.schedule.name, changed)
    assert texts(item.graph) != before
    check(item.graph, [({}, item.inputs)], tolerance=Tolerance(256, scale=4))


def texts(graph: Graph) -> list[str]:
    plan = build(graph, Options(), PORTABLE_BINDING)
    return [step.shader.text for step in plan.main]
