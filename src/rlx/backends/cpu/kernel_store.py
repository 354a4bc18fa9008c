"""A store of kernels: machine code of functions in the cache on disk, by what LLVM is given. All programs and processes
share it, so a program compiles only what no other has.

An entry is a `Unit`, under a digest of the function's text without its name, and of all else that decides its code.
What is a program's own (`rlx_main` and the like) is compiled anew. Only code of the usual level is kept.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlx import disk, flags, logs
from rlx.backends.cpu import units
from rlx.backends.cpu.elf import Unloadable
from rlx.backends.cpu.isa import host_arch
from rlx.codegen.simd.isa import Isa
from rlx.errors import ModelError
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.codegen.simd.function import Module

FORMAT = 1
"""Of entries, and of how LLVM is called: with another number none of the old ones is found."""


@dataclass(frozen=True)
class Pieces:
    """What a program's code is made of.

    texts   for LLVM, in parts
    ready   units that were in the store, by function
    keys    of units to be kept in the store once they are compiled, by function; None where code is not taken apart
    """

    texts: tuple[str, ...]
    ready: Mapping[str, bytes]
    keys: Mapping[str, str] | None = None


def can_store(isa: Isa) -> bool:
    """Whether code for an instruction set can be taken apart and put together here."""
    return sys.platform == "linux" and host_arch() == isa.triple_arch == "x86_64" and sys.maxsize > 1 << 32


def whole(module: Module, threads: int) -> Pieces:
    """A program that is compiled as it is, whatever the store has."""
    return Pieces(tuple(module.texts(threads)), {})


def look_up(module: Module, isa: Isa, threads: int, place: Path | None = None) -> Pieces:
    """A program's text without what the store has; `threads` of the compiler share it.

    place   the cache's folder, if it is not the usual one
    """
    where = _folder(place)
    if where is None or not can_store(isa):
        return whole(module, threads)
    facts = _facts(module.head, isa)
    keys = {name: _key(facts, text) for name, text in module.kernels().items()}
    ready = {}
    for name, key in keys.items():
        data = disk.read(key, where)
        if data is not None and _is_unit(data):
            ready[name] = data
    logs.tell(logs.COMPILES, "compile", f"{len(ready)} of {len(keys)} functions are in the store")
    missing = {name: key for name, key in keys.items() if name not in ready}
    return Pieces(tuple(module.texts(threads, ready)), ready, missing)


def quick(pieces: Pieces, code: Sequence[bytes]) -> list[bytes]:
    """Object files of a program whose texts have become `code` of any level."""
    if not pieces.ready:
        return list(code)
    return [units.linked({name: units.from_bytes(data) for name, data in pieces.ready.items()}, pieces.ready), *code]


def complete(pieces: Pieces, code: Sequence[bytes], place: Path | None = None) -> list[bytes]:
    """Object files of a program whose texts have become `code` of the usual level; its functions are kept in the store.

    place   the cache's folder, if it is not the usual one
    """
    if pieces.keys is None:
        return list(code)
    try:
        made = {name: unit for part in code for name, unit in units.split(part).items()}
    except Unloadable as why:
        logs.tell(logs.COMPILES, "compile", f"no function is kept in the store, as the code has {why}")
        return quick(pieces, code)
    disk.write_all({key: units.to_bytes(made[name]) for name, key in pieces.keys.items()}, place)
    own = made.keys() - pieces.keys.keys()
    ready = {name: units.from_bytes(data) for name, data in pieces.ready.items()}
    return [units.linked({**made, **ready}, own)]


def pack(pieces: Pieces) -> bytes:
    """The pieces as one string of bytes."""
    keys = None if pieces.keys is None else dict(pieces.keys)
    header = [[len(t) for t in pieces.texts], {name: len(data) for name, data in pieces.ready.items()}, keys]
    text = zlib.compress("".join(pieces.texts).encode(), 1)
    start = json.dumps([*header, len(text)]).encode()
    return b"".join([len(start).to_bytes(8, "little"), start, text, *pieces.ready.values()])


def unpack(data: bytes) -> Pieces:
    """What `pack` was given. Raises ModelError for other bytes."""
    try:
        at = 8 + int.from_bytes(data[:8], "little")
        lengths, sizes, keys, size = json.loads(data[8:at])
        text, texts, begin = zlib.decompress(data[at : at + size]).decode(), [], 0
        for length in lengths:
            texts.append(text[begin : begin + length])
            begin += length
        at += size
        ready = {}
        for name, length in sizes.items():
            ready[name] = data[at : at + length]
            at += length
        return Pieces(tuple(texts), ready, keys)
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise ModelError(f"[cache] expected a program of the first tier, got {error}") from None


def _folder(place: Path | None) -> Path | None:
    """The cache's folder; None where nothing is kept."""
    try:
        return place or disk.folder() if flags.cache() else None
    except disk.NoFolder:
        return None


def _facts(head: str, isa: Isa) -> bytes:
    """What decides the code of a function beside its text."""
    import llvmlite

    from rlx.backends.cpu import jit

    parts = (str(FORMAT), llvmlite.__version__, str(jit.OPTIMISATION_LEVEL), isa.cpu, isa.features, head)
    return "\0".join(parts).encode()


def _key(facts: bytes, text: str) -> str:
    hasher = hashlib.blake2b(facts, digest_size=20)
    hasher.update(text.encode())
    return disk.KERNELS + hasher.hexdigest()


def _is_unit(data: bytes) -> bool:
    try:
        units.from_bytes(data)
        return True
    except (ValueError, TypeError):  # of another version of rlx
        return False
