"""What runs really took: by program, device and shapes, kept on disk. Predictions are corrected by it.

A program that was seen is corrected by its own ratio of observed to predicted time; one that was not by the factors of
the kinds of kernels that it is made of, which all programs that were seen have taught.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from rlx import disk, locks
from rlx.device import calibration
from rlx.device.device import Device
from rlx.errors import RlxError

LEARNING = 0.3
"""How much of a new observation goes into what is believed."""
MOST_KEPT = 4096
MOST_SAMPLES = 256
"""Runs that factors are fitted to: the latest."""
SHARED_RIDGE, RIDGE = 0.02, 1.0
"""Pull towards 1 of the factor of all kinds together, and of each kind: the variance of what a program is off for
reasons of its own, over that of the factors."""
ROBUST = 0.3
"""Programs that are further off than this, in logarithms, count less: something else is wrong with them."""
STEPS = 30


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
    """A measured run: of which program, what was predicted of it by kind of kernel (`Estimate.parts`), what it took."""

    program: str
    parts: Mapping[str, float]
    measured_ns: float


Factors = dict[str, float]
"""Observed over predicted times by kind of kernel; that of "" is for kinds that were not seen."""


def factors(samples: Sequence[Sample]) -> Factors:
    """The factors that explain the samples best: least squares of the logarithms of observed over predicted times, by
    Gauss and Newton's steps. All sizes of a program together count about as much as the root of their number."""
    kinds = sorted({kind for sample in samples for kind in sample.parts})
    if not kinds:
        return {"": 1.0}
    parts = np.array([[sample.parts.get(kind, 0.0) for kind in kinds] for sample in samples])
    wanted = np.log([sample.measured_ns for sample in samples])
    programs = [sample.program for sample in samples]
    sizes = np.array([programs.count(program) ** -0.5 for program in programs])
    ridge = np.diag([SHARED_RIDGE, *[RIDGE] * len(kinds)])
    found = np.zeros(len(kinds) + 1)  # logarithms: of all kinds together, then of each
    for _ in range(STEPS):
        now = parts * np.exp(found[0] + found[1:])
        total = now.sum(1)
        off = wanted - np.log(total)
        slopes = np.column_stack([np.ones(len(off)), now / total[:, None]])
        weights = sizes * np.minimum(1.0, ROBUST / np.maximum(np.abs(off), 1e-9))
        step = np.linalg.solve((slopes.T * weights) @ slopes + ridge, (slopes.T * weights) @ off - ridge @ found)
        found += np.clip(step, -0.5, 0.5)
    return {"": float(np.exp(found[0]))} | {
        kind: float(np.exp(found[0] + more)) for kind, more in zip(kinds, found[1:])
    }  # fmt: skip


def corrected(parts: Mapping[str, float], known: Factors) -> float:
    """The prediction that these parts are of, in ns, each kind by its factor."""
    return sum(ns * known.get(kind, known.get("", 1.0)) for kind, ns in parts.items())


class Observations:
    """Of one device. `measured_ns` are medians of measurements; `ratios` observed over predicted, by program; `samples`
    what `factors` are fitted to, by program and size."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._lock = locks.lock()
        self.measured_ns: dict[str, float] = {}
        self.ratios: dict[str, float] = {}
        self.samples: dict[str, Sample] = {}
        self._factors: Factors | None = None
        self._read()

    def _path(self) -> Path:
        of = calibration.identity(self.device)
        return calibration.path_of(self.device, of).with_suffix(".observed.json")

    def _read(self) -> None:
        try:
            told = json.loads(self._path().read_text(encoding="utf-8"))
            self.measured_ns = {str(k): float(v) for k, v in told["measured_ns"].items()}
            self.ratios = {str(k): float(v) for k, v in told["ratios"].items()}
            self.samples = {str(k): _sample(v) for k, v in told["samples"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RlxError):
            self.measured_ns, self.ratios, self.samples = {}, {}, {}

    def _write(self) -> None:
        samples = {key: asdict(sample) for key, sample in self.samples.items()}
        told = json.dumps({"measured_ns": self.measured_ns, "ratios": self.ratios, "samples": samples})
        try:
            disk.replace(self._path(), told.encode())
        except OSError:
            return

    def measured(self, key: Key) -> float | None:
        """What was measured for a program at a size, in ns."""
        return self.measured_ns.get(key.text)

    def ratio(self, program: str, parts: Mapping[str, float] | None = None) -> float:
        """What to multiply predictions for a program with: its own ratio, else what the kinds of its kernels say."""
        with self._lock:
            if program in self.ratios or not self.samples or not parts:
                return self.ratios.get(program, 1.0)
            if self._factors is None:
                self._factors = factors(list(self.samples.values()))
            return corrected(parts, self._factors) / sum(parts.values())

    def record(self, key: Key, measured_ns: float, parts: Mapping[str, float] | None = None) -> None:
        """Remembers a measurement; with the parts of the uncorrected prediction it corrects those to come."""
        with self._lock:
            self.measured_ns.pop(key.text, None)
            self.measured_ns[key.text] = measured_ns
            if parts:
                seen = measured_ns / sum(parts.values())
                old = self.ratios.get(key.program)
                self.ratios[key.program] = seen if old is None else old ** (1 - LEARNING) * seen**LEARNING
                self.samples.pop(key.text, None)
                self.samples[key.text] = Sample(key.program, dict(parts), measured_ns)
                self._factors = None
            for kept, most in ((self.measured_ns, MOST_KEPT), (self.ratios, MOST_KEPT), (self.samples, MOST_SAMPLES)):
                while len(kept) > most:
                    kept.pop(next(iter(kept)))
            self._write()

    def forget(self, program: str | None = None) -> None:
        """Drops what is known of a program, or of all."""
        with self._lock:
            keep = [k for k in self.measured_ns if program is not None and not k.startswith(program)]
            self.measured_ns = {k: self.measured_ns[k] for k in keep}
            self.ratios = {k: v for k, v in self.ratios.items() if program is not None and k != program}
            self.samples = {k: v for k, v in self.samples.items() if program is not None and v.program != program}
            self._factors = None
            self._write()


def _sample(told: Mapping[str, object]) -> Sample:
    """A sample as it lies on disk. Raises ValueError, KeyError or TypeError if it is none."""
    parts = told["parts"]
    if not isinstance(parts, dict):
        raise TypeError(f"expected a mapping, got {parts!r}")
    made = Sample(str(told["program"]), {str(k): float(v) for k, v in parts.items()}, float(str(told["measured_ns"])))
    if not made.measured_ns > 0 or not sum(made.parts.values()) > 0:
        raise ValueError(f"expected times above 0, got {made}")
    return made


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
