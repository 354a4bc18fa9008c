"""Hostile models: each ends with an error of ours that says what is wrong, or with the right numbers, soon.

Cases run in processes of their own, within limits of time and of memory. Some devices are given a sample.
"""

from __future__ import annotations

import pytest

from hostile.pool import Outcome, memory, run_all
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

_found: dict[str, dict[str, Outcome]] = {}


def outcomes(device: str) -> dict[str, Outcome]:
    """What came of the cases of a device: all run when the first is asked for."""
    if device not in _found:
        names = [name for name in CASES if device == "cpu" or name.startswith(SAMPLE)]
        _found[device] = run_all(names, "hostile.worker", device, memory(device))
    return _found[device]


@pytest.mark.parametrize("name", list(CASES))
def test_case(name: str) -> None:
    found = outcomes("cpu")[name]
    assert found.what == "right", f"{found.what} after {found.seconds:.1f} s: {found.told}"


@pytest.mark.parametrize("device", ["reference", "xla", "mlx", "vulkan"])
def test_sample(device: str) -> None:
    reason = why_absent(device)
    if reason:
        pytest.skip(reason)
    wrong = {name: found for name, found in outcomes(device).items() if found.what != "right"}
    assert not wrong, "\n".join(f"{name}: {found.what}: {found.told[:300]}" for name, found in wrong.items())


def test_there_are_many_cases() -> None:
    assert len(CASES) > 800
