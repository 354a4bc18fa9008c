"""The cache on disk: entries by key in one folder, written whole or not at all, checked when read, bounded in bytes.

Any failure (no folder, no permission to write, no space) only means that nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from rlx import flags, logs

MAGIC = b"rlx-cache-1\n"
SUFFIX = ".rlxc"
DIGEST_BYTES = 32
KERNELS = "kernel-"
"""What keys of functions begin with that all programs share."""
TUNED = "tuned"
"""The key of schedules that a search has found."""
UNFINISHED = ".tmp"
HELD_S = 10
STALE_S = 3600
"""No write takes longer: an unfinished file that is older was left by a process that was ended."""


class NoFolder(OSError):
    """There is no place for the cache."""


def folder() -> Path:
    """Where entries lie: RLX_CACHE_DIR, or the user's cache folder. Raises NoFolder for a user without a home."""
    if flags.cache_dir():
        return Path(flags.cache_dir())
    import platformdirs

    try:
        path = Path(platformdirs.user_cache_dir("rlx"))
    except RuntimeError as error:
        raise NoFolder(str(error)) from error
    if not path.is_absolute():  # "~" stands where no home is known
        raise NoFolder(f"no home folder is known, got {str(path)!r}")
    return path


def read(key: str, place: Path | None = None) -> bytes | None:
    """The entry, or None if there is none or it is damaged (it is then removed).

    place   another folder than the cache's, which is there whatever RLX_CACHE says
    """
    if place is None and not flags.cache():
        return None
    try:
        path = (place or folder()) / f"{key}{SUFFIX}"
        data = path.read_bytes()
    except OSError:
        return None
    body = data[len(MAGIC) + DIGEST_BYTES :]
    if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : len(MAGIC) + DIGEST_BYTES] != _digest(body):
        _remove(path)
        return None
    try:
        os.utime(path)  # entries that are used last longest
    except OSError:
        return body
    return body


def digest_of(key: str) -> str:
    """Of an entry's content; empty if there is none."""
    data = read(key)
    return "" if data is None else _digest(data).hex()


def write(key: str, body: bytes, place: Path | None = None) -> None:
    """Keeps an entry, if it can; `place` as in `read`."""
    if place is None and not flags.cache():
        return
    try:
        replace((place or folder()) / f"{key}{SUFFIX}", MAGIC + _digest(body) + body)
        # not for every small entry, because it lists the folder
        if len(body) > flags.cache_bytes() // 64 or _digest(body)[0] % 16 == 0:
            trim(flags.cache_bytes())
    except OSError as error:
        tell_unwritable(str(error))


def write_all(bodies: Mapping[str, bytes], place: Path | None = None) -> None:
    """Keeps several entries by key, if it can; `place` as in `read`. The cache is brought within its bounds once."""
    if not bodies or (place is None and not flags.cache()):
        return
    try:
        for key, body in bodies.items():
            replace((place or folder()) / f"{key}{SUFFIX}", MAGIC + _digest(body) + body)
        trim(flags.cache_bytes())
    except OSError as error:
        tell_unwritable(str(error))


@cache
def tell_unwritable(why: str) -> None:
    """Once for each reason: without its cache every process compiles anew, which nobody would know of."""
    logs.warn("cache", f"what was compiled cannot be kept: {why}; RLX_CACHE_DIR names another folder")


@contextmanager
def alone(key: str) -> Iterator[None]:
    """No other thread or process is in such a block for this key, as long as none takes longer than `HELD_S`: for
    entries that are read, changed and written. Raises OSError where nothing can be written."""
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{key}{UNFINISHED}"
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            try:
                if time.time() - path.stat().st_mtime > HELD_S:
                    _remove(path)  # its process was ended
            except OSError:
                continue  # it is free
            time.sleep(0.005)
    try:
        yield
    finally:
        _remove(path)


MAPPED = b"rlx-mapped1\n"
_ALIGNED = 64
"""Bytes of a line of the processor's cache: where arrays of mapped entries begin."""


class MappedEntry:
    """An entry of arrays that are read where they lie in its file.

    arrays   u8 by name, in memory that is mapped for reading
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError, ValueError for anything but such an entry."""
        import mmap

        import numpy as np

        self._path = path
        with open(path, "rb", buffering=0) as file:
            self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        begin = len(MAPPED)
        end = begin + 8 + int.from_bytes(self._mapping[begin : begin + 4], "little")
        if self._mapping[:begin] != MAPPED or end > len(self._mapping):
            raise ValueError("no entry to be mapped")
        memory = np.frombuffer(self._mapping, np.uint8)
        header = json.loads(self._mapping[begin + 8 : end])
        self.arrays = {name: memory[at : at + size] for name, (at, size) in header.items()}
        if any(array.size < size for array, (_, size) in zip(self.arrays.values(), header.values())):
            raise ValueError("a part of an entry")

    def is_whole(self) -> bool:
        """Whether the content is what was written. It reads all of it, and lets other threads run meanwhile."""
        begin = len(MAPPED) + 4
        with memoryview(self._mapping) as data:
            return zlib.crc32(data[begin + 4 :]) == int.from_bytes(self._mapping[begin : begin + 4], "little")

    def remove(self) -> None:
        """Drops the entry; its memory stays as it is."""
        _remove(self._path)


