"""`rlx bench`: how long a model takes, beside other runtimes if asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from rlx.cli.baselines import Case, limit_threads, names_of
from rlx.cli.compare import Timing, pin_to_one_core, race, rounds_of
from rlx.cli.console import emit_json, out, progress, table
from rlx.cli.inputs import calibration_of, gather, parse_dims
from rlx.errors import CompileError
from rlx.ir.names import RANDOM_STATE
from rlx.model import read
from rlx.runtime.session import Precision


def bench_model(
    path: Path,
    vs: str,
    input_options: Sequence[str],
    device: str,
    sizes: Sequence[str],
    threads: int,
    precision: Precision,
    calibration_files: Sequence[Path],
    seconds: float,
    seed: int,
    as_json: bool,
) -> None:
    """Times the model at `path` and prints medians, spreads and ratios."""
    chosen, examples = parse_dims(sizes), calibration_of(calibration_files, precision)
    try:
        peers = names_of(vs)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--vs") from None
    threads = threads or _cores()
    limit_threads(threads)
    if threads == 1:
        pin_to_one_core()
    with progress("reading"):
        imported = read(path)
    inputs = gather(imported.graph, input_options, chosen, seed)
    inputs.pop(RANDOM_STATE, None)  # each runtime draws its own
    case = Case(
        model=str(path),
        inputs=inputs,
        threads=threads,
        device=device,
        precision=precision,
        calibration=examples,
        onnx=str(path) if imported.format == "onnx" else "",
        transformer=str(path) if path.is_dir() else "",
    )
    with progress("timing", rounds_of(seconds, together=threads == 1)) as step:
        timings = race(["rlx", *peers], case, seconds, step=step)
    if not timings[0].ran:
        raise CompileError(f"[bench] expected rlx to run the model, got: {timings[0].why}")
    about = timings[0].about
    if as_json:
        report = {
            "model": str(path),
            "device": about["device"],
            "isa": about.get("isa"),
            "threads": threads,
            "precision": precision,
        }
        emit_json(report | {"shapes": _shapes(inputs), "timings": list(map(vars, timings))})
        return
    machine = about["device"] + (f" ({about['isa']})" if "isa" in about else "")
    narrow = "" if precision == "f32" else f", products of {precision}"
    title = f"{path.name} on {machine}, {threads} thread{'s' if threads > 1 else ''}{narrow}, {_shapes(inputs)}"
    columns = ("", "version", "median ms", "± MAD", "calls", "rlx is faster by", "differs by")
    out().print(table(title, columns, [_row(t) for t in timings if t.ran], right=range(2, 7)))
    for t in timings:
        if not t.ran:
            out().print(f"{t.name} did not run: {t.why}")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _shapes(inputs: dict[str, Any]) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())


def _row(timing: Timing) -> list[str]:
    faster = "" if timing.name == "rlx" else f"{timing.ratio:.2f}x"
    differs = "" if timing.name == "rlx" else f"{timing.error:.1e}"
    version = timing.about.get("version", "")
    return [timing.name, version, f"{timing.median_ms:.3f}", f"{timing.mad_ms:.3f}", str(timing.calls), faster, differs]
