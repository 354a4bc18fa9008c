"""Kernels of a program in C++ of GPUs: one function a kernel, equal kernels share one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlx.codegen.simt import fma_tile, piece_nests, row_product, team_attention, team_contraction, team_layouts
from rlx.codegen.simt.code import Shader, Slot
from rlx.codegen.simt.kernel import render
from rlx.codegen.simt.language.cpp import Cpp
from rlx.codegen.simt.language.cuda import CUDA, Cuda
from rlx.codegen.simt.language.hip import Hip
from rlx.codegen.simt.language.metal import Metal
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.errors import CompileError
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.control import Loop
from rlx.kernel.ir.fused import RowProduct, SideBySide
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Kernel, Program, leaves


@dataclass(frozen=True)
class CppTarget(Target):
    """Lanes of a warp exchange values, and read whole lines of the cache where they read neighbours.

    language   which C++ it is
    """

    language: type[Cpp] = Cuda

    def on(self, architecture: str) -> CppTarget:
        """The target that a GPU of some architecture is."""
        return replace(self, warpgroups=self.teams and architecture.startswith("sm_90"))

    @property
    def square(self) -> int:
        return 32

    @property
    def shares_sums(self) -> bool:
        return True


ALIGNMENT = 16
NVIDIA = CppTarget(subgroups=True, teams=True)
AMD = CppTarget(subgroups=True, language=Hip)
APPLE = CppTarget(subgroups=True, language=Metal)
"""Matrix units of both are not used."""


@dataclass(frozen=True)
class Variant:
    """A function that does what a kernel does, and what a launch of it needs: the best one for at most so many rows."""

    name: str
    shader: Shader
    rows: Dim = 0
    most_rows: int | None = None


@dataclass(frozen=True)
class CppModule:
    """The kernels of programs.

    kernels    texts by the names of their functions, which are told by the text, without the prelude
    variants   of each kernel of a program, by its id
    prelude    what stands before them
    """

    kernels: dict[str, str]
    variants: dict[int, tuple[Variant, ...]]
    prelude: str

    def variant(self, kernel: Kernel, binding: Mapping[str, int]) -> Variant:
        """The one for these dims."""
        variants = self.variants[id(kernel)]
        for each in variants[:-1]:
            if each.most_rows is not None and dims.evaluate(each.rows, binding) <= each.most_rows:
                return each
        return variants[-1]

    @property
    def text(self) -> str:
        """All of them as one text that compilers take."""
        return "\n".join([self.prelude, *self.kernels.values(), ""])


def cpp_kernel(
    program: Program, kernel: Kernel, name: str, target: CppTarget = NVIDIA, language: Cpp = CUDA,
    made: dict[Any, Shader] | None = None,
) -> Shader:  # fmt: skip
    """One kernel, without the prelude. `made` has those of equal kernels so far, for the same target but for its rows,
    and the same language: layers are alike. Raises CompileError."""
    slots = slots_of(program, kernel)
    dtypes = [slot.dtype for slot in slots]
    if any(dtype.is_complex for dtype in dtypes):
        raise CompileError(f"[{kernel.name}] expected real numbers, got complex ones, at {', '.join(kernel.sources)}")
    key = kernel.work, _numbers(kernel.work), tuple(slots), kernel.writes, target.rows
    if made is not None and key in made:
        return made[key]
    shader = render(kernel, slots, language.bindings(dtypes, kernel.writes), name, target, language)
    if made is not None:
        made[key] = shader
    return shader


def _numbers(work: Any) -> str:
    """Those of work that may be equal and differ in their sign; those in bodies are told apart by their bits."""
    of = getattr(work, "work", work)  # parts of attention have it whole
    if isinstance(of, FusedAttention):
        return f"{of.scale} {of.fill} {of.softcap}"
    return " ".join(map(_numbers, of.parts())) if isinstance(of, SideBySide) else ""


def slots_of(program: Program, kernel: Kernel) -> list[Slot]:
    """What a kernel's code is told of its buffers."""
    static = program.static_buffers()
    return [
        Slot(program.buffers[number].dtype, storage, aligned=_is_aligned(program, number), static=number in static)
        for storage, number in enumerate(kernel.slots)
    ]


