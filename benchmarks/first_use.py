"""The first answer and the tenth, as a whole process: `rlx.load(path)` on the device that it chooses by itself, against
`device="cpu"` and onnxruntime.

    python -m benchmarks.first_use [--only NAME] [--rounds 3] [--loaded] [--stored]

Every start is a process of its own with an empty environment and an empty cache, in turns, of the nets of `zoo` and
`shaped`. `--stored` starts each once more from the cache that the first start filled. `--loaded` keeps every processor
busy with hashing. A line a net: seconds from the start of the process to the first answer, ms of the tenth, and seconds
until full speed: all code and weights are in the cache, and no later one of the ten runs took a fourth longer than the
quickest. No start begins before the process that compiles has ended.
`--processor` tells processor time up to the first answer instead (user and system of the process that answers, the
least of all rounds), on which what else the machine does tells less.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import shaped
from benchmarks.zoo import Absent, nets

ROOT = Path(__file__).parents[1]
RUNS = 10
STARTS = ("auto", "cpu", "onnxruntime")

CHILD = """
import json, sys, time
began = float(sys.argv[1])
import numpy as np
kind, path, feed = sys.argv[2:5]
inputs = dict(np.load(feed, allow_pickle=False))
if kind == "onnxruntime":
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(sys.argv[5])
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    run = lambda: session.run(None, inputs)
    device = "cpu"
else:
    import rlx
    model = rlx.load(path, device=kind)
    run = lambda: model.run(inputs)
run()
first, used = time.time() - began, time.process_time()
ends, took = [first], [float("inf")]
for _ in range(int(sys.argv[6]) - 1):
    before = time.perf_counter()
    run()
    took.append(time.perf_counter() - before)
    ends.append(time.time() - began)
settled = max(end for end, seconds in zip(ends, took) if seconds > 1.25 * min(took))
device = device if kind == "onnxruntime" else model.device
print(json.dumps({
    "first_s": first, "processor_s": used, "tenth_ms": took[-1] * 1e3, "settled_s": settled, "device": device,
}))
"""


def start(kind: str, path: str, feed: str, threads: int, cache: str) -> dict[str, Any]:
    """One process: its first answer and its tenth. Raises RuntimeError with what it said."""
    variables = {
        name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ
    }
    environment = variables | {"RLX_CACHE_DIR": cache, "RLX_NUM_THREADS": str(threads)}
    began = time.time()
    command = [sys.executable, "-c", CHILD, str(began), kind, path, feed, str(threads), str(RUNS)]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    if completed.returncode:
        raise RuntimeError(
            completed.stderr.strip().splitlines()[-1] if completed.stderr.strip() else f"exit {completed.returncode}"
        )
    record: dict[str, Any] = json.loads(completed.stdout.strip().splitlines()[-1])
    return record | {"full_s": max(record["settled_s"], wait_for_code(cache, began))}


def wait_for_code(cache: str, began: float) -> float:
    """Waits until no process compiles for a cache; seconds from `began` to when the last entry was written."""
    while any(f"RLX_CACHE_DIR={cache}" in variables for variables in _environments()):
        time.sleep(0.02)
    return max((path.stat().st_mtime for path in Path(cache).glob("*")), default=began) - began


def _environments() -> Iterator[list[str]]:
    """The variables of all processes, where the system lists them as files."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            yield path.read_bytes().decode(errors="replace").split("\0")


def keep_busy() -> None:
    data = os.urandom(1 << 20)
    while True:
        hashlib.sha256(data).digest()


def named(part: str) -> Iterator[tuple[str, Callable[[], Path], Callable[[], dict[str, Any]]]]:
    """Names, files and inputs of the nets whose names hold a part."""
    for net in nets().values():
        if part in net.name:
            yield net.name, net.path, net.inputs
    for name in shaped.NETS:
        if part in f"shaped-{name}":
            yield f"shaped-{name}", partial(shaped.path, name), partial(shaped.inputs, name)


def measure(
    name: str, path: str, inputs: dict[str, Any], threads: int, rounds: int, stored: bool, of: str
) -> dict[str, Any]:
    """Each kind of start: `first_s` and with `stored` `again_s`, by the clock or of processor time as `of` says, and
    medians of `tenth_ms` and `full_s`."""
    import numpy as np

    samples_of: dict[str, list[dict[str, Any]]] = {kind: [] for kind in STARTS}
    with tempfile.TemporaryDirectory() as folder:
        feed = str(Path(folder) / "feed.npz")
        np.savez(feed, **inputs)
        for number in range(rounds):
            for kind in STARTS:
                cache = str(Path(folder) / f"{kind}{number}")
                sample = start(kind, path, feed, threads, cache)
                if stored:
                    sample["again_s"] = start(kind, path, feed, threads, cache)[of]
                samples_of[kind].append(sample | {"first_s": sample[of]})
    chosen = statistics.median if of == "first_s" else min
    row: dict[str, Any] = {"net": name, "device": samples_of["auto"][0]["device"]}
    for kind, samples in samples_of.items():
        row[kind] = {key: statistics.median(t[key] for t in samples) for key in ("tenth_ms", "full_s")}
        row[kind] |= {key: chosen(t[key] for t in samples) for key in ("first_s", "again_s") if key in samples[0]}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="nets whose names hold this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--loaded", action="store_true")
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--processor", action="store_true", help="processor time instead of the clock's")
    parser.add_argument("--save", type=Path, help="write all results to this file, as JSON")
    chosen = parser.parse_args()
    helpers = [multiprocessing.Process(target=keep_busy, daemon=True) for _ in range(os.cpu_count() or 1)]
    for helper in helpers if chosen.loaded else []:
        helper.start()
    results = []
    print(f"{'net':28} {'device':7} {'first s: auto':>13} {'cpu':>7} {'ort':>7} {'auto/cpu':>9} {'tenth ms: auto':>15} "
          f"{'cpu':>9} {'ort':>9} {'full s: auto':>12}"
          + ("  again s: auto     ort" if chosen.stored else ""))  # fmt: skip
    of = "processor_s" if chosen.processor else "first_s"
    for name, path, inputs in named(chosen.only):
        try:
            row = measure(name, str(path()), inputs(), chosen.threads, chosen.rounds, chosen.stored, of)
        except (Absent, RuntimeError) as error:
            print(f"{name:28} left out: {str(error)[:120]}")
            continue
        results.append(row)
        auto, cpu, peer = row["auto"], row["cpu"], row["onnxruntime"]
        print(f"{name:28} {row['device']:7} {auto['first_s']:13.2f} {cpu['first_s']:7.2f} {peer['first_s']:7.2f} "
              f"{auto['first_s'] / cpu['first_s']:9.2f} {auto['tenth_ms']:15.3f} {cpu['tenth_ms']:9.3f} "
              f"{peer['tenth_ms']:9.3f} {auto['full_s']:12.2f}"
              + (f"  {auto['again_s']:13.2f} {peer['again_s']:7.2f}" if chosen.stored else ""), flush=True)  # fmt: skip
    if results:
        ratios = [r["auto"]["first_s"] / r["cpu"]["first_s"] for r in results]
        print(f"first answer, auto over cpu: median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}")
    if chosen.save:
        chosen.save.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
