"""What commands print: tables or JSON on stdout, progress on stderr once something takes longer than a second."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

PATIENCE_S = 1.0


def out() -> Console:
    """The console on stdout."""
    return Console(highlight=False, soft_wrap=True)


def emit_json(document: Any) -> None:
    """One JSON document on stdout; numbers that JSON lacks (NaN, inf) come as strings."""
    print(json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(document: Any) -> Any:
    if isinstance(document, dict):
        return {str(key): _plain(value) for key, value in document.items()}
    if isinstance(document, (list, tuple)):
        return [_plain(value) for value in document]
    if isinstance(document, np.ndarray):
        return _plain(document.tolist())
    if isinstance(document, np.generic):
        return _plain(document.item())
    if isinstance(document, float) and not np.isfinite(document):
        return str(document)
    return document if isinstance(document, (str, int, float, bool, type(None))) else str(document)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[int] = ()) -> Table:
    """A plain table; columns at the positions in `right` are aligned to the right."""
    rich_table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for position, column in enumerate(columns):
        rich_table.add_column(column, justify="right" if position in right else "left", overflow="fold")
    for row in rows:
        rich_table.add_row(*(_escaped(cell) for cell in row))
    return rich_table


def _escaped(cell: Any) -> str:
    return str(cell).replace("[", "\\[")


def human_bytes(count: float) -> str:
    """A size for people."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Shows a bar if the block takes over a second and stderr is a terminal. The block calls what it gets per step."""
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), *([BarColumn()] if total else []), TimeElapsedColumn(),
        console=Console(file=sys.stderr), transient=True,
    )  # fmt: skip
    task = bar.add_task(label, total=total)
    timer = threading.Timer(PATIENCE_S, bar.start)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield lambda: bar.advance(task)
    finally:
        timer.cancel()
        if bar.live.is_started:
            bar.stop()
