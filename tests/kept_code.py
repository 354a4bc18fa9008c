"""Machine code of texts that LLVM has had before in this process: many tests compile one text again, for other sizes
or as a part of other programs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from rlx.codegen.simd.isa import Isa

MOST_BYTES = 128 << 20


class KeptCode:
    """Takes the place of `jit._emit_object`; while `active` is False it keeps nothing and gives nothing.

    It has no lock, which a child of a fork might find held: two threads may both have LLVM write what neither found.
    """

    def __init__(self, emit: Callable[[str, Isa, int], bytes]) -> None:
        self._emit = emit
        self._code: dict[bytes, bytes] = {}
        self._held = 0
        self.active = False

    def __call__(self, text: str, isa: Isa, level: int) -> bytes:
        if not self.active:
            return self._emit(text, isa, level)
        key = hashlib.blake2b(f"{isa}\0{level}\0{text}".encode(), digest_size=20).digest()
        code = self._code.get(key)
        return code if code is not None else self._keep(key, self._emit(text, isa, level))

    def _keep(self, key: bytes, code: bytes) -> bytes:
        """Without everything else where there is too much."""
        if self._held > MOST_BYTES:
            self._code, self._held = {}, 0
        self._code[key] = code
        self._held += len(code)
        return code
