"""Files that rlx itself saved: a graph with its weights (`rlx.ir.serial`)."""

from __future__ import annotations

from pathlib import Path

from rlx.frontends.registry import Format, Imported

_START = b'{"format":"rlx"'


def recognises(source: Path | bytes) -> bool:
    """Files whose header begins as ours does. They are mapped, so bytes are none."""
    if isinstance(source, bytes) or not source.is_file():
        return False
    with open(source, "rb") as file:
        return file.read(8 + len(_START))[8:] == _START


def read(source: Path | bytes) -> Imported:
    """The graph in the file, its weights mapped. Raises ModelError."""
    from rlx.ir.serial import load_graph

    assert isinstance(source, Path)
    return Imported(load_graph(source), "rlx", {"file": source.name})


FORMAT = Format("a file that rlx saved", recognises, read)
