"""`rlx devices`, `rlx explain`, `rlx bench --devices`: lists devices, and shows which is the fastest for a model and
why."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlx.backends.base import Options
from rlx.backends.cpu import build, isa, topology
from rlx.cli.console import emit_json, out, progress, table
from rlx.cli.inputs import calibration_of, gather, parse_dims
from rlx.device import calibration, observed, registry
from rlx.device.device import KINDS, Device
from rlx.device.policy import DevicePolicy, converts_only
from rlx.errors import RlxError, UnsupportedOp
from rlx.ir.graph import Graph
from rlx.model import read
from rlx.passes.specialise import assume_equal
from rlx.runtime.graph_devices import GraphDevices
from rlx.runtime.session import Precision, Session

SHOWN = ("call_ns", "launch_ns", "upload_bytes_per_ns", "download_bytes_per_ns")


def show_devices(measure: bool, only: str, as_json: bool) -> None:
    """Prints the devices; measures them first if asked for."""
    with progress("looking at devices"):
        selected = list(registry.parse_list(only)) if only else listed()
    entries = []
    for device in selected:
        reason = registry.why_unavailable(device)
        row: dict[str, Any] = {"device": str(device), "name": device.label, "available": not reason, "reason": reason}
        if not reason:
            row["name"] = registry.full_name(device)
            row |= _calibration(device, measure)
        entries.append(row)
    if as_json:
        emit_json({"devices": entries})
        return
    rows = [[r["device"], r["name"], r["reason"] or r.get("calibrated", "")] for r in entries]
    out().print(table("", ("device", "what it is", ""), rows, wrap=(1, 2)))
    for row in entries:
        if measure and row.get("rates"):
            out().print()
            out().print(
                table(f"{row['device']}, measured in {row['took_s']:.1f} s", ("", ""), _rates(row["rates"]), right=(1,))
            )


def forget_devices(only: str) -> None:
    """Forgets what was measured of devices, and what programs took on them."""
    for device in registry.parse_list(only) if only else registry.available_devices():
        if registry.is_available(device):
            observed.of(device).forget()
            calibration.remove(device)


def listed() -> list[Device]:
    """All devices that are here, then the kinds that are not."""
    here = registry.available_devices()
    kinds = {device.kind for device in here}
    return [*here, *(Device(kind) for kind in KINDS if kind not in kinds)]


def _calibration(device: Device, measure: bool) -> dict[str, Any]:
    try:
        if measure:
            with progress(f"measuring {device}", MEASUREMENTS) as step:
                known: calibration.Calibration | None = calibration.measure(device, lambda name: step())
            observed.of(device).forget()  # it corrected other rates than these
        else:
            known = calibration.known(device)
    except RlxError as error:
        return {"calibrated": f"cannot be measured: {error}"}
    if known is None:
        guessed = calibration.prior(device) is not None
        return {"calibrated": "not calibrated: predicted from similar machines" if guessed else "not calibrated"}
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(known.measured_s))
    return {"calibrated": f"calibrated {when}", "rates": known.rates, "took_s": known.took_s, "age_s": known.age_s}


MEASUREMENTS = 36
"""Steps that a calibration takes, about."""


def _rates(rates: dict[str, float]) -> list[list[str]]:
    return [[name.replace("_", " "), f"{value:.4g}"] for name, value in sorted(rates.items())]


def _policy(only: str) -> DevicePolicy:
    policy = DevicePolicy.from_env()
    if only == "all":
        # a device with several names is measured under one
        devices = [d for d in registry.available_devices() if d.kind not in ("gpu", "webgpu", "reference", "null")]
        return policy.only(*(d for d in devices if not converts_only(d)))
    return policy.only(*registry.parse_list(only)) if only else policy


def explain_model(
    path: Path,
    input_options: Sequence[str],
    sizes: Sequence[str],
    only: str,
    precision: Precision,
    calibration_files: Sequence[Path],
    runs: float,
    page: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Prints the explanation; writes it as a page if asked for."""
    chosen, examples = parse_dims(sizes), calibration_of(calibration_files, precision)
    with progress("reading"):
        graph = read(path).graph
    inputs = gather(graph, input_options, chosen, seed)
    graph = Session(precision=precision, calibration=examples).meant(graph)
    with progress("predicting"):
        found = GraphDevices(graph, _policy(only), Options(precision=precision), runs).explain(inputs)
    narrow = "" if precision == "f32" else f" with products of {precision}"
    explanation = replace(found, graph=f"{path.name}{narrow}")  # exporters call all graphs alike
    if page is not None:
        with progress("drawing"):
            document = explanation.html()
        page.write_text(document, encoding="utf-8")
    changed = _tuned(graph, precision)
    if as_json:
        emit_json(explanation.as_dict() | ({"tuned": changed} if changed else {}))
        return
    print(explanation)
    for kernel, tiles in changed.items():
        print(f"tuned: {kernel} {tiles}")


def _tuned(graph: Graph, precision: str) -> dict[str, str]:
    """Kernels on the CPU that `rlx tune` has found schedules for; none where the CPU cannot have the graph whole."""
    try:
        return build.tuned_kernels(assume_equal(graph), isa.detect(), Options(precision=precision))
    except UnsupportedOp:  # the explanation says so
        return {}


def bench_devices(
    path: Path,
    input_options: Sequence[str],
    only: str,
    sizes: Sequence[str],
    threads: int,
    precision: Precision,
    calibration_files: Sequence[Path],
    seed: int,
    as_json: bool,
) -> None:
    """Times the model on every device named, and prints medians beside predictions."""
    chosen, examples = parse_dims(sizes), calibration_of(calibration_files, precision)
    with progress("reading"):
        graph = read(path).graph
    inputs = gather(graph, input_options, chosen, seed)
    graph = Session(precision=precision, calibration=examples).meant(graph)
    devices = GraphDevices(graph, _policy(only), Options(threads=threads or None, precision=precision))
    threads = threads or topology.threads()
    with progress("predicting and timing"):
        before = {c.device: c for c in devices.report(inputs).candidates}
        timings = devices.benchmark(inputs)
    rows = []
    for t in timings:
        estimate = before[t.device].estimate
        predicted = f"{estimate.run_ns * before[t.device].ratio / 1e6:.3f}" if estimate else ""
        if t.ran:
            rows.append(
                [t.device, f"{t.median_ns / 1e6:.3f}", f"{t.mad_ns / 1e6:.3f}", predicted, f"{t.compile_ns / 1e6:.0f}"]
            )
    if as_json:
        report = {"model": str(path), "threads": threads, "precision": precision, "isa": isa.detect().name}
        emit_json(report | {"timings": [vars(t) | {"device": str(t.device)} for t in timings]})
        return
    narrow = "" if precision == "f32" else f", products of {precision}"
    title = f"{path.name}, cpu with {threads} thread{'s' if threads > 1 else ''} ({isa.detect().name}){narrow}"
    out().print(table(title, ("device", "median ms", "± MAD", "predicted ms", "compile ms"), rows, right=(1, 2, 3, 4)))
    for t in timings:
        if not t.ran:
            out().print(f"{t.device} did not run: {t.error}")
