"""Runs kernels in CUDA C++, HIP C++ or Metal's language on the processor, compiled as C++: finds wrong kernels where
there is no GPU.

The lanes of a block take turns, one goes on until it waits for the others; behind each buffer there is no memory. What
real lanes do at once, and the order in which memory changes for them, is not tested; whether indices, arithmetic,
atomics and exchanges are right is.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlx.codegen.simt.language import cuda, hip, metal
from rlx.codegen.simt.maps import MOST_RANK, PIECE_BYTES, PlacedMap
from rlx.ir.literal import Array

COMPILER = "g++"
ANY = ("-std=c++17", "-fPIC")
OPTIONS = (
    *ANY, "-Og", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", "-Wno-attributes", "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
)  # fmt: skip
"""Kernels run for less long than they are compiled."""
LINKED = ("-shared", "-nostdlib")
"""This process has the libraries that kernels call: to look for them takes as long as all other linking."""
SCHEDULER = Path(__file__).with_name("cuda_emulation.cpp")
HEADER = Path(__file__).with_name("cuda_emulation.hpp")
WORDS = Path(__file__).with_name("cuda_words_emulation.hpp")
HIP = Path(__file__).with_name("hip_emulation.hpp")
METAL = Path(__file__).with_name("metal_emulation.hpp")
PTX = [
    Path(__file__).with_name(f"cuda_{kind}_emulation.hpp")
    for kind in ("floats", "halves", "matrix", "bytes", "float8", "copies", "warpgroups", "clusters", "pipes")
]
ALIGNMENT = 16
MAP_BYTES = 128
"""Bytes to which memory is aligned here. GPUs align it to more, and so hide what is read behind its end."""
FIRST_LINE = 1 << 16
"""Of kernels: behind those of all headers, as the numbers of lines tell barriers apart."""
METAL_LIBRARY = "#include <metal_stdlib>"
NOTHING = 0
"""That a page lets nobody do."""
WRONG = (
    "",
    "lanes of a block wait at different places",
    "it reads or writes behind its memory, in none, or between its places",
)
LIBC = ctypes.CDLL(None)
ALONE = threading.RLock()
"""Held by the thread that makes what all kernels have in common."""


def why_absent() -> str:
    """Why kernels cannot be compiled here; empty if they can."""
    if sys.platform != "linux":
        return "lanes are coroutines of Linux"
    return "" if shutil.which(COMPILER) else f"no {COMPILER}"


@cache
def folder() -> Path:
    """Where this process keeps what all kernels have in common."""
    path = tempfile.mkdtemp(prefix="emulation-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


@cache
def header(language: str) -> Path:
    """What kernels in a language begin with: compiled before, which takes longer than most kernels do."""
    if language == "metal":
        words = metal.prelude(halves=False).replace(METAL_LIBRARY, "")
        parts = [HEADER.read_text(), METAL.read_text(), words]
    elif language == "hip":
        parts = [HEADER.read_text(), WORDS.read_text(), hip.prelude(HIP.read_text())]
    else:
        ptx = (path.read_text() for path in PTX)
        parts = [HEADER.read_text(), WORDS.read_text(), cuda.prelude(ptx=False), *ptx, cuda.by_ptx()]
    path = folder() / f"{language}.hpp"
    path.write_text("\n".join(parts))
    subprocess.run([COMPILER, *OPTIONS, "-x", "c++-header", path, "-o", f"{path}.gch"], check=True)
    return path


@cache
def scheduler() -> ctypes.CDLL:
    """What runs lanes, whose functions kernels call."""
    library = folder() / "scheduler.so"
    subprocess.run([COMPILER, *ANY, "-O2", "-shared", SCHEDULER, "-o", library], check=True)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def cpp_of(text: str) -> tuple[str, str]:
    """The language of a module's text, and its kernels as C++ behind the header of that language."""
    if text.startswith(metal.prelude()):
        kernels = text.removeprefix(metal.prelude()).replace("(threadgroup ", "(")  # of casts
        return "metal", re.sub(r"^  threadgroup ", "  static ", kernels, flags=re.MULTILINE)
    if text.startswith(hip.prelude()):
        seen = f"using namespace {hip.NAMESPACE};"  # of the header, and then that of the module
        return "hip", f"{seen}{text.removeprefix(hip.prelude())}\n{seen}"
    assert text.startswith(cuda.prelude())
    return "cuda", text.removeprefix(cuda.prelude())


