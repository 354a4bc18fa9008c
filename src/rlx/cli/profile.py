"""`rlx profile`: the kernels of a model by the time that they take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rlx.cli.console import emit_json, out, progress, table
from rlx.cli.inputs import calibration_of, gather, parse_dims
from rlx.model import read
from rlx.runtime.against_prediction import Compared, Comparison, compared, predicted_kernels
from rlx.runtime.profiler import Profile, check_nan, profile
from rlx.runtime.session import Precision, Session


def profile_model(
    path: Path,
    input_options: Sequence[str],
    device: str,
    sizes: Sequence[str],
    threads: int,
    precision: Precision,
    calibration_files: Sequence[Path],
    runs: int,
    top: int,
    trace: Path | None,
    nan: bool,
    seed: int,
    as_json: bool,
    against: bool = False,
) -> None:
    """Prints the longest kernels of the model at `path`, beside what was predicted of them if asked for; writes a trace
    if asked for."""
    chosen, examples = parse_dims(sizes), calibration_of(calibration_files, precision)
    start_ns = time.perf_counter_ns()
    with progress("reading"):
        graph = read(path).graph
    load_ns = time.perf_counter_ns() - start_ns
    inputs = gather(graph, input_options, chosen, seed)
    session = Session(device, threads=threads or None, precision=precision, calibration=examples)
    graph = session.meant(graph)  # whose kernels are predicted too
    with progress("compiling and running"):
        profiled = profile(graph, inputs, session, runs, apart=against)
        bad = check_nan(graph, inputs, session) if nan else None
        beside = compared(graph, inputs, session, profiled) if against else None
    if trace is not None:
        with progress("predicting kernels"):
            predicted = predicted_kernels(graph, inputs, session, profiled)
        profiled.save_trace(trace, predicted, load_ns)
    if as_json:
        document = {
            "device": profiled.device,
            "total_ms": profiled.total_ns / 1e6,
            "run_ms": profiled.run_ns / 1e6,
            "compile_ms": profiled.compile_ns / 1e6,
            "load_ms": load_ns / 1e6,
            "kernels": [vars(k) for k in profiled.by_time()],
        }
        if beside is not None:
            document["against_prediction"] = {
                "measured": beside.measured, "usual_ratio": beside.usual,
                "kernels": [vars(k) | {"ratio": k.ratio} for k in beside.kernels],
            }  # fmt: skip
        emit_json(document | ({"first_nan": vars(bad) if bad else None} if nan else {}))
        return
    if beside is None:
        _print(profiled, path.name, top)
    else:
        _print_beside(beside, profiled, path.name, top)
    if nan:
        told_bad = f"{bad.op} at node {bad.node!r} makes the first NaN ({bad.nans} of them)" if bad else "no NaN"
        out().print(told_bad)
    if trace is not None:
        out().print(f"trace written to {trace}")


def _print_beside(beside: Comparison, profiled: Profile, name: str, top: int) -> None:
    """The longest kernels, and those whose predictions are off by most beside what they all are."""
    took, predicted = beside.took_ns / 1e6, beside.predicted_ns / 1e6
    by = "measured rates" if beside.measured else "a prior: `rlx devices --calibrate` measures the device"
    title = f"{name} on {profiled.device}: {predicted:.3f} ms predicted by {by}, {took:.3f} ms taken"
    columns = ("predicted ms", "took ms", "ratio", "calls", "kernel", "nodes")
    out().print(table(title, columns, [_row(k) for k in beside.kernels[:top]], right=(0, 1, 2, 3)))
    worst = f"farthest from the usual ratio, which is {beside.usual:.2f}"
    out().print(table(worst, columns, [_row(k) for k in beside.worst()[:top]], right=(0, 1, 2, 3)))


def _row(kernel: Compared) -> list[object]:
    predicted = "-" if kernel.predicted_ns is None else f"{kernel.predicted_ns / 1e6:.4f}"
    ratio = "-" if kernel.ratio is None else f"{kernel.ratio:.2f}"
    nodes = ", ".join(kernel.sources[:3])
    return [predicted, f"{kernel.took_ns / 1e6:.4f}", ratio, kernel.calls, kernel.name, nodes]


def _print(profiled: Profile, name: str, top: int) -> None:
    kernels = profiled.by_time()
    rows = [
        [
            f"{k.total_ns / 1e6:.3f}",
            f"{k.total_ns / max(profiled.total_ns, 1):.1%}",
            k.calls,
            k.name,
            ", ".join(k.sources[:3]),
        ]
        for k in kernels[:top]
    ]
    took = f"{profiled.total_ns / 1e6:.3f} ms in {len(kernels)} kernels, of a run of {profiled.run_ns / 1e6:.3f} ms"
    title = f"{name} on {profiled.device}: {took}"
    out().print(table(title, ("ms", "share", "calls", "kernel", "nodes"), rows, right=(0, 1, 2)))
    rest = kernels[top:]
    if rest:
        out().print(f"{sum(k.total_ns for k in rest) / 1e6:.3f} ms in {len(rest)} more")
