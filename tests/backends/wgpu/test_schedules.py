"""Kernels whose tiles are set by hand give the same."""

from __future__ import annotations

import pytest

from codegen.simt.kernel_cases import kernel_cases
from rlx import flags

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
