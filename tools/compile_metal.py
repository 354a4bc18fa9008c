"""Checks kernels in Metal's language without macOS, by a clang that has C++ for OpenCL: that of the package `ziglang`,
or one of the system's.

Metal's language is a C++ whose pointers say which memory they point to, and so is C++ for OpenCL, from which
`metal_words.hpp` makes it, as far as kernels use it. What is checked is syntax, types and address spaces. That Metal's
own compiler takes the texts, and what it makes of them, is not.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from rlx.codegen.simt.language import metal
from rlx.errors import CompileError
from tools import compile_hip
from tools.emulate_cuda import METAL_LIBRARY

WORDS = Path(__file__).with_name("metal_words.hpp")
EXTENSIONS = "-cl-ext=-all,+cl_khr_fp16,+__cl_clang_non_portable_kernel_param_types,-__opencl_c_generic_address_space"
OPTIONS = (
    "-x", "clcpp", "-cl-std=clc++2021", "-target", "spirv64", "-cl-no-stdinc", "-Xclang", EXTENSIONS, "-fsyntax-only",
    "-Wno-unknown-attributes", "-Wno-unknown-pragmas",
)  # fmt: skip
"""Attributes and pragmas of Metal's are unknown to it."""


def why_absent() -> str:
    """Why kernels cannot be checked here; empty if they can."""
    return "" if compile_hip.compiler() else "no clang: pip install ziglang"


def check(text: str) -> None:
    """Raises CompileError with what the compiler says."""
    assert text.startswith(metal.prelude())
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernels.clcpp")
        source.write_text(text.replace(METAL_LIBRARY, f'#include "{WORDS}"', 1))
        done = subprocess.run([*compile_hip.compiler(), *OPTIONS, str(source)], capture_output=True, text=True)
        if done.returncode:
            raise CompileError(f"[apple-gpu] {done.stderr[:2000]}")
