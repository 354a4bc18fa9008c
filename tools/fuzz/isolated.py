"""Programs that end or spoil their process: checked in processes of their own, and made small there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOST = "DeviceLost"
"""What an error begins with behind which a process has no device any more."""


def spoils(failure: Any) -> bool:
    """Whether nothing that runs behind a failure in its process tells anything."""
    return failure.kind in ("crash", "hang") or LOST in failure.message


def shrunk(program: Any, failure: Any, device: str, seconds: float) -> str:
    """The text of the program made small; in processes of its own where it ends them."""
    from tools.fuzz import check, found, shrink

    isolated = spoils(failure)
    runner: Any = Isolated(device, 20.0) if isolated else check

    def fails(candidate: Any) -> bool:
        try:
            candidate_failure = runner.check(candidate, device)
        except check.Refused:
            return False
        return candidate_failure is not None and _alike(candidate_failure, failure)

    small = shrink.shrink(program, fails, seconds * (4 if isolated else 1))
    try:
        last = runner.check(small, device) or failure
    except check.Refused:
        last = failure
    return found.write(small, f"seed {program.seed} on {device}: {last.kind}, {last.stage}: {last.message}")


def _alike(a: Any, b: Any) -> bool:
    """Whether two failures look like one fault."""
    if a.kind != b.kind:
        return False
    return bool(a.kind != "error" or a.message.partition(":")[0] == b.message.partition(":")[0])


class Isolated:
    """Checks a program in a process of its own."""

    def __init__(self, device: str, seconds: float) -> None:
        self.device, self.seconds = device, seconds

    def check(self, program: Any, device: str | None = None) -> Any:
        from tools.fuzz import check, found

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.txt"
            path.write_text(found.write(program))
            command = [sys.executable, "-m", "tools.fuzz_graphs", "--device", self.device, "--replay", str(path)]
            try:
                completed = subprocess.run(
                    command, capture_output=True, text=True, timeout=self.seconds, env=environment()
                )
            except subprocess.TimeoutExpired:
                return check.Failure("hang", f"not done after {self.seconds} s")
        if completed.returncode == 0:
            return None
        if completed.returncode == 1 and "Failure(" in completed.stdout:
            return eval(completed.stdout[completed.stdout.index("Failure(") :], {"Failure": check.Failure})
        return check.Failure("crash", f"exit {completed.returncode}: {completed.stderr[-400:]}")


def environment() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root / "src"), str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
