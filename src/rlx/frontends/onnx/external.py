"""Weights in files beside the model: only regular files inside the model's own folder, mapped, never copied."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

from rlx.errors import ModelError
from rlx.frontends.files import map_descriptor
from rlx.ir.literal import Array


class Folder:
    """The folder of a model, and its external data files, each mapped once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[str, Array] = {}

    def bytes_at(self, location: str, offset: int, length: int | None) -> Array:
        """`length` bytes at `offset` of the file at `location` (to the end if None). Raises ModelError."""
        if location not in self._files:
            self._files[location] = self._open(location)
        data = self._files[location]
        size = data.size - offset if length is None else length
        if offset < 0 or size < 0 or offset + size > data.size:
            span = f"bytes {offset} to {offset + size} of {data.size}"
            raise ModelError(f"[onnx] expected external data inside of {location!r}, got {span}")
        return data[offset : offset + size]

    @property
    def opened(self) -> list[Array]:
        """The files that were asked for."""
        return list(self._files.values())

    def _open(self, location: str) -> Array:
        refuse = f"[onnx] expected external data inside the model's folder, got {location!r}"
        windows = PureWindowsPath(location)
        parts = PurePosixPath(location).parts
        if not parts or "\0" in location or "\\" in location or windows.drive or windows.is_absolute():
            raise ModelError(refuse)
        if PurePosixPath(location).is_absolute() or ".." in parts:
            raise ModelError(refuse)
        path = self.root.joinpath(*parts).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise ModelError(f"{refuse}, a link that leads out of it")
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            raise ModelError(f"{refuse}: {error.strerror}") from None
        try:
            if os.fstat(descriptor).st_nlink > 1:
                raise ModelError(f"{refuse}, a file with another hard link, which may lie outside of it")
            return map_descriptor(descriptor, path)
        finally:
            os.close(descriptor)
