"""Measured times of runs: samples by program, device and shapes, kept on disk, which correct predictions.

A program that was measured is corrected by its own ratio of observed to predicted time. A single program says nothing
about others. If several agree, they correct other programs by the kinds of their kernels.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from rlx import disk, locks
from rlx.device import calibration
from rlx.device.device import Device
from rlx.errors import RlxError
from rlx.records import dataclass

MOST_KEPT = 512
"""Samples of a device: the latest."""
KEPT_S = 30 * 86400.0
"""How long a sample counts: drivers, clocks and neighbours change."""
BUSY = 0.5
"""Threads of others for each processor that want to run, from which on a sample tells more of them than of a device."""
AGREEING = 3
"""Programs that must have been seen for their kinds of kernels to correct predictions of others."""
SHARED_RIDGE, RIDGE = 0.02, 1.0
"""Pull towards 1 of the factor of all kinds together, and of each kind: the variance of what a program is off for
reasons of its own, over that of the factors."""
ROBUST = 0.3
"""Programs that are further off than this, in logarithms, count less: something else is wrong with them."""
STEPS = 30
DRIFT = 0.3
"""Programs that take so much longer, or shorter, than their calibration says ask for a new one."""


@dataclass(frozen=True)
class Key:
    """A program (its fingerprint) at a size (its dims)."""

    program: str
    binding: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        return self.program + "".join(f",{name}={size}" for name, size in self.binding)


@dataclass(frozen=True)
class Sample:
    """Measured runs of a program at a size.

    parts         what was predicted of it by kind of kernel (`Estimate.parts`); empty if nothing was
    measured_ns   the median; half of the runs lie between `low_ns` and `high_ns`
    turn          what was measured in turns has it in common: only that was measured under the same conditions
    when_s        in seconds since the epoch
    load          threads of others that wanted to run, for each processor
    """

    program: str
    parts: Mapping[str, float]
    measured_ns: float
    low_ns: float = 0.0
    high_ns: float = math.inf
    runs: int = 1
    turn: str = ""
    when_s: float = 0.0
    load: float = 0.0

    @property
    def expired(self) -> bool:
        return time.time() - self.when_s > KEPT_S

    @property
    def calm(self) -> bool:
        """Whether the machine had little else to do."""
        return self.load < BUSY

    @property
    def ratio(self) -> float:
        """Observed over predicted time."""
        return self.measured_ns / sum(self.parts.values())


def sample_of(
    program: str, times_ns: Sequence[float], parts: Mapping[str, float] | None, turn: str, load: float
) -> Sample:
    """The sample of these runs."""
    low, median, high = statistics.quantiles(
        list(times_ns) * 2 if len(times_ns) < 2 else times_ns, n=4, method="inclusive"
    )
    return Sample(program, dict(parts or {}), median, low, high, len(times_ns), turn, time.time(), load)


def load_of_others() -> float:
    """Threads that want to run, of all the machine, for each processor; 0 where the system does not tell."""
    try:
        running = int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(running, 0) / (os.cpu_count() or 1)


Factors = dict[str, float]
"""Observed over predicted times by kind of kernel; that of "" is for kinds that were not seen."""


def factors(samples: Sequence[Sample]) -> Factors:
    """The factors that explain the samples best: least squares of the logarithms of observed over predicted times, by
    Gauss and Newton's steps. All sizes of a program together count about as much as the root of their number."""
    kinds = sorted({kind for sample in samples for kind in sample.parts})
    if not kinds:
        return {"": 1.0}
    parts = np.array([[sample.parts.get(kind, 0.0) for kind in kinds] for sample in samples])
    measured = np.log([sample.measured_ns for sample in samples])
    programs = [sample.program for sample in samples]
    sizes = np.array([programs.count(program) ** -0.5 for program in programs])
    ridge = np.diag([SHARED_RIDGE, *[RIDGE] * len(kinds)])
    logarithms = np.zeros(len(kinds) + 1)  # logarithms: of all kinds together, then of each
    for _ in range(STEPS):
        now = parts * np.exp(logarithms[0] + logarithms[1:])
        total = now.sum(1)
        off = measured - np.log(total)
        slopes = np.column_stack([np.ones(len(off)), now / total[:, None]])
        weights = sizes * np.minimum(1.0, ROBUST / np.maximum(np.abs(off), 1e-9))
        step = np.linalg.solve((slopes.T * weights) @ slopes + ridge, (slopes.T * weights) @ off - ridge @ logarithms)
        logarithms += np.clip(step, -0.5, 0.5)
    return {"": float(np.exp(logarithms[0]))} | {
        kind: float(np.exp(logarithms[0] + more)) for kind, more in zip(kinds, logarithms[1:])
    }  # fmt: skip


