"""Cores keep all of their sums in registers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rlx.backends.cpu import jit
from rlx.backends.cpu.isa import LEVELS
from rlx.codegen.simd.function import Module, Target
from rlx.codegen.simd.isa import Isa
from rlx.codegen.simd.microkernels import BRAINS, FLOATS, HALVES, Form, core

ADDRESSES = 16
X86 = [level.isa for level in LEVELS.values() if level.isa.triple_arch == "x86_64" and level.isa.has_fma]


def module_for(isa: Isa) -> Module:
    return Module(Target(isa.lanes, isa.has_fma, converts_f16=True, vector_registers=isa.vector_registers), ())


def vectors_on_the_stack(text: str, isa: Isa) -> list[str]:
    """Instructions of vectors that read or write the stack."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine: Any = jit._machine(isa, 2)
    assembly = machine.emit_assembly(llvm.parse_assembly(text))
    assert "vfmadd" in assembly
    return [line for line in assembly.splitlines() if re.search(r"%[yz]mm", line) and re.search(r"\(%r[sb]p", line)]


@pytest.mark.parametrize("isa", X86, ids=lambda isa: isa.name)
@pytest.mark.parametrize("form", [FLOATS, HALVES, BRAINS], ids=lambda form: form.stem)
def test_sums_stay_in_registers(form: Form, isa: Isa) -> None:
    """Of tiles of any height, which have several sets of sums where one would be few. Addresses of rows may go through
    the stack once."""
    for vectors in range(1, isa.gemm_vectors + 1):
        for rows in range(1, isa.block_rows(vectors) + 1):
            module = module_for(isa)
            core(module, rows, vectors, form)
            assert len(vectors_on_the_stack("\n".join(module.texts(1)), isa)) <= ADDRESSES, (rows, vectors)


def test_with_fewer_registers_than_thought_sums_would_be_on_the_stack() -> None:
    """What the test above finds."""
    isa = LEVELS["avx2"].isa
    module = Module(Target(isa.lanes, isa.has_fma, converts_f16=True, vector_registers=32), ())
    core(module, 4, 2, FLOATS)
    assert len(vectors_on_the_stack("\n".join(module.texts(1)), isa)) > 2 * ADDRESSES
