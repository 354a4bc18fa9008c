"""Measured rates of devices, kept on disk: for which device, with which versions, and when.

Nothing is measured unless somebody asks for it (`measure`). A choice uses rates that are `known`, otherwise a `prior`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

from rlx import backends, cost, disk, flags
from rlx.cost.estimate import Rates
from rlx.device import registry
from rlx.device.device import Device
from rlx.records import dataclass


@dataclass(frozen=True)
class Calibration:
    """Rates of a device.

    identity      what they hold for: product, driver, libraries, rlx, clocks
    measured_s    when, in seconds since the epoch; 0 for a prior
    took_s        how long that took
    band          how far off predictions by them may be at least
    """

    device: str
    identity: dict[str, str]
    rates: Rates
    measured_s: float
    took_s: float
    band: float = 0.0

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.measured_s)

    @property
    def is_prior(self) -> bool:
        """Whether the rates come from similar machines, not from this one."""
        return not self.measured_s


@cache
def sources_digest(backend: type) -> str:
    """Changes with the code that measures and reads the rates of a backend: older calibrations lack a rate with another
    name or meaning."""
    own = sys.modules[backend.__module__].__file__
    folders = [Path(cost.__file__).parent, Path(backends.__file__).parent, *([Path(own).parent] if own else [])]
    hasher = hashlib.blake2b(digest_size=8)
    for path in sorted({file for folder in folders for file in folder.glob("*.py")}):
        hasher.update(path.name.encode() + path.read_bytes())
    return hasher.hexdigest()


def identity(device: Device) -> dict[str, str]:
    """What a calibration of the device depends on. Raises DeviceUnavailable."""
    import rlx

    backend, ordinal = registry.backend(device)
    threads = str(flags.num_threads() or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0))
    return {
        "rates": sources_digest(type(backend)), "rlx": rlx.__version__, "system": platform.platform(),
        "threads": threads, **backend.identity(ordinal),
    }  # fmt: skip


def path_of(device: Device, of: dict[str, str]) -> Path:
    """Where its calibration lies. Raises NoFolder."""
    digest = hashlib.blake2b(json.dumps([str(device), of], sort_keys=True).encode(), digest_size=8).hexdigest()
    return disk.folder() / "calibration" / f"{device.kind}-{device.ordinal}-{digest}.json"


def read(device: Device) -> Calibration | None:
    """The calibration on disk, or None if there is none that holds for the device as it is now."""
    of = identity(device)
    try:
        data = json.loads(path_of(device, of).read_text(encoding="utf-8"))
        calibration = Calibration(**data)
        sound = calibration.identity == of and all(isinstance(v, (int, float)) for v in calibration.rates.values())
        return calibration if sound else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write(calibration: Calibration) -> None:
    """Stores it, whole or not at all; if the folder cannot be written to, nothing is kept."""
    text = json.dumps(asdict(calibration), indent=1, sort_keys=True)
    try:
        disk.replace(path_of(registry.parse(calibration.device), calibration.identity), text.encode())
    except OSError:
        return


@cache
def _kept(device: Device, folder: str) -> list[Calibration]:
    """A place for the calibration that this process uses."""
    return []


def _place(device: Device) -> list[Calibration]:
    try:
        return _kept(device, str(disk.folder()))
    except disk.NoFolder:
        return _kept(device, "")


def known(device: Device) -> Calibration | None:
    """The calibration of a device: that which this process uses, else that on disk; None if it was never measured.

    Raises DeviceUnavailable.
    """
    place = _place(device)
    if not place:
        place[:] = [stored for stored in [read(device)] if stored is not None]
    return place[0] if place else None


def is_measured(device: Device) -> bool:
    """Whether this process, or an earlier one, may have measured the device or runs on it; the device is not opened."""
    if _place(device):
        return True
    try:
        return any((disk.folder() / "calibration").glob(f"{device.kind}-{device.ordinal}-*"))
    except OSError:
        return False


@cache
def prior(device: Device) -> Calibration | None:
    """The calibration of a device that was not measured, predicted from similar machines; None if there are none.

    Raises DeviceUnavailable.
    """
    backend, ordinal = registry.backend(device)
    rates = backend.prior(ordinal)
    return None if rates is None else Calibration(str(device), {}, rates, 0.0, 0.0, backend.prior_band)


def best(device: Device) -> Calibration | None:
    """What is known of a device, else its prior; nothing is measured. Raises DeviceUnavailable."""
    return known(device) or prior(device)


def measure(device: Device, step: Callable[[str], None] = lambda name: None) -> Calibration:
    """Measures a device now, and stores the result. `step` is called with the name of each measurement as it begins.

    Raises DeviceUnavailable, and what compiling and running small graphs raises.
    """
    from rlx.backends.microbenchmarks import calibrate

    backend, ordinal = registry.backend(device)
    start = time.perf_counter()
    rates = backend.calibrate(ordinal, step) or calibrate(backend, ordinal, step)
    calibration = Calibration(str(device), identity(device), rates, time.time(), time.perf_counter() - start)
    replace(calibration)
    return calibration


def calibration(device: Device) -> Calibration:
    """What is known of a device; it is measured if nothing is. Raises as `measure`."""
    return known(device) or measure(device)


def replace(calibration: Calibration) -> None:
    """Puts a calibration in the place of that which this process uses and of that on disk."""
    _place(registry.parse(calibration.device))[:] = [calibration]
    write(calibration)


def remove(device: Device) -> None:
    """Forgets the calibration of a device, on disk too. Raises DeviceUnavailable."""
    _place(device).clear()
    try:
        path_of(device, identity(device)).unlink(missing_ok=True)
    except OSError:
        return  # a folder that cannot be written to has none


def forget() -> None:
    """Drops what this process holds; the next question reads from disk."""
    _kept.cache_clear()
    prior.cache_clear()
