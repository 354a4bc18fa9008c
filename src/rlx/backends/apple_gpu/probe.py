"""A cheap look for Apple's GPUs, by the system: nothing is loaded."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from rlx.backends.base import Probe

FRAMEWORK = Path("/System/Library/Frameworks/Metal.framework")
OLDEST = 13
"""The first macOS that has Metal's language 3.0."""


def probe() -> Probe:
    reason = why_absent()
    return Probe(reason=reason) if reason else Probe(devices=(f"Apple GPU (macOS {platform.mac_ver()[0]})",))


def why_absent() -> str:
    """Why there is no device; empty if there is one."""
    if sys.platform != "darwin":
        return "Apple GPUs are there on macOS only"
    if platform.machine() != "arm64":
        return "Apple GPUs are there on Apple's own processors only: the device metal takes other ones"
    version = platform.mac_ver()[0]
    if int(version.partition(".")[0] or 0) < OLDEST:
        return f"macOS {version} is too old: Metal's language 3.0 came with macOS {OLDEST}"
    return "" if FRAMEWORK.is_dir() else f"no {FRAMEWORK}"
