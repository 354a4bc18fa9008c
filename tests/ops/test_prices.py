"""Every op can be priced, on the processor and on devices of which small graphs tell, whatever its shapes."""

from __future__ import annotations

import math
from itertools import islice

import pytest

from ops.cases import cases_of
from rlx.backends.base import Options
from rlx.backends.cpu import CpuBackend, rates
from rlx.backends.cpu.isa import detect
from rlx.cost.estimate import Estimator
from rlx.cost.generic import GenericEstimator
from rlx.device import calibration
from rlx.device.device import Device
from rlx.ir.op import REGISTRY, Op

MOST = 8
"""Cases of an op that are priced."""
KNOWN = rates.usual(detect()) | {
    "read_l1_ns": 0.002, "read_l2_ns": 0.003, "read_l3_ns": 0.01, "read_dram_ns": 0.04, "warm_1000_ns": 0.01,
    "warm_10000000_ns": 0.03, "launch_ns": 3000.0,
}  # fmt: skip


@pytest.mark.parametrize("cls", [cls for cls in REGISTRY.values() if cases_of(cls)], ids=lambda cls: cls.name)
def test_op_has_a_price(cls: type[Op]) -> None:
    elsewhere = calibration.calibration(Device("null")).rates
    for case in islice(cases_of(cls), MOST):
        graph = case.graph()
        estimators: list[Estimator] = []
        if not CpuBackend().unsupported(graph):
            estimators.append(rates.CpuEstimator(graph, Options(cache=False), KNOWN))
            estimators.append(GenericEstimator(graph, elsewhere))
        for estimator in estimators:
            ns = estimator({}).run_ns
            assert math.isfinite(ns) and ns > 0, str(case)