def _is_aligned(program: Program, number: int, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a buffer begins at a multiple of 16 bytes, as all memory of devices does, wherever it lies in a trip of a
    loop. What it only is by way of itself (`seen`) says nothing."""
    if program.buffers[number].kind != "alias" or number in seen:
        return True
    itemsize, places = program.buffers[number].dtype.itemsize, _places(program, number)
    whole = all(dims.exact_div(dims.mul(elements, itemsize), ALIGNMENT) is not None for _, elements in places)
    return bool(places) and whole and all(_is_aligned(program, base, seen | {number}) for base, _ in places)


def _places(program: Program, number: int) -> list[tuple[int, Dim]]:
    """The buffers that an alias may be, each with a number of elements of which its distance from the beginning is a
    sum of multiples."""
    if number in program.aliases:
        return [program.aliases[number]]
    found: list[tuple[int, Dim]] = []
    for loop in _loops((*program.prepare, *program.main)):
        for view in loop.views:
            if view.number == number:
                found += [(view.base, view.offset), (view.base, view.step)]
        for carried in loop.carried:
            if number in (carried.now, carried.last):
                found += [(carried.start, 0), (carried.following, 0)]
            if number == carried.following:
                found += [(turn, 0) for turn in carried.ping_pong]
    return found


def _loops(kernels: Iterable[Kernel]) -> Iterator[Loop]:
    for kernel in kernels:
        if isinstance(kernel.work, Loop):
            yield kernel.work
        yield from _loops(kernel.work.children())


def cpp_module(
    programs: Iterable[Program], moving: frozenset[str] = frozenset(), target: CppTarget = NVIDIA
) -> CppModule:
    """The kernels of programs. Equal ones share a function. Raises CompileError.

    moving   symbols whose values are in a table of the device
    """
    language = target.language(moving)
    variants: dict[int, tuple[Variant, ...]] = {}
    kernels: dict[str, str] = {}
    by_text: dict[str, str] = {}
    shaders: dict[Any, Shader] = {}
    for program in programs:
        for kernel in leaves((*program.prepare, *program.main)):
            made = []
            for rows, most, guess in guesses(kernel, target):
                shader = cpp_kernel(program, kernel, "KERNEL", replace(target, rows=guess), language, shaders)
                if shader.text not in by_text:
                    digest = hashlib.blake2b(shader.text.encode(), digest_size=8).hexdigest()
                    name = by_text[shader.text] = f"{_stem(kernel.name)}_{digest}"
                    kernels[name] = shader.text.replace("KERNEL(", f"{name}(", 1)
                made.append(Variant(by_text[shader.text], shader, rows, most))
            variants[id(kernel)] = tuple(made)
    return CppModule(kernels, variants, language.prelude())


def guesses(kernel: Kernel, target: CppTarget) -> Iterator[tuple[Dim, int | None, int]]:
    """The rows of a kernel, up to how many of them a variant is for, and what that takes them for."""
    work = kernel.work
    if isinstance(work, RowProduct):
        known = work.product.m if isinstance(work.product.m, int) else None
        yield from ((work.product.m, limit, guess) for limit, guess in row_product.guesses(work.most_rows, known))
        return
    if target.teams and isinstance(work, FusedAttention) and team_attention.takes(work):
        yield from team_attention.guesses(work, target.warpgroups)
        return
    if target.teams and isinstance(work, LoopNest) and work.inner and not isinstance(dims.product(work.outer), int):
        most_alone = piece_nests.most_with_one(work)
        if most_alone is not None:
            yield dims.product(work.outer), most_alone, 1
            yield dims.product(work.outer), None, most_alone + 1
            return
    rows = team_layouts.rows_of(work) if isinstance(work, Contraction) else 0
    if target.teams and isinstance(work, Contraction) and not isinstance(rows, int) and _has_tiles(work):
        for most, guess in team_layouts.guesses_of(work):
            if most is None or most > work.above:
                yield rows, most, guess
            if most is not None and 0 < work.up_to <= most:
                return
    else:
        yield rows, None, target.rows


def _has_tiles(work: Contraction) -> bool:
    """Whether other rows may want another kernel."""
    return team_contraction.takes(work) or fma_tile.can_take(work)


def _stem(name: str) -> str:
    """What of a kernel's name can be part of a function's."""
    return re.sub(r"\W+", "_", name, flags=re.ASCII)[:40].strip("_") or "kernel"
