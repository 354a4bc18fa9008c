"""Kernels of a program in a language that takes pointers: one function a kernel, equal kernels share one."""

from __future__ import annotations

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


NVIDIA = NvidiaTarget(subgroups=True)


@dataclass(frozen=True)
class CudaModule:
    """CUDA C++ of a program: the text, and for each kernel by its id the name of its function."""

    text: str
    names: dict[int, str]


def cuda_kernel(program: Program, kernel: Kernel, name: str) -> Shader:
    """One kernel in CUDA C++, without the prelude. Raises CompileError."""
    dtypes = [program.buffers[number].dtype for number in kernel.slots]
    if any(dtype.is_complex for dtype in dtypes):
        raise CompileError(f"[{kernel.name}] expected real numbers, got complex ones, at {', '.join(kernel.sources)}")
    slots = [Slot(dtype, storage) for storage, dtype in enumerate(dtypes)]
    bindings = bindings_of(dtypes, kernel.writes)
    return render(kernel, slots, bindings, name, NVIDIA, CUDA)


def cuda_module(programs: Iterable[Program]) -> CudaModule:
    """The kernels of programs as one text that NVRTC compiles. Raises CompileError."""
    names: dict[int, str] = {}
    by_text: dict[str, str] = {}
    texts: list[str] = []
    for program in programs:
        for kernel in leaves((*program.prepare, *program.main)):
            text = cuda_kernel(program, kernel, "KERNEL").text
            if text not in by_text:
                by_text[text] = f"kernel{len(texts)}"
                texts.append(text.replace("KERNEL(", f"{by_text[text]}(", 1))
            names[id(kernel)] = by_text[text]
    return CudaModule("\n".join([prelude(), *texts, ""]), names)
