"""What was measured of each device, kept on disk: for which device, by which versions, and when."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from rlx import disk, flags
from rlx.cost.estimate import Rates
from rlx.device import registry
from rlx.device.device import Device

SCHEMA = 9
"""Rises when rates get another meaning, or kernels need one that older calibrations lack."""
DRIFT = 0.3
"""Observed times that are so far from predicted ones, again and again, ask for a new calibration."""


@dataclass(frozen=True)
class Calibration:
    """Rates of a device.

    identity      what they hold for: product, driver, libraries, rlx, clocks
    measured_s    when, in seconds since the epoch
    took_s        how long that took
    """

    device: str
    identity: dict[str, str]
    rates: Rates
    measured_s: float
    took_s: float

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.measured_s)


def identity(device: Device) -> dict[str, str]:
    """What a calibration of the device depends on. Raises DeviceUnavailable."""
    import rlx

    backend, ordinal = registry.backend(device)
    threads = str(flags.num_threads() or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0))
    return {
        "schema": str(SCHEMA), "rlx": rlx.__version__, "system": platform.platform(), "threads": threads,
        **backend.identity(ordinal),
    }  # fmt: skip


def path_of(device: Device, of: dict[str, str]) -> Path:
    """Where its calibration lies. Raises NoFolder."""
    digest = hashlib.blake2b(json.dumps([str(device), of], sort_keys=True).encode(), digest_size=8).hexdigest()
    return disk.folder() / "calibration" / f"{device.kind}-{device.ordinal}-{digest}.json"


def read(device: Device) -> Calibration | None:
    """The calibration on disk, or None if there is none that holds for the device as it is now."""
    of = identity(device)
    try:
        told = json.loads(path_of(device, of).read_text(encoding="utf-8"))
        made = Calibration(**told)
        sound = made.identity == of and all(isinstance(v, (int, float)) for v in made.rates.values())
        return made if sound else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write(calibration: Calibration) -> None:
    """Keeps it, whole or not at all; a folder that cannot be written to only means that nothing is kept."""
    told = json.dumps(asdict(calibration), indent=1, sort_keys=True)
    try:
        disk.replace(path_of(registry.parse(calibration.device), calibration.identity), told.encode())
    except OSError:
        return


@cache
def _kept(device: Device) -> list[Calibration]:
    """A place for the calibration of this process."""
    return []


def calibration(device: Device, again: bool = False, step: Callable[[str], None] = lambda name: None) -> Calibration:
    """The calibration of a device: this process's, else that on disk, else measured now.

    again   measure in any case
    step    hears the name of each measurement as it begins

    Raises DeviceUnavailable, and what compiling and running small graphs raises.
    """
    place = _kept(device)
    if place and not again:
        return place[0]
    found = None if again else read(device)
    if found is None:
        from rlx.backends.microbenchmarks import calibrate

        backend, ordinal = registry.backend(device)
        start = time.perf_counter()
        rates = backend.calibrate(ordinal, step) or calibrate(backend, ordinal, step)
        found = Calibration(str(device), identity(device), rates, time.time(), time.perf_counter() - start)
        write(found)
    place[:] = [found]
    return found


def replace(made: Calibration) -> None:
    """Puts a calibration in the place of this process's and of that on disk."""
    _kept(registry.parse(made.device))[:] = [made]
    write(made)


def forget() -> None:
    """Drops what this process holds; the next question reads from disk or measures."""
    _kept.cache_clear()