def with_far(module: ctypes.CDLL, name: str, arguments: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a kernel, with those in one that it has no parameters for."""
    try:
        far = ctypes.c_int.in_dll(module, f"far_{name}").value
    except ValueError:
        return arguments
    places = (ctypes.c_uint64 * len(arguments[far:-1]))(*(each.value for each in arguments[far:-1]))
    return [*arguments[:far], places, arguments[-1]]


def encoded_map(placed: PlacedMap, start: int) -> bytes:
    """A map of a tensor as `cuda_pipes_emulation.hpp` reads it. Raises AssertionError for what no driver takes."""
    rank = len(placed.extents)
    assert 2 <= rank == len(placed.strides) + 1 == len(placed.box) <= MOST_RANK
    assert all(step % PIECE_BYTES == 0 for step in (start + placed.first, *placed.strides))
    assert all(0 < width <= 256 for width in placed.box) and all(extent > 0 for extent in placed.extents)
    assert placed.box[0] * placed.dtype.itemsize == 128
    places = (start + placed.first, rank, placed.dtype.itemsize)
    strides = (placed.dtype.itemsize, *placed.strides)
    pad = (0,) * (MOST_RANK - rank)
    numbers = (*places, *placed.extents, *pad, *strides, *pad, *placed.box, *pad)
    return struct.pack("<QII5I5I5I", *numbers).ljust(MAP_BYTES, b"\0")


class Emulator:
    """Takes the place of a GPU's driver.

    warp       lanes of a warp, or of a wavefront
    in_front   whether every other buffer has no memory in front of it, in place of behind
    """

    name = "emulated"
    architecture = "C++"

    def __init__(self, warp: int = 32, in_front: bool = False) -> None:
        self.warp, self.in_front = warp, in_front
        self._memory: dict[int, mmap.mmap] = {}
        self._count = 0

    def compile(self, text: str, names: Iterable[str]) -> bytes:
        """A shared library of a module's text. Raises subprocess.CalledProcessError."""
        return self.compile_together([(text, names)])

    def compile_together(self, modules: Sequence[tuple[str, Iterable[str]]]) -> bytes:
        """One shared library of modules in one language whose kernels have names of their own: it takes half as long
        as one of each. Raises subprocess.CalledProcessError."""
        languages, parts = set(), []
        for number, (text, names) in enumerate(modules):
            language, kernels = cpp_of(text)
            languages.add(language)
            entries = self._entries(language, kernels, names)
            parts.append(f"namespace module_{number} {{\n#line {FIRST_LINE}\n{kernels}\n{entries}\n}}\n")
        (language,) = languages
        with ALONE:
            begun = header(language)
        with tempfile.TemporaryDirectory() as place:
            source, library = Path(place, "kernels.cpp"), Path(place, "kernels.so")
            source.write_text(f'#include "{begun}"\n{"".join(parts)}')
            subprocess.run([COMPILER, *OPTIONS, *LINKED, source, "-o", library], check=True)
            return library.read_bytes()

    def _entries(self, language: str, kernels: str, names: Iterable[str]) -> str:
        """What calls kernels of a module."""
        clusters = {name: size for size, name in re.findall(r"__cluster_dims__\((\d+), .*\n(\w+)\(", kernels)}
        found = re.findall(r"^(\w+)\(.* far \[\[buffer\((\d+)\)", kernels, re.MULTILINE)
        far = {name: int(place) for name, place in found}
        entries = "\n".join(
            f'extern "C" int run_{name}(unsigned lanes, unsigned blocks, void** arguments) '
            f"{{ return emulation::{self._launch(language, name, clusters.get(name, '1'), far.get(name, -1))}; }}"
            for name in sorted(set(names))
        )
        return entries + "".join(f'\nextern "C" {{ int far_{name} = {place}; }}' for name, place in far.items())

    def _launch(self, language: str, name: str, cluster: str, far: int) -> str:
        if language == "metal":
            return f"launch_with_ids<{name}>({name}, {self.warp}, lanes, blocks, {far}, arguments)"
        return f"launch<{name}>({name}, {self.warp}, lanes, blocks, {cluster}, arguments)"

    def load(self, library: bytes) -> ctypes.CDLL:
        with ALONE:
            scheduler()
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(library)
            file.flush()
            return ctypes.CDLL(file.name)

    def buffer(self, nbytes: int) -> ctypes.c_uint64:
        """Memory that holds what nobody expects, and behind which there is none, or in front of which."""
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        held = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        mapping = mmap.mmap(-1, held + 2 * mmap.PAGESIZE)
        before = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        first = before + mmap.PAGESIZE
        for none in (before, first + held):
            assert LIBC.mprotect(ctypes.c_void_p(none), mmap.PAGESIZE, NOTHING) == 0
        ctypes.memset(first, 0xA5, held)
        self._count += 1
        start = first if self.in_front and self._count % 2 else first + held - size
        self._memory[start] = mapping
        return ctypes.c_uint64(start)

    def upload(self, pointer: ctypes.c_uint64, array: Array) -> None:
        ctypes.memmove(pointer.value, array.ctypes.data, array.nbytes)

    def download(self, array: Array, pointer: ctypes.c_uint64) -> None:
        ctypes.memmove(array.ctypes.data, pointer.value, array.nbytes)

    def free(self, pointer: ctypes.c_uint64) -> None:
        del self._memory[pointer.value]

    def launch(
        self, module: ctypes.CDLL, name: str, blocks: int, lanes: int, arguments: Sequence[object],
        shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        """Runs a kernel, whose text says how much workgroup memory a launch brings. Raises AssertionError where lanes
        of a block wait for one another in vain."""
        arguments = with_far(module, name, arguments)
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))  # type: ignore[arg-type]
        run = module[f"run_{name}"]
        wrong = WRONG[run(ctypes.c_uint(lanes), ctypes.c_uint(blocks), pointers)]
        assert not wrong, f"{name}: {wrong}"
