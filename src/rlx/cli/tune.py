"""`rlx tune`: a bounded search for faster schedules of the heaviest kernels of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlx import flags
from rlx.cli.console import emit_json, out, progress, table
from rlx.cli.inputs import calibration_of, gather, parse_dims
from rlx.model import read
from rlx.runtime.session import Precision, Session


def tune_model(
    path: Path,
    input_options: Sequence[str],
    sizes: Sequence[str],
    threads: int,
    precision: Precision,
    calibration_files: Sequence[Path],
    seconds: float,
    seed: int,
    as_json: bool,
) -> None:
    """Searches for so many seconds, keeps what is found, and prints it."""
    chosen, examples = parse_dims(sizes), calibration_of(calibration_files, precision)
    with progress("reading"):
        graph = read(path).graph
    inputs = gather(graph, input_options, chosen, seed)
    session = Session("cpu", threads=threads or None, precision=precision, calibration=examples)
    with progress("searching"):
        found = session.tune(graph, inputs, seconds=seconds)
    if as_json:
        emit_json(vars(found) | {"kernels": [vars(kernel) for kernel in found.kernels]})
        return
    rows = [
        [
            kernel.name, f"{kernel.before_us:.1f}", f"{kernel.after_us:.1f}",
            f"{kernel.after_us / kernel.before_us:.2f}",
            ", ".join(f"{place}={size}" for place, size in kernel.tiles.items()),
        ]
        for kernel in found.kernels
    ]  # fmt: skip
    title = f"{path.name}: {found.tried} schedules of {found.looked_at} kernels tried"
    if rows:
        out().print(table(title, ("kernel", "before us", "after us", "ratio", "schedule"), rows, right=(1, 2, 3)))
        out().print(f"kernels of a run: {found.before_us:.0f} us before, {found.after_us:.0f} us after")
    else:
        out().print(f"{title}, none is clearly faster ({found.before_us:.0f} us a run)")
    if rows and not flags.cache():
        out().print("not kept, as the cache is off (RLX_CACHE=0)")
    for why in found.refused:
        out().print(f"not counted: {why}")


def forget_schedules(as_json: bool) -> None:
    """Drops all schedules that searches have found."""
    from rlx.kernel.schedule import tuned

    count = tuned.forget()
    if as_json:
        emit_json({"forgotten": count})
    else:
        out().print(f"forgot {count} schedule{'' if count == 1 else 's'}")
