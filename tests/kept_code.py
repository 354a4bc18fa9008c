"""Machine code of texts that LLVM has had before in this process: many tests compile one text again, for other sizes
or as a part of other programs."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

from rlx.codegen.simd.isa import Isa

MOST_BYTES = 128 << 20


class KeptCode:
    """Takes the place of `jit._emit_object`; while `active` is False it keeps nothing and gives nothing."""

    def __init__(self, emit: Callable[[str, Isa, int], bytes]) -> None:
        self._emit = emit
        self._code: dict[bytes, bytes] = {}
        self._held = 0
        self._lock = threading.Lock()
        self.active = False

    def __call__(self, text: str, isa: Isa, level: int) -> bytes:
        if not self.active:
            return self._emit(text, isa, level)
        key = hashlib.blake2b(f"{isa}\0{level}\0{text}".encode(), digest_size=20).digest()
        code = self._code.get(key)
        return code if code is not None else self._keep(key, self._emit(text, isa, level))

    def _keep(self, key: bytes, code: bytes) -> bytes:
        """Without the oldest where there is too much."""
        with self._lock:
            self._held += len(code) if key not in self._code else 0
            self._code[key] = code
            while self._held > MOST_BYTES:
                self._held -= len(self._code.pop(next(iter(self._code))))
        return code
