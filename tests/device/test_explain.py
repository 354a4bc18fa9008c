"""Explanations in text: what is printed adds up."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import rlx
from rlx.device import explain
from rlx.device.policy import DevicePolicy
from rlx.ir.graph import Graph
from rlx.runtime.graph_devices import GraphDevices

UNITS = {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1.0}


def ns(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


@pytest.mark.parametrize("ratio", [1.0, 2.5])
def test_parts_and_kernels_sum_to_the_time_that_is_shown(ratio: float) -> None:
    """Also where runs of other programs have corrected it."""
    graph = Graph()
    x, w = graph.input("x", (512, 512)), graph.param("w", (512, 512))
    graph.output(rlx.softmax(x @ w, axis=1) @ w, name="y")
    decision = GraphDevices(graph, DevicePolicy(strategy="cost_model").only("null:0")).explain().decision
    decision = replace(decision, candidates=tuple(replace(c, ratio=ratio) for c in decision.candidates))
    text = explain.as_text(decision)
    row = next(line for line in text.splitlines() if line.startswith("  null "))
    predicted, compute, memory, launch, copies = (
        ns(cell) for i, cell in enumerate(re.split(r"  +", row.strip())) if i in (1, 4, 5, 6, 7)
    )
    assert compute + memory + launch + copies == pytest.approx(predicted, rel=0.02)
    kernels = [ns(" ".join(line.split()[:2])) for line in text.split("longest kernels:")[1].splitlines() if "%" in line]
    assert sum(kernels) == pytest.approx(compute + memory, rel=0.02)
