"""Machine code of kernels, kept on disk by its text, the architecture and the compiler."""

from __future__ import annotations

import hashlib

from rlx import disk
from rlx.backends.cuda.driver import Driver


def key_of(driver: Driver, architecture: str, source: str) -> str:
    hasher = hashlib.blake2b(digest_size=20)
    for part in (driver.compiler, architecture, source):
        hasher.update(len(part).to_bytes(8, "little") + part.encode())
    return f"{driver.api.device}-{hasher.hexdigest()}"


def code_of(driver: Driver, architecture: str, name: str, source: str, cache: bool) -> bytes:
    """The code of a kernel, which is compiled if it is not on disk. Raises CompileError."""
    key = key_of(driver, architecture, source)
    code = disk.read(key) if cache else None
    if code is None:
        code = driver.compile(source, architecture, name)
        if cache:
            disk.write(key, code)
    return code
