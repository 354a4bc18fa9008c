"""What commands print: tables or JSON on stdout, progress on stderr once something takes longer than a second."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

PATIENCE_S = 1.0
ANY_WIDTH = 10_000


_wide = False


def widen(requested: bool) -> None:
    """Lets lines be as long as they are, also in a terminal."""
    global _wide
    _wide = requested


class _Plain(Console):
    """Of files and pipes: lines end where their text does."""

    def print(self, *objects: Any, **options: Any) -> None:
        with self.capture() as printed:
            super().print(*objects, **options)
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))


def out() -> Console:
    """The console on stdout, as wide as the terminal; what goes elsewhere is as wide as it needs."""
    terminal = sys.stdout.isatty()
    kind = Console if terminal else _Plain
    if terminal and not _wide:
        return kind(highlight=False, markup=False)
    return kind(highlight=False, soft_wrap=True, markup=False, width=ANY_WIDTH, height=ANY_WIDTH)


def say(text: str) -> None:
    """A remark on stderr, for people; stdout stays what was asked for. In a terminal lines end at words."""
    if sys.stderr.isatty() and not _wide:
        width = shutil.get_terminal_size().columns
        text = "\n".join(_wrapped(line, width) for line in text.splitlines())
    print(text, file=sys.stderr, flush=True)


def _wrapped(line: str, width: int) -> str:
    """A line, or several, each begun a little to the right of the first."""
    behind = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=behind, break_long_words=False, break_on_hyphens=False)


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


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    right: Sequence[int] = (),
    wrap: Sequence[int] = (),
) -> RenderableType:
    """A plain table. In a terminal that is too narrow, names are cut at their end, numbers (columns in `right`) never,
    and sentences (in `wrap`) go on in the next line."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, (column, *(row[i] for row in cells)))) for i, column in enumerate(columns)]
    most = _fitted(widths, out().width - 2 * len(columns), [i for i in range(len(columns)) if i not in right])
    rich_table = Table(box=None, pad_edge=False, show_header=any(columns))
    for i, (column, width) in enumerate(zip(columns, most)):
        justify: Literal["left", "right"] = "right" if i in right else "left"
        rich_table.add_column(column, justify=justify, overflow="ellipsis", no_wrap=i not in wrap, max_width=width)
    for row in cells:
        rich_table.add_row(*map(Text, row))
    return Group(Text(title, style="bold"), rich_table) if title else rich_table


LEAST_WIDTH = 8


def _fitted(widths: Sequence[int], room: int, shrinking: Sequence[int]) -> list[int]:
    """Widths of columns that fit, the widest of those that may shrink made narrower until they do."""
    fitted = list(widths)
    while sum(fitted) > room:
        widest = max(shrinking, key=lambda i: fitted[i], default=None)
        if widest is None or fitted[widest] <= LEAST_WIDTH:
            break
        fitted[widest] -= 1
    return fitted


def human_bytes(count: float) -> str:
    """A size for people."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Says on stderr what takes more than a second: with a bar in a terminal, else in one line. The block calls what it
    gets per step."""
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), *([BarColumn()] if total else []), TimeElapsedColumn(),
        console=Console(file=sys.stderr), transient=True,
    )  # fmt: skip
    task = bar.add_task(label, total=total)
    timer = threading.Timer(PATIENCE_S, bar.start if sys.stderr.isatty() else lambda: say(f"{label} …"))
    timer.daemon = True
    timer.start()
    try:
        yield lambda: bar.advance(task)
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()
