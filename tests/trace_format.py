"""Checks documents against Chrome's trace event format, as its viewer and Perfetto read it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

PHASES = {"X": ("ts", "dur"), "M": (), "B": ("ts",), "E": ("ts",), "C": ("ts",), "i": ("ts",)}
"""Kinds of events, with the times that they need."""
METADATA = {
    "process_name": str, "process_labels": str, "process_sort_index": int, "thread_name": str, "thread_sort_index": int,
}  # fmt: skip
ARGUMENT = {"process_labels": "labels", "process_sort_index": "sort_index", "thread_sort_index": "sort_index"}


def check_trace(text: str) -> list[dict[str, Any]]:
    """The events of a document, which is valid. Raises AssertionError that names what is not."""
    document = json.loads(text, parse_constant=lambda name: fail(f"{name} is no JSON"))
    assert isinstance(document, dict) and isinstance(document.get("traceEvents"), list), "expected traceEvents"
    assert document.get("displayTimeUnit", "ms") in ("ms", "ns")
    events: list[dict[str, Any]] = document["traceEvents"]
    for event in events:
        check_event(event)
    lines: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lines[event["pid"], event["tid"]].append(event)
    for line in lines.values():
        check_nesting(line)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert lines.keys() <= named, f"lines without a name: {lines.keys() - named}"
    return events


def fail(why: str) -> Any:
    raise AssertionError(why)


def check_event(event: Mapping[str, Any]) -> None:
    assert isinstance(event.get("name"), str) and event["name"], event
    assert event.get("ph") in PHASES, event
    assert all(type(event.get(key)) is int and event[key] >= 0 for key in ("pid", "tid")), event
    for key in PHASES[event["ph"]]:
        number = event.get(key)
        assert isinstance(number, (int, float)) and math.isfinite(number) and number >= 0, event
    assert isinstance(event.get("args", {}), dict), event
    if event["ph"] == "M":
        kind = METADATA[event["name"]]
        assert isinstance(event["args"][ARGUMENT.get(event["name"], "name")], kind), event
    else:
        assert isinstance(event.get("cat"), str) and event["cat"], event


def check_nesting(line: list[dict[str, Any]]) -> None:
    """Events of one line lie in one another or beside one another; viewers draw others wrongly."""
    open_until: list[float] = []
    for event in sorted(line, key=lambda e: (e["ts"], -e["dur"])):
        while open_until and open_until[-1] <= event["ts"] + 1e-6:
            open_until.pop()
        end = event["ts"] + event["dur"]
        assert not open_until or end <= open_until[-1] + 1e-6, f"{event['name']} ends behind what it lies in"
        open_until.append(end)
