"""Errors have codes that stay, and a section each in docs/errors.md whose example shows them."""

from __future__ import annotations

import inspect
import pickle
import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import errors
from rlx.cli import main
from rlx.errors import FallbackError, RlxError, StateLost

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, RlxError) and kind is not RlxError
}
CODES = {
    "ShapeError": "RLX101", "DTypeError": "RLX102", "GraphError": "RLX103", "TracerError": "RLX104",
    "ModelError": "RLX201", "UnsupportedOp": "RLX202", "InputError": "RLX301", "RunTimeout": "RLX302",
    "RunCancelled": "RLX303", "ClosedError": "RLX304", "ProfileError": "RLX305", "CapabilityError": "RLX306",
    "FlagError": "RLX401", "OptionError": "RLX402", "ArgumentError": "RLX403", "DeviceUnavailable": "RLX501",
    "MissingExtra": "RLX502", "OutOfMemory": "RLX503", "DriverError": "RLX504", "DeviceLost": "RLX505",
    "StateLost": "RLX506", "FallbackError": "RLX507", "CompileError": "RLX601",
}  # fmt: skip
"""People search for them: a code of a version that was released is never given another meaning."""


def sections() -> dict[str, str]:
    """The text under each heading `RLX101 ShapeError`."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2]))


def test_codes_stay_and_are_of_one_class_each() -> None:
    assert {name: kind.code for name, kind in CLASSES.items()} == CODES
    assert len(set(CODES.values())) == len(CODES)


def test_every_class_has_a_section_and_a_line_in_the_table() -> None:
    assert list(sections()) == [f"{code} {name}" for name, code in sorted(CODES.items(), key=lambda pair: pair[1])]
    for name, code in CODES.items():
        assert f"| [{code}](#{code.lower()}-{name.lower()}) | `{name}` |" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CLASSES)
def test_a_section_has_cause_cure_and_an_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples in Python raise the error; others, which need a device that fails, are what it says."""
    section = sections()[f"{CODES[name]} {name}"]
    assert "**Cause.** " in section and "**Cure.** " in section
    ((language, example),) = re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)
    if language == "text":
        assert example.startswith(f"{name}: ["), example
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLX_NUM_THREADS", "")
    with pytest.raises(RlxError) as caught:
        exec(compile(example, f"the example of {name}", "exec"), {"rlx": rlx, "np": np})
    assert caught.value.code == CODES[name], repr(caught.value)


@pytest.mark.parametrize("name", CLASSES)
def test_errors_go_to_other_processes(name: str) -> None:
    own: dict[str, tuple[Any, ...]] = {
        "StateLost": ("vulkan", ["cache"], "gone"), "FallbackError": ("net", [("cpu", ValueError("x"))]),
    }  # fmt: skip
    error = CLASSES[name](*own.get(name, ("what it says",)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.code == error.code
    assert again.__notes__ == error.__notes__


def test_what_errors_know_goes_with_them() -> None:
    lost = pickle.loads(pickle.dumps(StateLost("vulkan", ["cache"], "gone")))
    assert (lost.device, lost.names, lost.reason) == ("vulkan", ["cache"], "gone")
    attempts = pickle.loads(pickle.dumps(FallbackError("net", [("cpu", rlx.OutOfMemory("full"))]))).attempts
    assert [(device, str(error)) for device, error in attempts] == [("cpu", "full")]


def test_tracebacks_and_the_command_tell_the_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(rlx.ModelError) as caught:
        rlx.load(b"junk")
    assert traceback.format_exception(caught.value)[-1].startswith("RLX201: docs/errors.md")
    assert main(["run", str(tmp_path / "none.onnx")]) == 1
    assert capsys.readouterr().err.endswith("(RLX201)\n")