def map_entry(key: str) -> MappedEntry | None:
    """An entry of `write_mapped`; None if there is none. Whether it `is_whole` is for the caller to ask."""
    if not flags.cache():
        return None
    try:
        path = folder() / f"{key}{SUFFIX}"
        entry = MappedEntry(path)
        os.utime(path)
        return entry
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write_mapped(key: str, arrays: Mapping[str, Any], place: Path | None = None) -> None:
    """Keeps arrays as an entry that is mapped, if it can and they take at most a fourth of the cache; `place` as in
    `read`."""
    most = flags.cache_bytes() // 4
    if (place is None and not flags.cache()) or sum(array.nbytes for array in arrays.values()) > most:
        return
    offsets, header = _laid_out({name: array.nbytes for name, array in arrays.items()})
    parts, at = [header], len(MAPPED) + 8 + len(header)
    for array, offset in zip(arrays.values(), offsets):
        parts += [bytes(offset - at), array.reshape(-1).view("u1").data]
        at = offset + array.nbytes
    check = 0
    for part in parts:
        check = zlib.crc32(part, check)
    start = MAPPED + len(header).to_bytes(4, "little") + check.to_bytes(4, "little")
    try:
        replace((place or folder()) / f"{key}{SUFFIX}", start, *parts, lasting=True)
        trim(flags.cache_bytes())
    except OSError as error:
        tell_unwritable(str(error))


def _laid_out(sizes: Mapping[str, int]) -> tuple[list[int], bytes]:
    """Where each array begins in the file, and the header that says it."""
    room = 64 * (len(sizes) + 1) + sum(map(len, sizes))  # more than any header of so many takes
    at, offsets = -(-(len(MAPPED) + 8 + room) // _ALIGNED) * _ALIGNED, []
    for size in sizes.values():
        offsets.append(at)
        at += -(-size // _ALIGNED) * _ALIGNED
    return offsets, json.dumps(dict(zip(sizes, zip(offsets, sizes.values())))).encode()


def remove(key: str, place: Path | None = None) -> None:
    """Drops an entry, if it is there; `place` as in `read`."""
    try:
        _remove((place or folder()) / f"{key}{SUFFIX}")
    except NoFolder:
        return


def replace(path: Path, *parts: bytes | memoryview, lasting: bool = False) -> None:
    """Writes a file whole or not at all, in a folder that is made if it is not there. Raises OSError.

    parts     of the content, in order
    lasting   waits until the content is on the disk, before the file has its name
    """
    import tempfile  # late: what only reads does without

    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, suffix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        _remove(Path(unfinished))
        raise


@cache
def _sweep(place: Path) -> None:
    """Removes what writers left that were ended, once in a process."""
    for path in place.glob(f"*{UNFINISHED}"):
        try:
            if time.time() - path.stat().st_mtime > STALE_S:
                path.unlink()
        except OSError:
            continue  # another process was quicker


SOURCES = (".py", ".ll")
"""Files that decide what code is made."""


@cache
def source_digest() -> str:
    """Changes with every edit of the package, so that a developer never runs old code: sizes and times of its files."""
    root = Path(__file__).parent
    hasher = hashlib.blake2b(digest_size=8)
    for path, stat in sorted(_sources(str(root))):
        hasher.update(f"{path[len(str(root)) :]} {stat.st_size} {stat.st_mtime_ns}".encode())
    return hasher.hexdigest()


def _sources(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    for entry in os.scandir(folder):
        if entry.name.endswith(SOURCES):
            yield entry.path, entry.stat()
        elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
            yield from _sources(entry.path)


def entries() -> list[tuple[Path, int]]:
    """Files of the cache with their bytes, the one that was used last at the end."""
    try:
        files = [(path, path.stat()) for path in folder().glob(f"*{SUFFIX}")]
    except OSError:
        return []
    return [(path, stat.st_size) for path, stat in sorted(files, key=lambda item: item[1].st_mtime)]


def trim(most_bytes: int) -> int:
    """Removes entries, those unused for longest first, until the rest fits; gives how many."""
    files = entries()
    total = sum(size for _, size in files)
    removed = 0
    for path, size in files:
        if total <= most_bytes:
            break
        _remove(path)
        total -= size
        removed += 1
    return removed


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of `path` when the block ends, and goes if it fails. Raises OSError,
    which names `path`."""
    import tempfile

    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        return
