"""The cache on disk: entries by key in one folder, written whole or not at all, checked when read, bounded in bytes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

from rlx import flags

MAGIC = b"rlx-cache-1\n"
SUFFIX = ".rlxc"
DIGEST_BYTES = 32


def folder() -> Path:
    """Where entries lie: RLX_CACHE_DIR, or the user's cache folder."""
    if flags.cache_dir():
        return Path(flags.cache_dir())
    import platformdirs

    return Path(platformdirs.user_cache_dir("rlx"))


def read(key: str) -> bytes | None:
    """The entry, or None if there is none or it is damaged (it is then removed)."""
    if not flags.cache():
        return None
    path = folder() / f"{key}{SUFFIX}"
    try:
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


def write(key: str, body: bytes) -> None:
    """Keeps an entry. A folder that cannot be written to only means that nothing is kept."""
    if not flags.cache():
        return
    place = folder()
    try:
        place.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=place, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(MAGIC + _digest(body) + body)
        os.replace(unfinished, place / f"{key}{SUFFIX}")
        # not at every small entry: it lists the folder
        if len(body) > flags.cache_bytes() // 64 or _digest(body)[0] % 16 == 0:
            trim(flags.cache_bytes())
    except OSError:
        return


@cache
def source_digest() -> str:
    """Changes with every edit of the package, so that a developer never runs old code: sizes and times of its files."""
    root = Path(__file__).parent
    hasher = hashlib.blake2b(digest_size=8)
    for path in sorted(root.rglob("*.py")):
        stat = path.stat()
        hasher.update(f"{path.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}".encode())
    return hasher.hexdigest()


def entries() -> list[tuple[Path, int]]:
    """Files of the cache with their bytes, the one that was used last at the end."""
    try:
        found = [(path, path.stat()) for path in folder().glob(f"*{SUFFIX}")]
    except OSError:
        return []
    return [(path, stat.st_size) for path, stat in sorted(found, key=lambda item: item[1].st_mtime)]


def trim(most_bytes: int) -> int:
    """Removes entries, those unused for longest first, until the rest fits; gives how many."""
    found = entries()
    total = sum(size for _, size in found)
    removed = 0
    for path, size in found:
        if total <= most_bytes:
            break
        _remove(path)
        total -= size
        removed += 1
    return removed


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        return
