"""Hostile models: each ends with an error of ours that says what is wrong, or with the right numbers, soon.

Cases run in processes of their own, within limits of time and of memory. Some devices are given a sample.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hostile.pool import SECONDS, Worker, memory, run_all
from hostile.tables import CASES
from support import why_absent

SAMPLE = (
    "gather/",
    "scatter-nd",
    "loop/",
    "branch",
    "scan/",
    "reshape/",
    "expand/",
    "huge-value",
    "doubling/",
    "tile/",
)

TRIPS = "1000"
"""Trips that loops may take where each is Python's or a driver's: endless ones end in the same way as after the number
that the device takes by default, which the CPU's cases run to."""


@pytest.fixture(scope="session")
def cpu() -> Iterator[Worker]:
    """One worker for all cases: processes that share the tests out would otherwise each run all of them."""
    worker = Worker("hostile.worker", "cpu", memory("cpu"))
    yield worker
    worker.close()


@pytest.mark.parametrize("name", list(CASES))
def test_case(name: str, cpu: Worker) -> None:
    result = cpu.run(name, SECONDS)
    assert result.what == "right", f"{result.what} after {result.seconds:.1f} s: {result.told}"


@pytest.mark.parametrize("device", ["reference", "xla", "mlx", "vulkan"])
def test_sample(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = why_absent(device)
    if reason:
        pytest.skip(reason)
    monkeypatch.setenv("RLX_LOOP_TRIPS", TRIPS)
    names = [name for name in CASES if name.startswith(SAMPLE)]
    outcomes = run_all(names, "hostile.worker", device, memory(device))
    wrong = {name: each for name, each in outcomes.items() if each.what != "right"}
    assert not wrong, "\n".join(f"{name}: {each.what}: {each.told[:300]}" for name, each in wrong.items())


def test_there_are_many_cases() -> None:
    assert len(CASES) > 800
