"""`rlx devices`: what was measured is shown, and forgotten when asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlx
from rlx.cli import main
from rlx.device import calibration, observed, registry
from rlx.device.device import Device
from rlx.ir.serial import save_graph

NULL = Device("null", 1)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert main(["devices", "--only", "null:1", "--json", *argv]) == 0
    report: dict[str, object] = json.loads(capsys.readouterr().out)["devices"][0]
    return report


def test_an_explanation_has_the_name_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = rlx.Graph("main_graph")
    graph.output(rlx.exp(graph.input("x", (4,))), name="y")
    save_graph(graph, tmp_path / "tagger.rlx")
    page = tmp_path / "page.html"
    assert main(["explain", str(tmp_path / "tagger.rlx"), "--devices", "cpu", "--html", str(page)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("tagger.rlx runs on cpu") and "On cpu: 1 node native" in told
    assert "main_graph" not in page.read_text()
    assert main(["explain", str(tmp_path / "tagger.rlx"), "--devices", "cpu", "--precision", "f16"]) == 0
    assert capsys.readouterr().out.startswith("tagger.rlx with products of f16 runs on cpu")


def test_calibrations_are_shown_and_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys)["calibrated"] == "not calibrated: predicted from similar machines"
    assert shown(capsys, "--calibrate")["rates"]
    assert str(shown(capsys)["calibrated"]).startswith("calibrated 2")
    sample = observed.sample_of("p", [1.0], {"call": 1.0}, "t", 0.0)
    observed.of(NULL).record(observed.Key("p", ()), sample)
    assert "rates" not in shown(capsys, "--forget")
    assert calibration.read(NULL) is None and observed.of(NULL).samples == {}


def test_every_backend_of_the_processor_has_a_prior_for_its_estimates() -> None:
    """A machine of no recorded instruction set has one too."""
    for kind in ("cpu", "xla"):
        if registry.is_available(kind):
            assert calibration.prior(Device(kind)) is not None
