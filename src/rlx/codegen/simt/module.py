"""Kernels of a program in a language that takes pointers: one function a kernel, equal kernels share one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from rlx.codegen.simt.code import Shader, Slot
from rlx.codegen.simt.kernel import render
from rlx.codegen.simt.language.cuda import CUDA, bindings_of, prelude
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.errors import CompileError
from rlx.kernel.ir.program import Kernel, Program, leaves


@dataclass(frozen=True)
class NvidiaTarget(Target):
    """Lanes of a warp exchange values, and read whole lines of the cache where they read neighbours."""

    @property
    def square(self) -> int:
        return 32

    @property
    def shares_sums(self) -> bool:
        return True


NVIDIA = NvidiaTarget(subgroups=True)


@dataclass(frozen=True)
class CudaModule:
    """The kernels of programs: texts by the names of their functions, which are told by the text, without the prelude;
    and for each kernel of a program, by its id, the name of its function and what a launch of it needs."""

    kernels: dict[str, str]
    names: dict[int, str]
    shaders: dict[int, Shader]

    @property
    def text(self) -> str:
        """All of them as one text that NVRTC compiles."""
        return "\n".join([prelude(), *self.kernels.values(), ""])


def cuda_kernel(program: Program, kernel: Kernel, name: str) -> Shader:
    """One kernel in CUDA C++, without the prelude. Raises CompileError."""
    dtypes = [program.buffers[number].dtype for number in kernel.slots]
    if any(dtype.is_complex for dtype in dtypes):
        raise CompileError(f"[{kernel.name}] expected real numbers, got complex ones, at {', '.join(kernel.sources)}")
    slots = [Slot(dtype, storage) for storage, dtype in enumerate(dtypes)]
    bindings = bindings_of(dtypes, kernel.writes)
    return render(kernel, slots, bindings, name, NVIDIA, CUDA)


def cuda_module(programs: Iterable[Program]) -> CudaModule:
    """The kernels of programs. Equal ones share a function. Raises CompileError."""
    names: dict[int, str] = {}
    shaders: dict[int, Shader] = {}
    kernels: dict[str, str] = {}
    by_text: dict[str, str] = {}
    for program in programs:
        for kernel in leaves((*program.prepare, *program.main)):
            shader = cuda_kernel(program, kernel, "KERNEL")
            if shader.text not in by_text:
                digest = hashlib.blake2b(shader.text.encode(), digest_size=8).hexdigest()
                name = by_text[shader.text] = f"{_stem(kernel.name)}_{digest}"
                kernels[name] = shader.text.replace("KERNEL(", f"{name}(", 1)
            names[id(kernel)] = by_text[shader.text]
            shaders[id(kernel)] = shader
    return CudaModule(kernels, names, shaders)


def _stem(name: str) -> str:
    """What of a kernel's name can be part of a function's."""
    return re.sub(r"\W+", "_", name, flags=re.ASCII)[:40].strip("_") or "kernel"
