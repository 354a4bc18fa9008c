"""Explains why a device was chosen: as text, and as data."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rlx.device.choice import GAIN, Candidate, Decision
from rlx.device.policy import UNASKED

TOP_KERNELS = 8
WIDTH = 80


def as_dict(decision: Decision, graph: str = "") -> dict[str, Any]:
    """Everything that the decision is based on. Times are in ns, sizes in bytes."""
    return {
        "graph": graph,
        "chosen": str(decision.chosen),
        "reason": decision.reason,
        "dims": dict(decision.binding),
        "expected_runs": decision.expected_runs,
        "took_ms": decision.took_ms,
        "what_would_change_it": what_would_change(decision),
        "devices": [_candidate(c, decision) for c in decision.candidates],
    }


def _candidate(c: Candidate, decision: Decision) -> dict[str, Any]:
    data: dict[str, Any] = {"device": str(c.device), "name": c.name, "available": not c.blocker, "blocker": c.blocker}
    if c.estimate is None:
        return data
    estimate = c.estimate
    compute, memory = split(c)
    return data | {
        "predicted_ns": estimate.run_ns * c.ratio,
        "band": c.band,
        "calibrated": not c.is_prior,
        "measured_ns": c.measured_ns,
        "measured_runs": c.sample.runs if c.sample else 0,
        "corrected_by": c.ratio,
        "compute_ns": compute,
        "memory_ns": memory,
        "launch_ns": estimate.launch_ns,
        "copy_ns": estimate.copy_ns,
        "compile_ns": estimate.compile_ns,
        "expected_compiles": c.compiles,
        "total_ns": c.total_ns(decision.expected_runs),
        "arena_bytes": estimate.arena_bytes,
        "weight_bytes": estimate.weight_bytes,
        "free_bytes": estimate.free_bytes,
        "calibration_age_s": c.age_s,
        "ops": dict(c.ops),
        "kernels": [vars(k) for k in estimate.kernels],
    }


def split(c: Candidate) -> tuple[float, float]:
    """(ns of kernels that instructions bound, ns of those that memory bounds)."""
    compute = memory = 0.0
    for kernel in c.estimate.kernels if c.estimate else ():
        if kernel.compute_ns >= kernel.memory_ns:
            compute += kernel.ns
        else:
            memory += kernel.ns
    return compute, memory


def what_would_change(decision: Decision) -> str:
    """What would make another device the choice, in one sentence."""
    able = [c for c in decision.candidates if not c.blocker and c.estimate is not None]
    if not able:
        return "Only another policy, or another device: no predictions were needed."
    chosen = decision.candidate(decision.chosen)
    others = [c for c in able if c.device != decision.chosen]
    if not others:
        return "Only another device: no other can run it."
    runs = decision.expected_runs
    rival = min(others, key=lambda c: c.total_ns(runs))
    if chosen.estimate is None and chosen.sample is None:
        return f"Of {chosen.device} nothing is known; {rival.device} would take {_time(rival.total_ns(runs))}."
    factor = rival.total_ns(runs) / max(chosen.total_ns(runs), 1e-9)
    if factor < 1:
        clear = f"A device must be {GAIN:g} times as fast by predictions, or measured so: rlx bench --devices"
        return f"{rival.device} is predicted {1 / factor:.2f} times as fast. {clear}."
    sentence = f"{rival.device} would have to be {factor:.2f} times as fast as it is"
    fixed = (rival.estimate.launch_ns + rival.estimate.copy_ns) if rival.estimate else 0.0
    if fixed > chosen.run_ns():
        sentence += f" (calls and copies alone take {_time(fixed)} there)"
    elif rival.compile_ns(runs) > rival.run_ns():
        sentence += f" (compiles alone take {_time(rival.compile_ns(runs))} of a run there)"
    return sentence + "."


def as_text(decision: Decision, graph: str = "") -> str:
    """For a terminal of 80 columns: the choice, a table of devices, the longest kernels."""
    dims = ", ".join(f"{name}={size}" for name, size in decision.binding.items())
    lines = _wrapped(f"{graph or 'the graph'} runs on {decision.chosen}: {decision.reason}")
    lines += _wrapped(f"(at {dims})") if dims else []
    predicted = [c for c in decision.candidates if c.estimate is not None]
    if predicted:
        lines += ["", *_table(predicted), *_notes(predicted, decision), ""]
        lines += _wrapped(f"What would change it: {what_would_change(decision)}")
    lines += _blocked([c for c in decision.candidates if c.estimate is None and c.blocker])
    chosen = decision.candidate(decision.chosen)
    if chosen.estimate is not None:
        lines += ["", *_wrapped(f"On {chosen.device}: {_counts(chosen.ops)}; its longest kernels:"), *_kernels(chosen)]
        lines += ["", f"The choice took {decision.took_ms:.1f} ms."]
    return "\n".join(lines)


def _table(candidates: Sequence[Candidate]) -> list[str]:
    """What a run is predicted to take, and its parts, which sum to it."""
    table = [("device", "predicted", "±", "measured", "compute", "memory", "launch", "copies", "compile")]
    for c in candidates:
        assert c.estimate is not None  # only those that are predicted come here
        compute, memory = split(c)
        table.append(
            (
                f"{c.device}", _time(c.estimate.run_ns * c.ratio), f"{c.band:.0%}",
                _time(c.measured_ns) if c.measured_ns else "-", _time(compute * c.ratio), _time(memory * c.ratio),
                _time(c.estimate.launch_ns * c.ratio), _time(c.estimate.copy_ns * c.ratio),
                _time(c.estimate.compile_ns),
            )
        )  # fmt: skip
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table]


def _notes(candidates: Sequence[Candidate], decision: Decision) -> list[str]:
    """What the figures of each device are based on."""
    lines = []
    for c in candidates:
        notes = [c.blocker] if c.blocker else []
        if c.is_prior:
            notes.append("not calibrated here: predicted from similar machines (rlx devices --calibrate)")
        elif c.calibration is not None:
            notes.append(f"calibrated {c.age_s / 3600:.1f} hours ago")
        if abs(c.ratio - 1) > 0.005:
            notes.append(f"corrected by {c.ratio:.2f}")
        if c.sample is not None:
            notes.append(f"{c.sample.runs} runs measured" + ("" if c.sample.calm else " beside other work"))
        if c.compiles > 1:
            notes.append(f"{c.compiles:.0f} compiles are expected, as sizes differ")
        if c.drift != 1.0:
            notes.append(f"programs take {c.drift:.2f} times as calibrated (rlx devices --calibrate)")
        lines += _wrapped(f"{c.device}: {'; '.join(notes)}", "  ", "    ") if notes else []
    runs = decision.expected_runs
    return ["", *lines, *([f"  Compiles are spread over {runs:g} runs."] if math.isfinite(runs) else [])]


def _blocked(candidates: Sequence[Candidate]) -> list[str]:
    """Why others are not in question; those that must be named in one line."""
    if not candidates:
        return []
    by_reason: dict[str, list[str]] = {}
    for c in candidates:
        reason = f"{UNASKED}, but by name" if c.blocker.startswith(UNASKED) else c.blocker
        by_reason.setdefault(reason, []).append(str(c.device))
    lines = ["", "Excluded:"]
    for reason, devices in by_reason.items():
        lines += _wrapped(f"{', '.join(devices)}: {reason}", "  ", "    ")
    return lines


def _kernels(chosen: Candidate) -> list[str]:
    assert chosen.estimate is not None  # only one that is predicted comes here
    lines = []
    for kernel in sorted(chosen.estimate.kernels, key=lambda k: -k.ns)[:TOP_KERNELS]:
        bound = "compute" if kernel.compute_ns >= kernel.memory_ns else "memory"
        share = kernel.ns / max(chosen.estimate.work_ns, 1e-9)
        made_of = ", ".join(list(dict.fromkeys(kernel.sources))[:2])
        line = f"  {_time(kernel.ns * chosen.ratio):>7}  {share:4.0%}  {bound:7}  {kernel.name}  {made_of}"
        lines.append(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…")
    return lines


def _wrapped(text: str, first: str = "", other: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=other, break_long_words=False, break_on_hyphens=False
    )


def _counts(ops: Mapping[str, int]) -> str:
    told = (f"{count} node{'' if count == 1 else 's'} {fate}" for fate, count in sorted(ops.items()))
    return ", ".join(told) or "no nodes"


def _time(ns: float) -> str:
    """A duration for people."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"
