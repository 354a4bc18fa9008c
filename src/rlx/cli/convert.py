"""`rlx convert`: converts a model for another runtime."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rlx
from rlx.cli.console import emit_json, human_bytes, out, progress, table
from rlx.cli.inputs import check_names, parse_dims
from rlx.cli.sizes import fitting
from rlx.cli.values import scalars
from rlx.errors import CapabilityError, InputError


def convert_model(path: Path, target: Path, device: str, sizes: Sequence[str], as_json: bool) -> None:
    """Converts the model at `path`, and tells what is in the result."""
    chosen = parse_dims(sizes)
    with progress("reading"):
        model = rlx.load(path, device=device)
    check_names(model.graph, chosen)
    missing = [name for name in model.graph.symbols if name not in chosen]
    if missing:
        fit = fitting(model.graph, chosen, scalars(model.graph)).of
        options = " ".join(f"--dim {name}={fit[name]}" for name in missing)
        raise InputError(
            f"[convert] expected sizes of the dims {', '.join(missing)}, which the result has for good, got none; "
            f"these fit: {options}"
        )
    start_ns = time.perf_counter_ns()
    with progress("converting"):
        compiled = model.compiled
        if not compiled.capabilities.package:
            raise CapabilityError(f"[convert] expected a device with models of its own, such as ane, got {device}")
        package = compiled.executable.write_package(target, chosen)
    files = [file for file in target.rglob("*") if file.is_file()] if target.is_dir() else [target]
    report: dict[str, Any] = {
        "file": str(target),
        "bytes": sum(file.stat().st_size for file in files),
        "convert_ms": (time.perf_counter_ns() - start_ns) / 1e6,
        **vars(package),
    }
    if as_json:
        emit_json(report)
        return
    console = out()
    rows = [
        [kind, name, f"{of}[{', '.join(map(str, shape))}]"]
        for kind in ("inputs", "outputs")
        for name, (of, shape) in report[kind].items()
    ]
    console.print(table("", ("", "name", "type"), rows))
    console.print()
    console.print(table("", ("op", "times"), sorted(report["ops"].items(), key=lambda pair: -pair[1]), right=(1,)))
    console.print()
    console.print(f"{target}: {human_bytes(report['bytes'])}, converted in {report['convert_ms']:.0f} ms")
