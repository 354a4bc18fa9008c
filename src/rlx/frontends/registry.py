"""The interface of a reader of a format, and the choice of the reader for a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx import mapped
from rlx.errors import ModelError, OptionError, did_you_mean
from rlx.ir.literal import Array

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

Source = str | os.PathLike[str] | bytes


@dataclass(frozen=True)
class Imported:
    """A program with its weights (in `graph.data`), and what the file tells beside it.

    sequences   inputs and outputs that are lists of arrays, with the names that their elements have in the graph
    outputs     names of the outputs in order, where some of them are sequences
    files       all files that the program was made of, mapped; none where that is not told
    """

    graph: Graph
    format: str
    notes: dict[str, str] = field(default_factory=dict)
    sequences: dict[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    files: tuple[Array, ...] = ()


LOADING = ("device", "disable", "threads", "isa", "cache", "check_indices", "mmap")
"""Options of loading, whatever the format: what a wrong name may have meant."""


@dataclass(frozen=True)
class Format:
    """A reader of a format. Its module is cheap to import, and imports what is heavy when it reads.

    takes       what it opens, for messages
    recognises  whether this is the reader for it, by a look at the first bytes or the names of files
    read        the program in it, under options of its own; raises ModelError, UnsupportedOp
    options     names of these
    """

    takes: str
    recognises: Callable[[Path | bytes], bool]
    read: Callable[..., Imported]
    options: tuple[str, ...] = ()


def read(source: Source, formats: Sequence[Format], mmap: bool = False, **options: Any) -> Imported:
    """The program in a file, in bytes, or in a folder, by the first of the formats that recognises it.

    With `mmap` weights are read where they lie in the file, which nobody may write to while the model lives. Options
    are those of the format's reader.

    Raises ModelError for what cannot be read, UnsupportedOp for nodes that rlx has no op for, OptionError.
    """
    place: Path | bytes = bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else Path(source)
    if isinstance(place, Path) and not place.exists():
        raise ModelError(f"[load] expected a model file or folder, got {str(place)!r}, which does not exist")
    for each in formats:
        if each.recognises(place):
            unknown = [name for name in options if name not in each.options]
            if unknown:
                known = (*each.options, *LOADING)
                expected = f"options of {each.takes}: {', '.join(each.options) or 'there are none'}"
                raise OptionError(f"[load] expected {expected}, got {unknown[0]!r}{did_you_mean(unknown[0], known)}")
            with mapped.trusting(mmap):
                return each.read(place, **options)
    actual = repr(str(place)) if isinstance(place, Path) else f"{len(place)} bytes"
    raise ModelError(f"[load] expected {' or '.join(each.takes for each in formats)}, got {actual}")
