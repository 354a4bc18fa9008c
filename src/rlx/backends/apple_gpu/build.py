"""What is made of a graph for Apple's GPUs: kernels in Metal's language (`backends.cuda.build` does the rest)."""

from __future__ import annotations

from rlx.backends.cuda.build import Maker, passes_without_matrix_units
from rlx.codegen.simt.language.metal import METAL, why_unsupported
from rlx.codegen.simt.module import APPLE

APPLES = Maker("apple-gpu", APPLE, lambda target: passes_without_matrix_units(METAL), lacks=why_unsupported)
