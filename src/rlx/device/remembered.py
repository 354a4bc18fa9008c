"""Choices kept on disk, so that the next process with the same question need not predict again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from rlx import disk
from rlx.backends.base import Options
from rlx.device import calibration, observed, registry
from rlx.device.device import Device
from rlx.device.policy import DevicePolicy
from rlx.errors import RlxError


def key(
    program: str, binding: Mapping[str, int], expected_runs: float, policy: DevicePolicy, options: Options,
    devices: Sequence[Device],
) -> str:  # fmt: skip
    """The key of a question: all that its answer hangs on, what was measured of devices included.

    devices   those that may be chosen, as far as the policy says
    """
    parts = [disk.source_digest(), program, repr(sorted(binding.items())), repr(expected_runs), repr(policy)]
    parts += [repr(sorted(options.disable)), repr((options.threads, options.isa, options.dispatch, options.precision))]
    for device in devices:
        known = calibration.known(device)
        latest = max((sample.when_s for sample in observed.of(device).samples.values()), default=0.0)
        facts = sorted(calibration.identity(device).items())
        parts.append(repr((str(device), facts, known and known.measured_s, latest)))
    return "choice-" + hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()


def read(of: str) -> Device | None:
    """The device that was chosen; None if the question is new, or the device is not here any more."""
    data = disk.read(of)
    if data is None:
        return None
    try:
        device = registry.parse(str(json.loads(data)["device"]))
        return device if registry.is_available(device) else None
    except (ValueError, KeyError, TypeError, RlxError):
        return None


def write(of: str, device: Device) -> None:
    disk.write(of, json.dumps({"device": str(device)}).encode())
