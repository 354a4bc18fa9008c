"""CUDA C++ as NVRTC takes it, without headers. Compile with `--fmad=false`."""

from __future__ import annotations

from functools import cache

from rlx.codegen.simt.code import Code
from rlx.codegen.simt.language.cpp import Cpp, conversions, text_of
from rlx.ir import dtype as dtypes


class Cuda(Cpp):
    """CUDA C++."""

    name = "cuda"
    label = "CUDA C++"

    def prelude(self) -> str:
        return prelude()

    def exchanged(self, value: str, mask: str) -> str:
        return f"__shfl_xor_sync(0xffffffffu, {value}, {mask})"

    def qualifiers(self, lanes: int) -> str:
        return f'extern "C" __global__ void __launch_bounds__({lanes})'

    def record_parameter(self, count: int) -> str:
        return f"const __grid_constant__ Record<{count}> record"

    def first_lines(self, code: Code) -> list[str]:
        return [] if code.follows else ["  follow();"]


CUDA = Cuda()

PTX = ("cuda_halves.cuh", "cuda_launch.cuh", "cuda_matrix.cuh")
"""Texts with instructions of PTX."""


@cache
def prelude(ptx: bool = True) -> str:
    """Device functions that kernels call: those of `gpu.cuh`, and conversions of small floats, of halves by
    instructions of PTX, and products of matrix units; for other compilers neither."""
    written = (dtypes.f16, dtypes.bf16) if ptx else ()
    return "\n".join([text_of("cuda_warp.cuh", "gpu.cuh", *(PTX if ptx else ())), conversions(CUDA, written)])
