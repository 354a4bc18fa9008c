"""`rlx profile`: the kernels of a model by the time that they take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlx.cli.console import emit_json, out, progress, table
from rlx.cli.inputs import gather, parse_dims
from rlx.model import read
from rlx.runtime.profiler import Profile, check_nan, profile
from rlx.runtime.session import Session


def profile_model(
    path: Path,
    given: Sequence[str],
    device: str,
    sizes: Sequence[str],
    threads: int,
    runs: int,
    top: int,
    trace: Path | None,
    nan: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Prints the longest kernels of the model at `path`; writes a trace if asked for."""
    chosen = parse_dims(sizes)
    with progress("reading"):
        graph = read(path).graph
    inputs = gather(graph, given, chosen, seed)
    session = Session(device, threads=threads or None)
    with progress("compiling and running"):
        found = profile(graph, inputs, session, runs)
        bad = check_nan(graph, inputs, session) if nan else None
    if trace is not None:
        found.save_trace(trace)
    if as_json:
        told = {"device": found.device, "total_ms": found.total_ns / 1e6, "kernels": [vars(k) for k in found.by_time()]}
        emit_json(told | ({"first_nan": vars(bad) if bad else None} if nan else {}))
        return
    _print(found, path.name, top)
    if nan:
        told_bad = f"{bad.op} at node {bad.node!r} makes the first NaN ({bad.nans} of them)" if bad else "no NaN"
        out().print(told_bad)
    if trace is not None:
        out().print(f"trace written to {trace}")


def _print(found: Profile, name: str, top: int) -> None:
    kernels = found.by_time()
    rows = [
        [
            f"{k.total_ns / 1e6:.3f}",
            f"{k.total_ns / max(found.total_ns, 1):.1%}",
            k.calls,
            k.name,
            ", ".join(k.sources[:3]),
        ]
        for k in kernels[:top]
    ]
    title = f"{name} on {found.device}: {found.total_ns / 1e6:.3f} ms in {len(kernels)} kernels"
    out().print(table(title, ("ms", "share", "calls", "kernel", "nodes"), rows, right=(0, 1, 2)))
    rest = kernels[top:]
    if rest:
        out().print(f"{sum(k.total_ns for k in rest) / 1e6:.3f} ms in {len(rest)} more")
