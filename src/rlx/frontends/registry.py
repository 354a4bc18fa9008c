"""The interface of a reader of a format, and the choice of the reader for a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from rlx import mapped
from rlx.errors import ModelError, OptionError, did_you_mean
from rlx.frontends import foreign
from rlx.ir.literal import Array
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.ir.graph import Graph


class SupportsSerialize(Protocol):
    """A message of protobuf, such as an onnx.ModelProto."""

    def SerializeToString(self) -> bytes:
        """Its bytes."""


Source = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | SupportsSerialize


@dataclass(frozen=True)
class Imported:
    """A program with its weights (in `graph.data`), and what the file tells beside it.

    sequences   inputs and outputs that are lists of arrays, with the names that their elements have in the graph
    outputs     names of the outputs in order, where some of them are sequences
    files       all files that the program was made of, mapped; none where that is not told
    generator   of models that generate text: makes what does of a session and weights (`models.generation.Source`)
    """

    graph: Graph
    format: str
    notes: dict[str, str] = field(default_factory=dict)
    sequences: dict[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    files: tuple[Array, ...] = ()
    generator: Any = None


LOADING = (
    "device",
    "disable",
    "threads",
    "isa",
    "cache",
    "check_indices",
    "compile",
    "expert_budget",
    "precision",
    "mmap",
)
"""Options of loading, whatever the format: what a wrong name may have meant."""


OF_OTHERS = {
    "providers": "device= names the device",
    "provider": "device= names the device",
    "sess_options": "threads=, disable= and the other options of rlx.Session come as they are",
    "backend": "device= names the device",
    "num_threads": "threads= is their number",
    "intra_op_num_threads": "threads= is their number",
}
"""What options of other runtimes are called here."""


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
    place = placed(source)
    if isinstance(place, Path) and not place.exists():
        where = str(source)
        fetch = "; rlx downloads nothing: fetch it, and load the file or folder" if _is_remote(where) else ""
        raise ModelError(f"[load] expected a model file or folder, got {where!r}, which does not exist{fetch}")
    other = foreign.recognised(place)
    if other is not None:
        raise foreign.refuse(other, place)
    for each in formats:
        if each.recognises(place):
            unknown = [name for name in options if name not in each.options]
            if unknown:
                known = (*each.options, *LOADING)
                meant = OF_OTHERS.get(unknown[0])
                if meant is not None:
                    raise OptionError(f"[load] expected options of rlx.load, got {unknown[0]!r}; {meant}")
                expected = f"options of {each.takes}: {', '.join(each.options) or 'there are none'}"
                raise OptionError(f"[load] expected {expected}, got {unknown[0]!r}{did_you_mean(unknown[0], known)}")
            with mapped.trusting(mmap):
                return each.read(place, **options)
    actual = repr(str(place)) if isinstance(place, Path) else f"{len(place)} bytes"
    raise ModelError(f"[load] expected {' or '.join(each.takes for each in formats)}, got {actual}")


def _is_remote(where: str) -> bool:
    """Whether it looks like an address, or the name of a model on a hub."""
    owner, _, name = where.partition("/")
    is_file = Path(where).suffix in (".onnx", ".rlx") or Path(owner).exists()
    return "://" in where or bool(owner and name and "/" not in name and not is_file)


def placed(source: Any) -> Path | bytes:
    """A path, or bytes: those of an open file or of a message too. Raises ModelError for other objects."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, (str, os.PathLike)):
        return Path(source)
    if callable(getattr(source, "read", None)):
        content = source.read()
        if not isinstance(content, bytes):
            raise ModelError(f"[load] expected a file in binary mode, open(path, 'rb'), got {type(content).__name__}")
        return content
    if type(source).__name__ == "ModelProto" and hasattr(source, "SerializeToString"):
        return _serialised(source)
    raise foreign.refuse_object(source)


def _serialised(proto: SupportsSerialize) -> bytes:
    try:
        return proto.SerializeToString()
    except Exception as error:  # protobuf has no class for it, above 2 GB
        raise ModelError(
            f"[load] expected a ModelProto that protobuf can write, got {error}: "
            f"onnx.save(proto, path, save_as_external_data=True), then rlx.load(path)"
        ) from None
