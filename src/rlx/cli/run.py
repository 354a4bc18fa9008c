"""`rlx run`: one run of a model, its outputs shown and saved."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.cli.console import emit_json, out, progress, table
from rlx.cli.inputs import calibration_of, gather, parse_dims
from rlx.ir.literal import Array
from rlx.runtime.session import Precision


def run_model(
    path: Path,
    input_options: Sequence[str],
    folder: Path | None,
    device: str,
    sizes: Sequence[str],
    threads: int,
    precision: Precision,
    calibration_files: Sequence[Path],
    seed: int,
    as_json: bool,
) -> None:
    """Runs the model at `path` once."""
    chosen, examples = parse_dims(sizes), calibration_of(calibration_files, precision)
    with progress("reading"):
        model = rlx.load(path, device=device, threads=threads or None, precision=precision, calibration=examples)
    inputs = gather(model.graph, input_options, chosen, seed)
    with progress("compiling"):
        compiled = model.compiled
    start_ns = time.perf_counter_ns()
    with progress("running"):
        results = model.run_parts(inputs)
    run_ms = (time.perf_counter_ns() - start_ns) / 1e6
    compiled = model.compiled  # of a chain that went on it is another
    files = _save(results, folder) if folder is not None else {}
    document: dict[str, Any] = {
        "model": str(path),
        "device": model.device,
        "tried_before": dict(compiled.attempts),
        "compile_ms": compiled.executable.compile_ns / 1e6,
        "first_run_ms": run_ms,
        "inputs": {name: summary(array) for name, array in inputs.items()},
        "outputs": {name: {**summary(array), "file": files.get(name)} for name, array in results.items()},
    }
    if as_json:
        emit_json(document)
        return
    console = out()
    for kind in ("inputs", "outputs"):
        rows = [_row(name, entry) for name, entry in document[kind].items()]
        console.print(table(kind, ("name", "type", "least", "mean", "greatest", "first"), rows, right=(2, 3, 4)))
        console.print()
    for file in files.values():
        console.print(f"written: {file}")
    for tried, why in compiled.attempts.items():
        console.print(f"tried {tried}: {why}")
    console.print(f"on {model.device}, compiled in {document['compile_ms']:.0f} ms, first run in {run_ms:.1f} ms")


def summary(array: Array) -> dict[str, Any]:
    """Type, range and first elements of an array."""
    fields: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.size and array.dtype.kind not in "c":
        wide = array.astype(np.float64)
        with np.errstate(all="ignore"):
            fields |= {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}
        fields["first"] = array.reshape(-1)[:4].tolist()
        fields["nan"] = int(np.isnan(wide).sum())
    return fields


def _row(name: str, entry: dict[str, Any]) -> list[str]:
    numbers = [f"{entry[key]:.4g}" if key in entry else "" for key in ("min", "mean", "max")]
    first = " ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in entry.get("first", ()))
    of = f"{entry['dtype']}[{', '.join(map(str, entry['shape']))}]"
    return [name, of, *numbers, first]


def _save(results: dict[str, Array], folder: Path) -> dict[str, str]:
    """A .npy each; names become file names without anything that could lead elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    for name, array in results.items():
        stem = re.sub(r"[^\w.-]", "_", name).lstrip(".")[:100] or "output"
        paths = set(files.values())
        number = 1
        path = folder / f"{stem}.npy"
        while str(path) in paths:
            number += 1
            path = folder / f"{stem}_{number}.npy"
        np.save(path, array, allow_pickle=False)
        files[name] = str(path)
    return files
