"""What runs really took: by program, device and shapes, kept on disk. Predictions are corrected by it."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from dataclasses import dataclass

from rlx import disk
from rlx.device import calibration
from rlx.device.device import Device
from rlx.errors import RlxError

LEARNING = 0.3
"""How much of a new observation goes into what is believed."""
MOST_KEPT = 4096


@dataclass(frozen=True)
class Key:
    """A program (its fingerprint) at a size (its dims)."""

    program: str
    binding: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        return self.program + "".join(f",{name}={size}" for name, size in self.binding)


class Observations:
    """Of one device. `measured_ns` are medians of measurements; `ratios` observed over predicted, by program."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self.measured_ns: dict[str, float] = {}
        self.ratios: dict[str, float] = {}
        self._read()

    def _path(self) -> str:
        of = calibration.identity(self.device)
        return str(calibration.path_of(self.device, of).with_suffix(".observed.json"))

    def _read(self) -> None:
        try:
            with open(self._path(), encoding="utf-8") as file:
                told = json.load(file)
            self.measured_ns = {str(k): float(v) for k, v in told["measured_ns"].items()}
            self.ratios = {str(k): float(v) for k, v in told["ratios"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RlxError):
            self.measured_ns, self.ratios = {}, {}

    def _write(self) -> None:
        try:
            path = self._path()
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handle, unfinished = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"measured_ns": self.measured_ns, "ratios": self.ratios}, file)
            os.replace(unfinished, path)
        except OSError:
            return

    def measured(self, key: Key) -> float | None:
        """What was measured for a program at a size, in ns."""
        return self.measured_ns.get(key.text)

    def ratio(self, program: str) -> float:
        """What to multiply predictions for a program with."""
        return self.ratios.get(program, 1.0)

    def record(self, key: Key, measured_ns: float, predicted_ns: float | None = None) -> None:
        """Remembers a measurement; with the uncorrected prediction it corrects those to come."""
        with self._lock:
            self.measured_ns.pop(key.text, None)
            self.measured_ns[key.text] = measured_ns
            if predicted_ns:
                seen = measured_ns / predicted_ns
                old = self.ratios.get(key.program)
                self.ratios[key.program] = seen if old is None else old ** (1 - LEARNING) * seen**LEARNING
            for kept in (self.measured_ns, self.ratios):
                while len(kept) > MOST_KEPT:
                    kept.pop(next(iter(kept)))
            self._write()

    def forget(self, program: str | None = None) -> None:
        """Drops what is known of a program, or of all."""
        with self._lock:
            keep = [k for k in self.measured_ns if program is not None and not k.startswith(program)]
            self.measured_ns = {k: self.measured_ns[k] for k in keep}
            self.ratios = {k: v for k, v in self.ratios.items() if program is not None and k != program}
            self._write()


_all: dict[tuple[Device, str], Observations] = {}
_making = threading.Lock()


def of(device: Device) -> Observations:
    """The observations of a device in this process."""
    key = (device, str(disk.folder()))
    with _making:
        if key not in _all:
            _all[key] = Observations(device)
        return _all[key]


def reload() -> None:
    """Reads everything again from disk at the next question."""
    with _making:
        _all.clear()
