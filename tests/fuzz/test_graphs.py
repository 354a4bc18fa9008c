"""Random programs against the reference, and those that once failed on every device.

`python -m tools.fuzz_graphs --seed N` runs one again and makes it small if it fails.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import support
from rlx.ir.op import REGISTRY
from tools import emulate_cuda
from tools.fuzz import check, found, generate, oracle, other, shrink
from tools.fuzz.asked import EMULATED
from tools.fuzz.program import Program

FOUND = sorted((Path(__file__).parent / "found").glob("*.txt"))
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30


@pytest.mark.parametrize("path", FOUND, ids=lambda p: p.stem)
@pytest.mark.devices("cpu", "cpu-*", "vulkan", "xla", "mlx")
def test_what_once_failed(path: Path, device: str) -> None:
    if support.why_absent(device):
        pytest.skip(support.why_absent(device))
    program = found.read(path.read_text())
    kind, isa = support.kind_of(device), support.isa_of(device)
    if isa:
        program.how = program.how.on(isa)
    try:
        failure = check.check(program, kind)
    except check.Refused as why:
        pytest.skip(str(why))
    assert failure is None, str(failure)


@pytest.mark.parametrize("part", [0, 1])
def test_random_programs(part: int) -> None:
    """The seeds hang on the commit."""
    start = support.commit_number() + part * 1_000_000
    command = [sys.executable, "-m", "tools.fuzz_graphs", "--start", str(start), "--seconds", str(SECONDS)]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert completed.returncode == 0, (
        f"python -m tools.fuzz_graphs --seed N replays a seed N:\n{completed.stdout}{completed.stderr}"
    )
    assert int(completed.stdout.rpartition("\n")[0].rpartition("\n")[2].split()[0]) > 20, completed.stdout


def test_random_programs_in_larger_arrays() -> None:
    """Padded, with garbage behind what counts."""
    start = str(support.commit_number())
    command = [sys.executable, "-m", "tools.fuzz_graphs", "--device", "padded", "--start", start, "--seconds", "15"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"--device padded --seed N replays a seed N:\n{done.stdout}{done.stderr}"
    assert int(done.stdout.rpartition("\n")[0].rpartition("\n")[2].split()[0]) > 5, done.stdout


def test_random_programs_before_there_is_code() -> None:
    start = str(support.commit_number())
    command = [sys.executable, "-m", "tools.fuzz_graphs", "--device", "numpy", "--start", start, "--seconds", "8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"--device numpy --seed N replays a seed N:\n{done.stdout}{done.stderr}"
    assert int(done.stdout.rpartition("\n")[0].rpartition("\n")[2].split()[0]) > 5, done.stdout


@pytest.mark.skipif(bool(emulate_cuda.why_absent()), reason=emulate_cuda.why_absent())
def test_random_convolutions_in_cuda() -> None:
    """On the driver that works on the processor."""
    start = str(support.commit_number())
    command = [sys.executable, "-m", "tools.fuzz_graphs", "--device", EMULATED, "--start", start, "--count", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"--device {EMULATED} --seed N replays a seed N:\n{done.stdout}{done.stderr}"
    assert int(done.stdout.rpartition("\n")[0].rpartition("\n")[2].split()[0]) > 0, done.stdout


def test_every_op_is_reached() -> None:
    """By a family of its own, or with the attributes of a case."""
    lacking = {name for name in REGISTRY if name not in other.WITHOUT and not other.usable(name)}
    assert not lacking
    assert not other.WITHOUT.keys() - REGISTRY.keys()


def test_a_seed_always_gives_the_same_program() -> None:
    for seed in range(20):
        assert found.write(generate.generate(seed)) == found.write(generate.generate(seed))


def test_a_file_reads_back() -> None:
    for seed in range(40):
        text = found.write(generate.generate(seed), "what was wrong")
        assert found.write(found.read(text), "what was wrong") == text


def _wrong(program: Program) -> bool:
    """Whether there is a product followed by a sum: what stands for a fault here."""
    names = [node.op.name for node in program.graph.nodes]
    return "matmul" in names and "add" in names[names.index("matmul") :]


def test_shrinking_leaves_what_fails() -> None:
    seeds = (seed for seed in range(1000) if _wrong(generate.generate(seed)))
    for _ in range(3):
        small = shrink.shrink(generate.generate(next(seeds)), _wrong, seconds=20)
        inner = [n.op.name for n in small.graph.nodes if n.inputs]
        assert inner == ["matmul", "add"]


def test_a_result_that_is_off_is_seen() -> None:
    """By five parts in a hundred, or with a row in another's place."""
    count = 0
    for seed in range(60):
        program = generate.generate(seed)
        for expected in oracle.expect(program, program.bindings[0]).values():
            array = expected.array
            if array.dtype.kind != "f" or array.ndim < 2 or not abs(array).max(initial=0) > 0:
                continue
            if not (expected.bound < 1e30).all() or array.shape[0] < 2 or (array[0] == array[1]).all():
                continue
            off = (array * array.dtype.type(1.05)).astype(array.dtype)
            swapped = array[[1, *range(1, array.shape[0])]]
            assert expected.mismatch(array) is None
            assert expected.mismatch(off) is not None
            assert expected.mismatch(swapped) is not None
            count += 1
    assert count > 10
