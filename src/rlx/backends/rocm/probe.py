"""A cheap look for ROCm and AMD's GPUs, by files: nothing is loaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rlx.backends.base import Probe
from rlx.backends.cuda.probe import visible
from rlx.backends.rocm import libraries

DRIVER = Path("/dev/kfd")
NODES = Path("/sys/class/kfd/kfd/topology/nodes")
VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Each chooses among what the one before leaves."""


def probe() -> Probe:
    absent = libraries.why_absent(libraries.HIP) or libraries.why_absent(libraries.COMPILER)
    if absent:
        return Probe(reason=absent)
    if not DRIVER.exists():
        return Probe(reason=f"ROCm is here, and no driver for AMD's GPUs ({DRIVER}): load the kernel module amdgpu")
    if not os.access(DRIVER, os.R_OK | os.W_OK):
        return Probe(reason=f"no right to use {DRIVER}: join the groups render and video")
    devices: tuple[str, ...] = tuple(names())
    for variable in VISIBLE if devices else ():
        devices = visible(devices, variable)
    if devices:
        return Probe(devices=devices)
    hiding = [variable for variable in VISIBLE if variable in os.environ]
    hidden = f", or {' and '.join(hiding)} hides it" if hiding else ""
    return Probe(reason=f"ROCm is here, and no AMD GPU{hidden}")


def names() -> list[str]:
    """GPUs by their architecture, in the driver's order; processors are nodes without one."""
    found = []
    for node in sorted(NODES.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            told = re.search(r"^gfx_target_version (\d+)$", (node / "properties").read_text(), re.MULTILINE)
        except OSError:  # of other users' devices nothing is told
            continue
        if told and int(told[1]):
            found.append(f"AMD GPU ({architecture(int(told[1]))})")
    return found


def architecture(version: int) -> str:
    """The name of an architecture: 90010 is gfx90a, 110001 is gfx1101."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