def corrected(parts: Mapping[str, float], known: Factors) -> float:
    """The corrected prediction in ns: the sum of these parts, each kind multiplied by its factor."""
    return sum(ns * known.get(kind, known.get("", 1.0)) for kind, ns in parts.items())


class Observations:
    """Of one device: `samples` by program and size, the latest last."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._lock = locks.lock()
        self.samples: dict[str, Sample] = {}
        self._factors: Factors | None = None
        self._read()

    def _path(self) -> Path:
        of = calibration.identity(self.device)
        return calibration.path_of(self.device, of).with_suffix(".observed.json")

    def _read(self) -> None:
        try:
            data = json.loads(self._path().read_text(encoding="utf-8"))
            samples = {str(key): _sample(value) for key, value in data["samples"].items()}
            self.samples = {key: sample for key, sample in samples.items() if not sample.expired}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RlxError):
            self.samples = {}

    def _write(self) -> None:
        text = json.dumps({"samples": {key: asdict(sample) for key, sample in self.samples.items()}})
        try:
            disk.replace(self._path(), text.encode())
        except OSError:
            return

    def measured(self, key: Key) -> Sample | None:
        """What was measured of a program at a size."""
        sample = self.samples.get(key.text)
        return None if sample is None or sample.expired else sample

    def has(self, program: str) -> bool:
        """Whether the program was measured at any size, with a prediction beside it."""
        return any(sample.program == program and sample.parts for sample in self._fresh())

    def ratio(self, program: str, parts: Mapping[str, float] | None = None) -> float:
        """The factor for predictions of a program: its own ratio, otherwise the one that follows from the kinds of its
        kernels."""
        with self._lock:
            own = [math.log(s.ratio) for s in self._fresh() if s.program == program and s.parts]
            if own:
                return math.exp(statistics.median(own))
            if not parts:
                return 1.0
            if self._factors is None:
                self._factors = self._agreed()
            return corrected(parts, self._factors) / sum(parts.values())

    def _agreed(self) -> Factors:
        """What several programs, from undisturbed runs, show about others."""
        calm = [sample for sample in self._fresh() if sample.calm and sample.parts]
        return factors(calm) if len({sample.program for sample in calm}) >= AGREEING else {"": 1.0}

    def _fresh(self) -> list[Sample]:
        return [sample for sample in self.samples.values() if not sample.expired]

    @property
    def drift(self) -> float:
        """How many times as long as predicted programs take that were seen; 1 where they are about right, or few."""
        with self._lock:
            calm = [sample for sample in self._fresh() if sample.calm and sample.parts]
            by_program = {sample.program: sample.ratio for sample in calm}
        if len(by_program) < AGREEING:
            return 1.0
        median = statistics.median(by_program.values())
        return median if abs(math.log(median)) > math.log1p(DRIFT) else 1.0

    def record(self, key: Key, sample: Sample) -> None:
        """Remembers a measurement in the place of an earlier one of the same size."""
        with self._lock:
            self.samples.pop(key.text, None)
            self.samples[key.text] = sample
            self._factors = None
            while len(self.samples) > MOST_KEPT:
                self.samples.pop(next(iter(self.samples)))
            self._write()

    def forget(self, program: str | None = None) -> None:
        """Drops what is known of a program, or of all."""
        with self._lock:
            remaining = {key: sample for key, sample in self.samples.items() if program not in (None, sample.program)}
            self.samples, self._factors = remaining, None
            self._write()


def _sample(data: Mapping[str, object]) -> Sample:
    """A sample as it lies on disk. Raises ValueError, KeyError or TypeError if it is none."""
    parts = data["parts"]
    if not isinstance(parts, dict):
        raise TypeError(f"expected a mapping, got {parts!r}")
    numbers = {name: float(str(data[name])) for name in ("measured_ns", "low_ns", "high_ns", "when_s", "load")}
    sample = Sample(
        str(data["program"]), {str(k): float(v) for k, v in parts.items()}, runs=int(str(data["runs"])),
        turn=str(data["turn"]), **numbers,
    )  # fmt: skip
    if not sample.measured_ns > 0 or (parts and not sum(sample.parts.values()) > 0):
        raise ValueError(f"expected times above 0, got {sample}")
    return sample


_all: dict[tuple[Device, str], Observations] = {}
_making = locks.lock()


def of(device: Device) -> Observations:
    """The observations of a device in this process."""
    try:
        key = (device, str(disk.folder()))
    except disk.NoFolder:
        key = (device, "")
    with _making:
        if key not in _all:
            _all[key] = Observations(device)
        return _all[key]


def reload() -> None:
    """Reads everything again from disk at the next question."""
    with _making:
        _all.clear()
