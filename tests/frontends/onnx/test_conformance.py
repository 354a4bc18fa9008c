"""The ONNX standard's own test suite: what rlx imports must be right, and what once was right may never fail again.

`right/<device>.txt` holds the names of the cases that are right, as `benchmarks/onnx_conformance.py --ratchet` writes
them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.onnx_cases import load_cases, run_case
from support import commit_number

PARTS = 8
EVERY = {"cpu": 3, "reference": 1}
"""Of so many cases one runs, others at each commit: nearly all of the time is that of compiles."""
NETS = 3
"""And one so many of its nets of hundreds of nodes, on the reference, which has most of its time with these nine."""
RIGHT = Path(__file__).parent / "right"
WRONG = {
    ("reference", "test_attention_4d_causal_fp16_expanded"): "rounds every f16 step once, unlike the expected values",
    **{
        (device, name): "expects the 2e-7 that a transform in f32 left where the sum is 0"
        for device in ("cpu", "reference")
        for name in ("test_dft_inverse", "test_dft_inverse_opset19")
    },
    **{
        (device, f"test_{name}"): "expects the very numbers that NumPy's generator drew"
        for device in ("cpu", "reference")
        for name in (
            "bernoulli",
            "bernoulli_double",
            "bernoulli_double_expanded",
            "bernoulli_expanded",
            "bernoulli_seed",
            "bernoulli_seed_expanded",
            "training_dropout",
            "training_dropout_default",
            "training_dropout_default_mask",
            "training_dropout_mask",
        )
    },
}
"""(device, case) → why its difference from the expected values is none of ours."""

cases = cache(load_cases)


def at_turn(some: list[Any], device: str) -> list[Any]:
    """Those that run on a device at this commit."""
    every = EVERY[device]
    if every > 1:
        return some[commit_number() % every :: every]
    nets = [case.name for case in cases() if case.kind == "real"][commit_number() % NETS :: NETS]
    return [case for case in some if case.kind != "real" or case.name in nets]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_the_standards_cases(device: str, part: int) -> None:
    passing = set((RIGHT / f"{device}.txt").read_text().split())
    troubles = []
    for case in at_turn(cases()[part::PARTS], device):
        outcome = run_case(case, device)
        fine = {"right"} if case.name in passing else {"right", "unsupported"}
        if outcome.status not in fine and (device, case.name) not in WRONG:
            troubles.append(f"{case.name}: {outcome.status}: {outcome.reason}")
    assert not troubles, "\n".join(troubles)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_the_held_names_are_cases(device: str) -> None:
    """A name that no case has would hold nothing."""
    known: set[Any] = {case.name for case in cases()}
    passing = (RIGHT / f"{device}.txt").read_text().split()
    assert len(passing) > 1000 and len(known & set(passing)) > 0.9 * len(passing)
