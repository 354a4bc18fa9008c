"""wgpu's instances, which look for adapters: one that never loads OpenGL, and one that does, for callers that name it.

Mesa's EGL opens its driver so that all of the driver's symbols, LLVM's among them, are visible in the whole process. A
library with an LLVM of its own that is loaded later, such as triton, is then bound to Mesa's, and crashes with a
segmentation fault when it is imported. Vulkan drivers keep their symbols private. OpenGL is therefore loaded only on
request, and after such libraries.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlx import locks

WITHOUT_OPENGL = ("Primary",)
OWN_LLVM = {"triton": "_C/libtriton.so"}
"""Packages with an LLVM whose symbols others can see, and where it lies in them."""
_lock = locks.lock()
_made: dict[bool, Any] = {}


def choose(helpers: Any, extras: Any, opengl: bool) -> None:
    """Makes the instance with or without OpenGL the one that `wgpu` uses (its modules `_helpers` and `extras`).

    One that somebody else made is left as it is: it has loaded OpenGL already.
    """
    with _lock:
        ours = helpers._the_instance is None or helpers._the_instance in _made.values()
        if not ours:
            return
        if opengl not in _made:
            helpers._the_instance = None
            if opengl:
                load_first()
                helpers.get_wgpu_instance()
            else:
                extras.set_instance_extras(backends=WITHOUT_OPENGL)
            _made[opengl] = helpers._the_instance
        helpers._the_instance = _made[opengl]


def load_first() -> None:
    """Loads libraries with an LLVM of their own, every symbol bound at once, before OpenGL's comes into sight."""
    if sys.platform != "linux":
        return
    for package, file in OWN_LLVM.items():
        spec = find_spec(package)
        folder = next(iter(spec.submodule_search_locations or ()), "") if spec else ""
        if folder and (Path(folder) / file).exists():
            ctypes.CDLL(str(Path(folder) / file), mode=os.RTLD_NOW | os.RTLD_LOCAL)
