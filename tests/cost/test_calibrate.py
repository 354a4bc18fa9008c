"""Calibration by small graphs takes a moment on slow devices too, and leaves nothing out on fast ones."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from rlx.backends.microbenchmarks import MeasuredBackend
from rlx.backends.null import NullBackend
from rlx.cost import calibrate
from rlx.cost import microbenchmarks as probes
from rlx.cost.microbenchmarks import ProbeGraph


class Pretended(calibrate.Runner):
    """A device that does so many operations in a nanosecond. Runs give what they would take."""

    def __init__(self, per_ns: float) -> None:
        super().__init__(MeasuredBackend(NullBackend(), 0), lambda name: None)
        self.per_ns = per_ns

    def ready(self, probe: ProbeGraph) -> Callable[[], object]:
        return lambda: probe.amount / self.per_ns


PRODUCTS = [probes.gemm(*size) for size in probes.GEMMS]


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "times_ns", lambda run, budget_s: [run()])


@pytest.mark.usefixtures("pretended")
def test_a_slow_device_is_spared_large_products() -> None:
    short = Pretended(per_ns=4.0).short(PRODUCTS)
    amounts = {probe.name: probe.amount for probe in PRODUCTS}
    assert calibrate.SINGLE in short and len(short) >= 8
    assert max(amounts[name] for name in short) / 4.0 < calibrate.LONG_NS < max(amounts.values()) / 4.0


@pytest.mark.usefixtures("pretended")
def test_a_fast_device_is_given_all() -> None:
    assert list(Pretended(per_ns=100.0).short(PRODUCTS)) == [probe.name for probe in PRODUCTS]


def test_a_long_run_is_not_repeated() -> None:
    count = 0

    def run() -> None:
        nonlocal count
        count += 1
        time.sleep(0.01)

    assert len(calibrate.times_ns(run, 0.001)) == 1 and count == 1
    assert len(calibrate.times_ns(run, 0.05)) >= calibrate.LEAST_RUNS


def test_weights_from_far_are_no_slower_than_streams() -> None:
    """A run that was disturbed makes a difference of times look like a slow memory."""
    listed = [probes.upload(), probes.download(), *probes.all_probes(False)]
    ns_of = {"call": 1000.0} | {probe.name: 2000.0 + probe.amount / 10 for probe in listed}
    ns_of["many"] *= 50
    rates = calibrate._rates({probe.name: probe for probe in listed}, ns_of, 1e8)
    farthest = rates[f"stream_{probes.STREAMS[-1]}_per_ns"]
    assert rates["dram_bytes_ns"] == pytest.approx(1 / (8 * farthest))
