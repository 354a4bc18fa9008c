"""Whether the choice of devices is the same from one calibration to the next, calm and beside other work.

    python -m benchmarks.repeated_picks [--devices cpu,xla] [--rounds 5]

Each round calibrates the devices anew, in a process and a cache folder of its own, and asks for every net of the zoo
what would be chosen. Half of the rounds have a helper hashing on each processor. A line a net: its picks, calm and
loaded.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.first_use import keep_busy

ROOT = Path(__file__).parents[1]

CHILD = """
import json, sys
from benchmarks.zoo import Absent, nets
from rlx.device import calibration, registry
from rlx.device.policy import DevicePolicy
from rlx.errors import RlxError
from rlx.model import read
from rlx.runtime.graph_devices import GraphDevices
devices = registry.parse_list(sys.argv[1])
for device in devices:
    calibration.measure(device)
for net in nets().values():
    try:
        graph = read(net.path()).graph
        told = GraphDevices(graph, DevicePolicy().only(*devices)).report(net.inputs())
    except (Absent, RlxError):
        continue
    times = {str(c.device): c.run_ns() for c in told.candidates if not c.blocker}
    print(json.dumps({"net": net.name, "pick": str(told.chosen), "ns": times}), flush=True)
"""


def picks(devices: str) -> dict[str, dict[str, object]]:
    """One round, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        completed = subprocess.run(
            [sys.executable, "-c", CHILD, devices], env={**os.environ, "RLX_CACHE_DIR": folder}, cwd=ROOT,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if completed.returncode:
        raise SystemExit(completed.stderr[-1500:])
    return {record["net"]: record for record in map(json.loads, completed.stdout.splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cpu,xla")
    parser.add_argument("--rounds", type=int, default=5, help="of each half")
    chosen = parser.parse_args()
    rounds: dict[str, list[dict[str, dict[str, object]]]] = {"calm": [], "loaded": []}
    for _ in range(chosen.rounds):
        rounds["calm"].append(picks(chosen.devices))
        helpers = [multiprocessing.Process(target=keep_busy, daemon=True) for _ in range(os.cpu_count() or 1)]
        for helper in helpers:
            helper.start()
        try:
            rounds["loaded"].append(picks(chosen.devices))
        finally:
            for helper in helpers:
                helper.kill()
    flips = 0
    for net in rounds["calm"][0]:
        picks_of = {kind: Counter(str(record[net]["pick"]) for record in many) for kind, many in rounds.items()}
        total = picks_of["calm"] + picks_of["loaded"]
        flips += len(total) > 1
        summary = "; ".join(f"{kind}: " + ", ".join(f"{d} {n}" for d, n in c.items()) for kind, c in picks_of.items())
        print(f"{net:28} {summary}{'  differs' if len(total) > 1 else ''}")
    print(f"picks that differ: {flips} of {len(rounds['calm'][0])} nets, in {2 * chosen.rounds} calibrations")


if __name__ == "__main__":
    main()
