"""HIP C++ for AMD's GPUs, as hiprtc and other compilers of LLVM take it. Compile with `-ffp-contract=off`.

Nothing comes from headers: `hip.h` has what kernels need of the compiler. Texts are in a namespace of their own, in
which names are found before those that hiprtc has declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rlx.codegen.simt.code import WORKGROUP, Binding, Code, Record
from rlx.codegen.simt.language.cpp import Cpp
from rlx.codegen.simt.language.texts import GPU, conversions, text_of
from rlx.ir import dtype as dtypes

NAMESPACE = "rlx"


class Hip(Cpp):
    """HIP C++."""

    name = "hip"
    label = "HIP C++"
    block_index = "block_index()"
    lane_number = "lane_number()"

    def prelude(self) -> str:
        return prelude()

    def exchanged(self, value: str, mask: str) -> str:
        return f"neighbour({value}, {mask})"

    def qualifiers(self, lanes: int, cluster: int = 1, alone: bool = False) -> str:
        return f'extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size({lanes}, {lanes})))'

    def record_parameter(self, count: int) -> str:
        return f"const Record<{count}> record"

    def first_lines(self, code: Code) -> list[str]:
        """The compiler alone knows how long wavefronts are."""
        return ["  [[maybe_unused]] const unsigned subgroup_size = wavefront();"] if code.subgroups else []

    def assemble(
        self, code: Code, record: Record, bindings: Sequence[Binding], name: str, positions_a_group: int,
        lanes: int = WORKGROUP,
    ) -> str:  # fmt: skip
        text = super().assemble(code, record, bindings, name, positions_a_group, lanes)
        return f"namespace {NAMESPACE} {{\n{text}\n}}"


HIP = Hip()


@cache
def prelude(functions: str = "") -> str:
    """Device functions that kernels call. `functions` takes the place of those that are made of the compiler's own, for
    another compiler."""
    own, written = (functions, ()) if functions else (text_of("hip.h"), (dtypes.f16,))
    parts = [f"namespace {NAMESPACE} {{", own, text_of(*GPU), conversions(HIP, written), "}"]
    return "\n".join(parts)
