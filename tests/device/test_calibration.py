"""Calibrations on disk: kept by what they hold for, read back whole, refused when damaged or out of date."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlx.device import calibration, observed, registry
from rlx.device.device import Device

NULL = Device("null")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    calibration.forget()
    observed.reload()
    yield
    calibration.forget()  # priors of patched backends too


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the device is measured."""
    calls: list[int] = []
    backend = registry.load("null")
    plain = type(backend).calibrate
    monkeypatch.setattr(type(backend), "calibrate", lambda self, o, step: calls.append(o) or plain(self, o, step))
    return calls


def test_a_device_is_measured_once_and_read_from_disk_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    first = calibration.calibration(NULL)
    assert calibration.calibration(NULL) is first
    calibration.forget()
    again = calibration.calibration(NULL)
    assert again.rates == first.rates and again.measured_s == first.measured_s
    assert calls == [0]
    assert calibration.measure(NULL) is calibration.known(NULL)
    assert calls == [0, 0]
    assert first.age_s >= 0


def test_ordinals_have_their_own() -> None:
    assert calibration.calibration(NULL).rates != calibration.calibration(Device("null", 1)).rates


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"rates": 3}', "null"])
def test_a_damaged_file_is_measured_anew(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    calibrated = calibration.calibration(NULL)
    path = calibration.path_of(NULL, calibrated.identity)
    path.write_text(damage)
    calibration.forget()
    calls = counted(monkeypatch)
    assert calibration.calibration(NULL).rates == calibrated.rates
    assert calls == [0]
    assert json.loads(path.read_text())["rates"] == calibrated.rates


def test_another_driver_or_version_is_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    calibration.calibration(NULL)
    calibration.forget()
    backend = registry.load("null")
    monkeypatch.setattr(type(backend), "identity", lambda self, o: {"device": "the same", "driver": "2.0"})
    calibration.calibration(NULL)
    assert calls == [0, 0]


def test_other_code_of_a_backend_has_other_calibrations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rates got other names once, and calibrations on disk were taken that lacked them."""
    module = types.ModuleType("backend_of_this_test")
    module.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    digests = []
    for names in ("near_ns", "contiguous_ns"):
        (tmp_path / "rates.py").write_text(f"NAMES = {names!r}")
        backend = type("Backend", (), {"__module__": module.__name__})
        digests.append(calibration.sources_digest(backend))
    assert digests[0] != digests[1]
    assert calibration.identity(NULL)["rates"] == calibration.sources_digest(type(registry.load("null")))


def test_rates_that_are_not_numbers_are_not_taken() -> None:
    calibrated = calibration.calibration(NULL)
    calibration.write(replace(calibrated, rates={"call_ns": "fast"}))  # type: ignore[dict-item]
    assert calibration.read(NULL) is None


def test_a_folder_that_cannot_be_written_to_keeps_nothing_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("RLX_CACHE_DIR", str(blocked))
    calibration.forget()
    assert calibration.calibration(NULL).rates
    assert calibration.read(NULL) is None


def sample(program: str, ns: float, parts: dict[str, float], **more: float) -> observed.Sample:
    return replace(observed.sample_of(program, [ns], parts, "turn", 0.0), **more)  # type: ignore[arg-type]


def seen(*samples: observed.Sample) -> observed.Observations:
    observations = observed.of(NULL)
    for number, each in enumerate(samples):
        observations.record(observed.Key(each.program, (("n", number),)), each)
    return observations


def test_a_program_that_was_seen_corrects_itself_alone() -> None:
    observations = seen(sample("p", 330.0, {"product": 90.0, "call": 10.0}))
    assert observations.ratio("p") == pytest.approx(3.3)
    assert observations.ratio("q", {"product": 10.0}) == 1.0
    observations = seen(sample("p", 330.0, {"product": 100.0}), sample("r", 330.0, {"product": 100.0}))
    assert observations.ratio("q", {"product": 10.0}) == 1.0
    observations = seen(*(sample(name, 330.0, {"product": 100.0}) for name in "prs"))
    assert observations.ratio("q", {"product": 10.0}) == pytest.approx(3.3, rel=0.05)
    assert observations.drift == pytest.approx(3.3)


def test_runs_beside_other_work_teach_nothing_of_other_programs() -> None:
    observations = seen(*(sample(name, 330.0, {"product": 100.0}, load=1.5) for name in "prs"))
    assert observations.ratio("p") == pytest.approx(3.3)
    assert observations.ratio("q", {"product": 10.0}) == 1.0 and observations.drift == 1.0


def test_samples_expire_are_bounded_and_lie_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    observations = seen(sample("p", 330.0, {"product": 100.0}, when_s=1.0))
    assert observations.ratio("p") == 1.0 and observations.measured(observed.Key("p", (("n", 0),))) is None
    monkeypatch.setattr(observed, "MOST_KEPT", 3)
    observations = seen(*(sample(f"r{i}", 1.0, {"call": 1.0}) for i in range(9)))
    assert len(observations.samples) == 3
    observed.reload()
    again = observed.of(NULL)
    assert again.samples == observations.samples
    again.forget("r8")
    assert len(again.samples) == 2
    again.forget()
    observed.reload()
    assert observed.of(NULL).samples == {}


def test_a_sample_holds_the_median_and_the_middle_half() -> None:
    one_sample = observed.sample_of("p", [5.0, 1.0, 2.0, 3.0, 4.0], None, "t", 0.2)
    assert (one_sample.low_ns, one_sample.measured_ns, one_sample.high_ns, one_sample.runs) == (2.0, 3.0, 4.0, 5)
    assert one_sample.calm and not one_sample.expired


def test_factors_find_which_kinds_of_kernels_are_off() -> None:
    """Products take twice, moves half of what is predicted; a program of other kinds stays as it is."""
    random = np.random.default_rng(0)
    samples = []
    for number in range(400):
        product, move, call = random.random(3) * (1e6, 1e6, 1e4)
        took = (2 * product + move / 2 + call) * random.uniform(0.97, 1.03)
        samples.append(observed.Sample(f"p{number}", {"product": product, "move": move, "call": call}, took))
    samples.append(observed.Sample("stray", {"product": 1e5}, 1e9))
    factors = observed.factors(samples)
    assert factors["product"] == pytest.approx(2, rel=0.1) and factors["move"] == pytest.approx(0.5, rel=0.15)
    assert observed.corrected({"product": 3.0, "move": 4.0}, factors) == pytest.approx(8, rel=0.1)
    assert observed.factors([]) == {"": 1.0}


@pytest.mark.parametrize("parts", [{"call": "x"}, {"call": 0.0}, 3])
def test_damaged_samples_are_left_behind(parts: object) -> None:
    observations = observed.of(NULL)
    observations.record(observed.Key("p", ()), sample("p", 1.0, {"call": 1.0}))
    path = Path(observations._path())
    report = json.loads(path.read_text())
    report["samples"]["p"]["parts"] = parts
    path.write_text(json.dumps(report))
    observed.reload()
    assert observed.of(NULL).samples == {}


def test_nothing_is_measured_unasked_and_a_prior_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    monkeypatch.setattr(type(registry.load("null")), "prior", lambda self, o: {"call_ns": 1.0})
    assert calibration.known(NULL) is None
    prior = calibration.best(NULL)
    assert prior is not None and prior.is_prior and prior.rates == {"call_ns": 1.0} and calls == []
    assert calibration.read(NULL) is None
    calibration.measure(NULL)
    measured = calibration.best(NULL)
    assert measured is not None and not measured.is_prior
    calibration.remove(NULL)
    assert calibration.known(NULL) is None and calibration.best(NULL) is prior
