"""Times of XLA's kernels, as jax's profiler records them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from rlx import locks
from rlx.backends.executable import KernelTime
from rlx.backends.xla.named_scopes import Instructions
from rlx.errors import ProfileError
from rlx.ir.graph import Graph
from rlx.records import dataclass

MARK = "rlx.run"
"""The annotation that a run stands in."""
_recording = locks.lock()
Span = tuple[float, float]


@dataclass
class _Calls:
    """The calls of an instruction: when each ran, and how many there were."""

    spans: list[Span] = field(default_factory=list)
    starts: int = 0
    ends: int = 0


@dataclass(frozen=True)
class Recording:
    """A run as the profiler saw it: its start, and the calls of XLA's instructions by their names."""

    start_ns: float
    calls: dict[str, _Calls]


def record(run: Callable[[], object]) -> Recording:
    """Runs under jax's profiler, of which a process has one. Raises ProfileError where it is taken or tells nothing."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with _recording, tempfile.TemporaryDirectory() as folder:
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except RuntimeError as error:
            raise ProfileError(f"[profile] expected jax's profiler to be free, got: {error}") from error
        try:
            with jax.profiler.TraceAnnotation(MARK):
                run()
        finally:
            _stop()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            raise ProfileError("[profile] expected a recording of jax's profiler, got no file")
        return _read(jax.profiler.ProfileData.from_file(str(files[0])))


def _stop() -> None:
    import jax

    try:
        jax.profiler.stop_trace()
    except (RuntimeError, OSError) as error:
        raise ProfileError(f"[profile] expected a recording of jax's profiler, got: {error}") from error


def _read(data: Any) -> Recording:
    """The calls within the annotation. A kernel that goes on in other threads has an event for its end, which says of
    which start it is; programs that other threads run meanwhile have another number."""
    lines = [[(e, dict(e.stats)) for e in line.events] for plane in data.planes for line in plane.lines]
    own = next((line for line in lines if any(e.name == MARK for e, _ in line)), [])
    marks = [e for e, _ in own if e.name == MARK]
    if not marks:
        raise ProfileError(f"[profile] expected a recording with the annotation {MARK}, got one without")
    start, end = marks[0].start_ns, marks[0].start_ns + marks[0].duration_ns
    runs = {stats["run_id"] for e, stats in own if "run_id" in stats and start <= e.start_ns <= end}
    ends = {stats["_c"]: e for line in lines for e, stats in line if e.name.startswith("end: ") and "_c" in stats}
    calls: dict[str, _Calls] = {}
    for event, stats in (pair for line in lines for pair in line):
        if "hlo_op" not in stats or not start <= event.start_ns <= end or (runs and stats.get("run_id") not in runs):
            continue
        found = calls.setdefault(str(stats["hlo_op"]), _Calls())
        last, found.starts = event.start_ns + event.duration_ns, found.starts + 1
        if stats.get("_p") in ends:
            last, found.ends = max(last, ends[stats["_p"]].start_ns), found.ends + 1
        found.spans.append((event.start_ns, last))
    return Recording(start, calls)


def times(graph: Graph, text: str, recording: Recording) -> list[KernelTime]:
    """A kernel is an instruction that XLA runs, in the order in which they began. What runs within a loop or
    conditional is in the time of its own instructions. Raises ProfileError if the profiler saw none of them.

    graph, text   what was compiled, and the text of the compiled program
    """
    instructions = Instructions(text)
    calls = recording.calls
    if instructions.working and not calls:
        raise ProfileError("[profile] expected times of XLA's instructions from jax's profiler, got none")
    made = []
    for name, found in calls.items():
        parts = list(instructions.within(name))
        timed = [part for part in parts if part in calls]
        spans = joined(found.spans)
        inner = joined(span for part in timed for span in calls[part].spans)
        first = spans[0][0] - recording.start_ns
        sources = instructions.sources(graph, [name] if timed else [name, *parts])
        made.append(KernelTime(name, sources, found.ends or found.starts, length(without(spans, inner)), first))
    return sorted(made, key=lambda kernel: kernel.first_ns)


def joined(spans: Iterable[Span]) -> list[Span]:
    """The spans in their order, those that overlap as one."""
    made: list[Span] = []
    for start, end in sorted(spans):
        if made and start <= made[-1][1]:
            made[-1] = made[-1][0], max(end, made[-1][1])
        else:
            made.append((start, end))
    return made


def without(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """What is left of spans outside of others; both joined."""
    made: list[Span] = []
    at = 0
    for start, end in spans:
        while at < len(taken) and taken[at][1] <= start:
            at += 1
        for first, last in taken[at:]:
            if first >= end:
                break
            if first > start:
                made.append((start, first))
            start = max(start, last)
        if start < end:
            made.append((start, end))
    return made


def length(spans: Iterable[Span]) -> float:
    """How long they are together."""
    return sum(end - start for start, end in spans)
