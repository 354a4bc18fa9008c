"""The benchmark of choices between a GPU and the processor: what it judges, and that it runs."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rlx
from benchmarks import gpu_choice
from benchmarks.gpu_choice import Net, Row, crossover, rows_of, told
from rlx.backends.base import Options
from rlx.device import calibration
from rlx.device.device import Device
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.runtime.compiler import CODE
from support import why_absent

MS = 1e6
ROW = Row(8, {"cpu": 2.0 * MS, "cuda": 1.0 * MS}, {"cpu": 2.0 * MS, "cuda": 0.5 * MS}, "cpu", "cuda",
          {"cpu": 100 * MS, "cuda": 900 * MS}, {"cpu": 100 * MS, "cuda": 3000 * MS})  # fmt: skip


def net() -> Net:
    return Net("map", graph, (2, 4), inputs)


def graph() -> Graph:
    graph = rlx.Graph("map")
    graph.output(rlx.exp(graph.input("x", ("n", 16))), name="y")
    return graph


def inputs(batch: int) -> dict[str, Array]:
    return {"x": np.ones((batch, 16), np.float32)}


def test_the_cost_of_a_choice_is_that_of_its_run() -> None:
    assert ROW.cost("cuda") == 0
    assert ROW.cost("cpu") == pytest.approx(3.0)
    assert math.isnan(ROW.cost("vulkan"))


def test_starts_count_where_runs_are_few() -> None:
    assert ROW.cost("cpu", 1000) == 0  # 2.1 ms, against 3.5
    assert ROW.cost("cuda", 1000) == pytest.approx(3.5 / 2.1 - 1)
    assert ROW.cost("cpu", 1e6) > 2.9


def test_rows_tell_predictions_and_both_costs() -> None:
    text = str(ROW)
    assert "cuda 1.000 / 0.500 ms (+100%)" in text
    assert "cost_model: cuda +0%" in text and "auto: cpu +0% with its start" in text
    assert "cuda 0.90 / 3.00 s (-70%)" in ROW.starts()


def test_runs_alone_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(net(), [ROW], "cuda")
    assert not told(net(), [replace(ROW, fastest="cpu")], "cuda")  # four times as long as the other
    assert told(net(), [replace(ROW, auto="cuda")], "cuda")  # 67 % more with its start
    assert "of auto +67% of 1000 runs and the start" in capsys.readouterr().out
    late = [replace(ROW, batch=batch, predicted={"cpu": MS, "cuda": 2 * MS}) for batch in (1, 2, 4)]
    assert crossover(late, lambda row: row.taken, "cuda") == 1
    assert crossover(late, lambda row: row.predicted, "cuda") == 8
    assert not told(net(), late, "cuda")


@pytest.mark.skipif(bool(why_absent("xla")), reason=why_absent("xla"))
def test_rows_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On two devices that have priors."""
    monkeypatch.setattr(gpu_choice, "SLICE_S", 0.01)
    rows = list(rows_of(net(), ["cpu", "xla"], Options(), time.monotonic() + 600))
    assert [row.batch for row in rows] == [2, 4]
    for row in rows:
        for of in (row.predicted, row.taken, row.starts_predicted, row.starts_taken):
            assert list(of) == ["cpu", "xla"] and min(of.values()) > 0
        assert row.auto in row.taken and row.fastest in row.taken
    assert rows[0].starts_taken == rows[1].starts_taken


def test_no_batch_begins_behind_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert not list(rows_of(net(), ["cpu"], Options(), time.monotonic() - 1))
    assert "no time for a batch of 2" in capsys.readouterr().out


def test_programs_are_forgotten_and_calibrations_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "first"))
    known = calibration.measure(Device("null"))
    rlx.Session("cpu").compile(graph())
    assert len(CODE)
    gpu_choice.forget_programs(str(tmp_path / "second"), ["cpu", "null"])
    assert not len(CODE) and os.environ["RLX_CACHE_DIR"] == str(tmp_path / "second")
    assert calibration.known(Device("null")) == known
    assert calibration.known(Device("cpu")) is None
    assert not [file for file in (tmp_path / "second").iterdir() if file.name != "calibration"]
