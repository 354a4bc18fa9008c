"""Records what calibration measures of this machine, as a profile that priors of other machines go by.

    python -m tools.record_profile NAME [--devices cpu,xla] [--threads 1,2,4] [--isas avx512,avx2,sse] [--into FOLDER]

Each setting is measured in a process of its own, on so many processors and no more, and is written as
`backends/<kind>/profiles/NAME-<sort>-<threads>.json`. Run it on a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BACKENDS = Path(__file__).parents[1] / "src" / "rlx" / "backends"
DIGITS = 4


def measure(device: str) -> None:
    """Prints the profile of a device in this process."""
    from rlx.device import calibration, registry

    selected = registry.parse(device)
    backend, ordinal = registry.backend(selected)
    traits = backend.traits(ordinal)
    if traits is None:
        raise SystemExit(f"record_profile: expected a device with traits, got {device}")
    measurement = calibration.measure(selected)
    rates = {name: float(f"{value:.{DIGITS}g}") for name, value in sorted(measurement.rates.items())}
    document = {"machine": registry.full_name(selected), "sort": traits.sort, "amounts": dict(traits.amounts)}
    print(json.dumps(document | {"took_s": round(measurement.took_s, 1), "rates": rates}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--devices", default="cpu,xla")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--isas", default="", help="of the device cpu; the others use what there is")
    parser.add_argument("--into", type=Path, default=BACKENDS)
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        measure(chosen.measure)
        return
    for device in chosen.devices.split(","):
        for isa in chosen.isas.split(",") if device == "cpu" and chosen.isas else [""]:
            for threads in map(int, chosen.threads.split(",")):
                record(chosen.name, device, isa, threads, chosen.into)


def record(name: str, device: str, isa: str, threads: int, into: Path) -> None:
    """One setting, in a process that has so many processors."""
    processors = sorted(os.sched_getaffinity(0))[:threads]
    if len(processors) < threads:
        raise SystemExit(f"record_profile: expected {threads} processors, got {len(processors)}")
    with tempfile.TemporaryDirectory() as folder:
        completed = subprocess.run(
            [sys.executable, "-m", "tools.record_profile", name, "--measure", device],
            env=os.environ | {"RLX_CACHE_DIR": folder, "RLX_NUM_THREADS": str(threads), "RLX_CPU_ISA": isa or "auto"},
            preexec_fn=lambda: os.sched_setaffinity(0, processors), capture_output=True, text=True, check=False,
        )  # fmt: skip
    if completed.returncode:
        raise SystemExit(f"record_profile: {device} {isa} {threads}: {completed.stderr[-800:]}")
    document = json.loads(completed.stdout)
    target = into / device.partition(":")[0] / "profiles" / f"{name}-{document['sort']}-{threads}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(completed.stdout)
    print(f"{target.name}: {document['took_s']} s", flush=True)


if __name__ == "__main__":
    main()
