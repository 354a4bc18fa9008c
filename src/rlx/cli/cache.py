"""`rlx cache`: shows where compiled programs are kept and how much space they take, and clears them."""

from __future__ import annotations

from typing import Any

from rlx import disk, flags
from rlx.cli.console import emit_json, human_bytes, out, table


def contents() -> dict[str, Any]:
    """Where the cache lies, and what is in it."""
    entries = disk.entries()
    kernels = [size for path, size in entries if path.name.startswith(disk.KERNELS)]
    try:
        folder = str(disk.folder())
    except disk.NoFolder as error:
        folder = f"none: {error}"
    return {
        "folder": folder,
        "entries": len(entries),
        "bytes": sum(size for _, size in entries),
        "kernels": len(kernels),
        "kernel_bytes": sum(kernels),
        "limit_bytes": flags.cache_bytes(),
        "enabled": flags.cache(),
    }


def show_cache(clear: bool, as_json: bool) -> None:
    """Prints what is in the cache, or what was, after deleting it."""
    report = contents() | {"cleared": disk.trim(0) if clear else 0}
    if as_json:
        emit_json(report)
        return
    size = f"{human_bytes(report['bytes'])} in {report['entries']} files"
    rows = [
        ("folder", report["folder"]),
        ("removed" if clear else "holds", size),
        ("of these", f"{human_bytes(report['kernel_bytes'])} in {report['kernels']} functions that programs share"),
        ("limit", human_bytes(report["limit_bytes"])),
        ("in use", "yes" if report["enabled"] else "no (RLX_CACHE=0)"),
    ]
    out().print(table("compile cache", ("", ""), rows))
