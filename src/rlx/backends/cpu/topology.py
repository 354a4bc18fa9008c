"""How many CPUs this process may use: affinity, cgroup quota, `RLX_NUM_THREADS`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from rlx import flags

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_OF_PROCESS = Path("/proc/self/cgroup")


def usable() -> int:
    """The CPUs that may run this process at once; at least 1.

    A quota is rounded down: a thread beyond it gets all of them stopped for the rest of the period.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(affinity, quota())))


def threads() -> int:
    """`RLX_NUM_THREADS`, else `usable()`. Raises FlagError."""
    return flags.num_threads() or usable()


def quota(root: Path = CGROUP_ROOT, process: Path = CGROUP_OF_PROCESS) -> float:
    """The least CPU quota, in CPUs, of the process's cgroup and those above it; inf without one."""
    limits = [float("inf")]
    for version, folder in _folders(root, process):
        limit = _quota_v2(folder) if version == 2 else _quota_v1(folder)
        if limit is not None:
            limits.append(limit)
    return min(limits)


def _folders(root: Path, process: Path) -> Iterator[tuple[int, Path]]:
    """Version and folder of each cgroup that may limit the CPU. Inside a container the paths that the kernel names
    may not be mounted, but their ancestors (at least the root of the mount) are."""
    for line in _read(process).splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            version, mounts = 2, [root, root / "unified"]
        elif "cpu" in controllers.split(","):
            version, mounts = 1, [root / controllers, root / "cpu"]
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            yield from ((version, mount / folder) for folder in (inside, *inside.parents) if ".." not in folder.parts)


def _quota_v2(folder: Path) -> float | None:
    limit, _, period = _read(folder / "cpu.max").strip().partition(" ")
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() and int(period) else None


def _quota_v1(folder: Path) -> float | None:
    limit, period = (_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() and int(period) else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
