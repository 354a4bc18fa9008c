"""Why a device was chosen: as text, and as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.device.choice import Candidate, Decision

TOP_KERNELS = 8


def as_dict(decision: Decision, graph: str = "") -> dict[str, Any]:
    """Everything that the decision rests on. Times are in ns, sizes in bytes."""
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
    made: dict[str, Any] = {"device": str(c.device), "name": c.name, "available": not c.blocker, "blocker": c.blocker}
    if c.estimate is None:
        return made
    estimate = c.estimate
    compute, memory = split(c)
    return made | {
        "predicted_ns": estimate.run_ns * c.ratio,
        "band": estimate.band,
        "measured_ns": c.measured_ns,
        "corrected_by": c.ratio,
        "compute_ns": compute,
        "memory_ns": memory,
        "launch_ns": estimate.launch_ns,
        "copy_ns": estimate.copy_ns,
        "compile_ns": estimate.compile_ns,
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
    """What would make another device the choice, in a sentence."""
    able = [c for c in decision.candidates if not c.blocker and c.estimate is not None]
    if not able:
        return "Only another policy, or another device: no predictions were needed."
    chosen = decision.candidate(decision.chosen)
    others = [c for c in able if c.device != decision.chosen]
    if not others:
        return "Only another device: no other can run it."
    runs = decision.expected_runs
    rival = min(others, key=lambda c: c.total_ns(runs))
    factor = rival.total_ns(runs) / max(chosen.total_ns(runs), 1e-9)
    if factor < 1:
        return f"{rival.device} is predicted {1 / factor:.2f} times as fast; {decision.reason} decided."
    said = f"{rival.device} would have to be {factor:.2f} times as fast as it is"
    fixed = (rival.estimate.launch_ns + rival.estimate.copy_ns) if rival.estimate else 0.0
    if fixed > chosen.run_ns():
        said += f" (calls and copies alone take {_time(fixed)} there)"
    return said + "."


def as_text(decision: Decision, graph: str = "") -> str:
    """For a terminal: the choice, a table of devices, the longest kernels."""
    dims = ", ".join(f"{name}={size}" for name, size in decision.binding.items())
    lines = [
        f"{graph or 'the graph'} runs on {decision.chosen}: {decision.reason}" + (f" (at {dims})" if dims else ""),
        "",
    ]
    table = [("device", "predicted", "±", "measured", "compute", "memory", "launch", "copies", "compile", "")]
    blocked = []
    for c in decision.candidates:
        if c.estimate is None:
            if c.blocker:
                blocked.append(f"  {c.device}: {c.blocker}")
            continue
        compute, memory = split(c)
        note = c.blocker or (f"corrected by {c.ratio:.2f}" if abs(c.ratio - 1) > 0.005 else "")
        table.append(
            (
                f"{c.device}", _time(c.estimate.run_ns * c.ratio), f"{c.estimate.band:.0%}",
                _time(c.measured_ns) if c.measured_ns else "-", _time(compute), _time(memory),
                _time(c.estimate.launch_ns), _time(c.estimate.copy_ns), _time(c.estimate.compile_ns), note,
            )
        )  # fmt: skip
    if len(table) > 1:
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines += ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table]
        lines.append("")
        lines.append(f"What would change it: {what_would_change(decision)}")
    if blocked:
        lines += ["", "Not in question:", *blocked]
    chosen = decision.candidate(decision.chosen)
    if chosen.estimate is not None:
        lines += ["", f"On {chosen.device}: {_counts(chosen.ops)}; its longest kernels:"]
        longest = sorted(chosen.estimate.kernels, key=lambda k: -k.ns)[:TOP_KERNELS]
        for kernel in longest:
            bound = "compute" if kernel.compute_ns >= kernel.memory_ns else "memory"
            share = kernel.ns / max(chosen.estimate.run_ns, 1e-9)
            made_of = ", ".join(list(dict.fromkeys(kernel.sources))[:2])
            lines.append(f"  {_time(kernel.ns):>9}  {share:4.0%}  {bound:7}  {kernel.name}  {made_of}")
        age = chosen.age_s / 3600
        lines += ["", f"Calibrated {age:.1f} hours ago; the choice took {decision.took_ms:.1f} ms."]
    return "\n".join(lines)


def _counts(ops: Mapping[str, int]) -> str:
    return ", ".join(f"{count} nodes {fate}" for fate, count in sorted(ops.items())) or "no nodes"


def _time(ns: float) -> str:
    """A duration for people."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"
