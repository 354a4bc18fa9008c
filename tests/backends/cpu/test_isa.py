"""The ISA is what the host runs, or what was asked for, or an error that says what there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from rlx.backends.cpu import isa
from rlx.backends.cpu.isa import LEVELS, detect, forced
from rlx.errors import DeviceUnavailable


def host(monkeypatch: pytest.MonkeyPatch, arch: str, *features: str) -> None:
    """Pretends to be another machine."""
    monkeypatch.setattr(isa, "host_arch", lambda: arch)
    monkeypatch.setattr(isa, "host_features", lambda: frozenset(features))


def test_this_host_is_detected() -> None:
    level_isa = detect()
    assert level_isa.triple_arch == isa.host_arch()
    assert level_isa.cpu == llvm.get_host_cpu_name()
    assert level_isa.l1_bytes <= level_isa.l2_bytes and level_isa.line_bytes in (32, 64, 128, 256)


@pytest.mark.parametrize("name", LEVELS)
def test_the_matrix_block_fits_the_registers(name: str) -> None:
    level_isa = forced(name, for_codegen_only=True)
    operands = level_isa.gemm_vectors + 1
    assert level_isa.gemm_rows * level_isa.gemm_vectors + operands <= level_isa.vector_registers
    assert level_isa.vector_bytes in (16, 32, 64) and level_isa.vector_bytes == 4 * level_isa.lanes


@pytest.mark.parametrize("name", LEVELS)
def test_llvm_makes_code_for_every_level(name: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    level_isa = forced(name, for_codegen_only=True)
    vector = f"<{level_isa.lanes} x float>"
    text = f"define {vector} @f({vector} %a, {vector} %b) {{\n %c = fmul {vector} %a, %b\n ret {vector} %c\n}}"
    triple = f"{level_isa.triple_arch}-linux-gnu"
    target = llvm.Target.from_triple(triple).create_target_machine(cpu=level_isa.cpu, features=level_isa.features)
    code = target.emit_assembly(llvm.parse_assembly(f'target triple = "{triple}"\n{text}'))
    register = {"avx512": "%zmm0", "avx2": "%ymm0", "sse": "%xmm0", "neon": "v0.4s"}[name]
    assert register in code and code.count("mul") == 1


@pytest.mark.parametrize(
    ("arch", "features", "name"),
    [
        ("x86_64", ("sse4.2", "popcnt"), "sse"),
        ("x86_64", ("sse4.2", "popcnt", "avx2"), "sse"),  # no fma
        ("x86_64", ("sse4.2", "popcnt", "avx2", "fma", "f16c", "bmi", "bmi2", "avx512f"), "avx2"),
        ("aarch64", ("neon",), "neon"),
    ],
)
def test_the_widest_that_runs_is_taken(
    monkeypatch: pytest.MonkeyPatch, arch: str, features: tuple[str, ...], name: str
) -> None:
    monkeypatch.delenv("RLX_CPU_ISA", raising=False)
    host(monkeypatch, arch, *features)
    assert detect().name == name


def test_the_flag_forces_one(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, "x86_64", "sse4.2", "popcnt")
    monkeypatch.setenv("RLX_CPU_ISA", "sse")
    assert (detect().name, detect().cpu) == ("sse", "x86-64-v2")
    assert isa.describe().endswith("(sse)")
    monkeypatch.setenv("RLX_CPU_ISA", "avx2")
    with pytest.raises(DeviceUnavailable, match=r"cannot run avx2 code \(lacks avx2, fma.*it can run sse"):
        detect()


def test_another_architecture_is_for_making_code_only(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, "x86_64", "sse4.2", "popcnt")
    assert forced("neon", for_codegen_only=True).triple_arch == "aarch64"
    with pytest.raises(DeviceUnavailable, match="lacks the aarch64 architecture"):
        forced("neon")


def test_an_unknown_architecture_or_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, "riscv64")
    monkeypatch.delenv("RLX_CPU_ISA", raising=False)
    with pytest.raises(DeviceUnavailable, match="no code for riscv64"):
        detect()
    with pytest.raises(DeviceUnavailable, match="no code for riscv64"):
        forced("avx2")
    with pytest.raises(DeviceUnavailable, match="no ISA named 'mmx'; expected one of avx512, avx2, sse, neon"):
        forced("mmx")


def test_what_stays_as_it_is_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every compile wants to know the host."""
    before = isa.widest()
    monkeypatch.setattr(isa, "_read", None)
    monkeypatch.setattr(llvm, "get_host_cpu_features", None)
    assert isa.widest() == before


def test_cache_sizes_are_read(tmp_path: Path) -> None:
    caches = [("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "2048K"), ("3", "Unified", "96M")]
    for number, (level, kind, size) in enumerate(caches):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size), ("coherency_line_size", "64")):
            (folder / name).write_text(text + "\n")
    expected = {"l1_bytes": 48 << 10, "l2_bytes": 2 << 20, "l3_bytes": 96 << 20, "line_bytes": 64}
    assert isa.cache_sizes(tmp_path) == expected
    assert isa.cache_sizes(tmp_path / "absent") == {}


def test_the_host_is_known_without_llvmlite() -> None:
    """Whoever waits for code of another process needs no more of LLVM than what the host is."""
    script = """
import sys
from rlx.backends.cpu import isa
isa.detect()
loaded = "llvmlite.binding" in sys.modules
told = isa._host()
import llvmlite.binding as llvm
print(loaded, told == (str(llvm.get_host_cpu_name()), str(llvm.get_host_cpu_features().flatten())))
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == [str(sys.platform != "linux"), "True"]
