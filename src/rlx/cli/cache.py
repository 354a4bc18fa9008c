"""`rlx cache`: where compiled programs are kept, how much there is, and how to be rid of it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import platformdirs

from rlx import flags
from rlx.cli.console import emit_json, human_bytes, out, table


def folder() -> Path:
    """The folder of the compile cache."""
    return Path(flags.cache_dir() or platformdirs.user_cache_dir("rlx")) / "compiled"


def show_cache(clear: bool, as_json: bool) -> None:
    """Prints what is in the cache, after deleting it if asked."""
    place = folder()
    entries = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    told: dict[str, Any] = {
        "folder": str(place),
        "entries": len(entries),
        "bytes": sum(path.stat().st_size for path in entries),
        "limit_bytes": flags.cache_bytes(),
        "enabled": flags.cache(),
        "cleared": clear,
    }
    if clear:
        for path in entries:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
    if as_json:
        emit_json(told)
        return
    size = f"{human_bytes(told['bytes'])} in {told['entries']} files"
    rows = [
        ("folder", told["folder"]),
        ("cleared" if clear else "holds", size),
        ("limit", human_bytes(told["limit_bytes"])),
        ("in use", "yes" if told["enabled"] else "no (RLX_CACHE=0)"),
    ]
    out().print(table("compile cache", ("", ""), rows))
