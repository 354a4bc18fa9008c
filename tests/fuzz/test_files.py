"""Damaged files: whatever is done to one, opening and running it ends soon, with a result or with an error of ours.

`RLX_TEST_FUZZ_SECONDS=600` damages files for so long; `tools/fuzz_files.py` does it without pytest.
"""

from __future__ import annotations

import os
import time

from hostile.pool import BYTES, run_all

SECONDS = float(os.environ.get("RLX_TEST_FUZZ_SECONDS", "30"))
COUNT = 600
SEED = int(os.environ.get("RLX_TEST_FUZZ_SEED", "0"))


def test_damaged_files() -> None:
    longer = "RLX_TEST_FUZZ_SECONDS" in os.environ
    numbers = [str(SEED + i) for i in range(COUNT if not longer else 10_000_000)]
    outcomes = run_all(numbers, "hostile.damaging", str(BYTES), until=time.monotonic() + SECONDS)
    wrong = {number: each for number, each in outcomes.items() if each.what != "right"}
    assert outcomes
    assert not wrong, "\n".join(
        f"file {number}: {each.what}: {each.told}" for number, each in sorted(wrong.items())[:5]
    )
