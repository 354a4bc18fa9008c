"""What is made of a graph for AMD's GPUs: kernels in HIP C++ (`backends.cuda.build` does the rest)."""

from __future__ import annotations

from rlx.backends.cuda.build import Maker, passes_without_matrix_units
from rlx.codegen.simt.language.hip import HIP
from rlx.codegen.simt.module import AMD

AMDS = Maker("rocm", AMD, lambda target: passes_without_matrix_units(HIP))
