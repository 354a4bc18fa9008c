"""Kernels of the emulated driver, compiled together: a C++ compiler takes half of its time to begin and to end."""

from __future__ import annotations

import threading

from tools.emulate_cuda import Emulator

MOST = 16
"""Kernels of a library."""


class Kernels:
    """Libraries by the text of a kernel. Texts in one language wait until one of them is asked for, and are compiled
    with it: programs load their kernels when they have the code of all."""

    def __init__(self) -> None:
        self._libraries: dict[str, bytes] = {}
        self._waiting: dict[str, str] = {}
        self._lock = threading.Lock()

    def wait(self, name: str, text: str, emulator: Emulator) -> None:
        """Has a kernel of this name compiled with the next that is asked for."""
        with self._lock:
            if text in self._libraries:
                return
            if self._waiting.get(name, text) != text:
                self._compile(emulator)
            self._waiting[name] = text

    def library(self, name: str, text: str, emulator: Emulator) -> bytes:
        """Where the kernel is. Raises subprocess.CalledProcessError."""
        self.wait(name, text, emulator)
        with self._lock:
            while text not in self._libraries:
                self._compile(emulator)
            return self._libraries[text]

    def finish(self, emulator: Emulator) -> None:
        """Compiles what nobody has asked for."""
        with self._lock:
            while self._waiting:
                self._compile(emulator)

    def _compile(self, emulator: Emulator) -> None:
        """The first that wait; they do so no more if that fails."""
        names = list(self._waiting)[:MOST]
        texts = [self._waiting.pop(name) for name in names]
        library = emulator.compile_together([(text, [name]) for name, text in zip(names, texts)])
        self._libraries.update(dict.fromkeys(texts, library))
