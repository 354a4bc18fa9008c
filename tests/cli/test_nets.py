"""Every command on real nets, with nothing said but the file: what must be made up is found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.zoo import nets
from real_models import path_of
from rlx.cli import main

Answer = Callable[..., dict[str, Any]]

KINDS = ("bytes", "voice", "ocr-direction", "eeg-seizure-a")
"""Of an integer input, of conditionals and a state, of images, of recurrent layers."""


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    """Runs a command that must succeed; gives its JSON."""

    def run(*argv: Any) -> dict[str, Any]:
        code = main([*map(str, argv), "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        document: dict[str, Any] = json.loads(printed.out)
        return document

    return run


@pytest.mark.parametrize("name", nets())
def test_inspect_counts_what_is_in_a_net(answer: Answer, name: str) -> None:
    told = answer("inspect", path_of(nets()[name]))
    assert not told["unmet"]
    assert told["flops"] > 2 * told["param_elements"] / 10
    assert told["activation_bytes"] > 0 and told["uncounted_nodes"] == 0


@pytest.mark.parametrize("name", nets())
def test_run_makes_up_inputs_that_a_net_takes(answer: Answer, name: str) -> None:
    told = answer("run", path_of(nets()[name]), "--device", "cpu")
    assert all(output["nan"] == 0 and 0 not in output["shape"] for output in told["outputs"].values())


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "profile": ("--device", "cpu", "--runs", "1"),
    "explain": ("--devices", "cpu"),
    "check": ("--device", "cpu"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", KINDS)
def test_other_commands_make_up_inputs_too(answer: Answer, name: str, command: str) -> None:
    told = answer(command, path_of(nets()[name]), *COMMANDS[command])
    if command == "profile":
        assert told["kernels"]
    elif command == "check":
        assert told["equal"]
    else:
        assert told


def test_bench_makes_up_inputs_too() -> None:
    """In a process of its own: it keeps itself on one core."""
    options = ["--device", "cpu", "--seconds", "0.1", "--threads", "1", "--json"]
    argv = [sys.executable, "-m", "rlx", "bench", str(path_of(nets()["bytes"])), *options]
    told = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    assert told["timings"][0]["median_ms"] > 0


def test_convert_says_sizes_that_fit(answer: Answer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It makes up none: the result has them for good."""
    pytest.importorskip("coremltools")
    argv = ["convert", str(path_of(nets()["ocr-direction"])), "-o", str(tmp_path / "m.mlpackage")]
    assert main(argv) == 1
    told = capsys.readouterr().err
    options = [word for option in re.findall(r"--dim \w+=\d+", told) for word in option.split()]
    assert len(options) == 6
    assert answer(*argv, *options)["bytes"] > 100_000
