"""Trials of `tools/cuda_trials.py`, which run under a sanitizer on a GPU, and how what it says is told."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tools import cuda_trials, sanitize_cuda

from .emulated_driver import EmulatedDriver


@pytest.mark.parametrize("name", ["rows/f16 9", "fused/two_norms 5", "fused/written_norm 5"])
def test_trials_replay_graphs_and_are_right(name: str, driver: EmulatedDriver) -> None:
    (trial,) = (trial for trial in cuda_trials.trials() if trial.name == name)
    with driver.counted() as calls:
        trial.run(3, False)
    assert "replay" in calls


def test_without_workgroup_memory_there_are_no_races(driver: EmulatedDriver) -> None:
    trial = next(trial for trial in cuda_trials.trials() if trial.name.startswith("ops/neg-"))
    with pytest.raises(cuda_trials.LeftOut):
        trial.run(1, True)


def test_slices_have_every_trial_once() -> None:
    whole = sanitize_cuda.chosen("", "1/1", "attention,tiles")
    parts = [name for number in (1, 2, 3) for name in sanitize_cuda.chosen("", f"{number}/3", "attention,tiles")]
    assert sorted(parts) == sorted(whole) and len(whole) > 100


def test_what_a_sanitizer_says_is_told_of_the_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A process that stands for it ends within the second trial, without a word."""
    sanitizer = tmp_path / "sanitizer"
    lines = ["========= COMPUTE-SANITIZER", "@ begin a", "@ end right", "@ begin b", "========= Error: Race reported"]
    sanitizer.write_text(f"#!{sys.executable}\nprint({chr(10).join(lines)!r}); raise SystemExit(9)\n")
    sanitizer.chmod(0o755)
    campaign = sanitize_cuda.Campaign("racecheck", str(sanitizer), time.monotonic() + 20)
    assert not campaign._process(["a", "b"])
    assert campaign.ends == {"a": "right", "b": "did not end"} and campaign.codes == [9]
    assert list(campaign.found) == ["b"] and "b: ========= Error: Race reported" in capsys.readouterr().out
