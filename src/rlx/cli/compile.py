"""`rlx compile`: makes code of a model before it is needed, in a folder that programs start from."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from rlx import disk
from rlx.cli.console import emit_json, out, progress, table
from rlx.cli.inputs import calibration_of, gather, parse_dims
from rlx.model import Model, load
from rlx.runtime.session import Precision


def compile_model(
    path: Path,
    folder: Path,
    input_options: Sequence[str],
    device: str,
    sizes: Sequence[str],
    threads: int,
    precision: Precision,
    calibration_files: Sequence[Path],
    seed: int,
    as_json: bool,
) -> None:
    """Compiles the model for a device, at the sizes of one run, into a cache of its own, and tells what is there."""
    chosen, examples = parse_dims(sizes), calibration_of(calibration_files, precision)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["RLX_CACHE_DIR"] = str(folder.resolve())
    os.environ.pop("RLX_CACHE", None)

    def opened() -> Model:
        return load(path, device=device, threads=threads or None, precision=precision, calibration=examples)

    start = time.perf_counter()
    with progress("compiling"):
        usual = os.environ.get("RLX_TIERS")
        os.environ["RLX_TIERS"] = "0"  # all code before the run, whose result nobody waits for
        model = opened()
        inputs = gather(model.graph, input_options, chosen, seed)
        model(**inputs)
        os.environ.pop("RLX_TIERS")
        if usual is not None:
            os.environ["RLX_TIERS"] = usual
        opened()(**inputs)  # as programs will start, which is noted too
    seconds = time.perf_counter() - start
    files = disk.entries()
    nbytes = sum(size for _, size in files)
    if as_json:
        emit_json({
            "folder": str(folder.resolve()), "device": str(model.device), "files": len(files), "bytes": nbytes,
            "seconds": seconds,
        })  # fmt: skip
        return
    rows = [[str(model.device), str(len(files)), f"{nbytes / 1e6:.1f}", f"{seconds:.1f}"]]
    out().print(table(f"{path.name} in {folder}", ("device", "files", "MB", "s"), rows, right=(1, 2, 3)))
    out().print(f"programs start from it with RLX_CACHE_DIR={folder.resolve()}")
