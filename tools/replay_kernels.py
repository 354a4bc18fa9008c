"""Compares the kernels that op cases and real nets compile to before and after a change.

    python -m tools.replay_kernels write BEFORE.zip      # on the old checkout
    python -m tools.replay_kernels compare BEFORE.zip    # on the new one: what differs, as unified diffs

A refactoring of the kernel level should leave the generated text byte for byte as it was; where it does not, the
comparison lists each case, and the change says why. Nothing runs on a device: LLVM IR for each instruction set and
WGSL for a plain and a full GPU are made on any machine.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from zlib import crc32

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import rlx
from benchmarks.zoo import Absent, nets
from ops.cases import cases_of_every_op
from rlx.backends.base import Options
from rlx.backends.cpu import build as cpu
from rlx.backends.cpu import isa as isas
from rlx.backends.wgpu import build as wgpu
from rlx.backends.wgpu.device import PORTABLE_BINDING
from rlx.codegen.simd.isa import Isa
from rlx.codegen.simd.module import generate
from rlx.errors import RlxError
from rlx.ir.graph import Graph

Texts = Callable[[Graph], list[str]]
FULL_GPU = replace(wgpu.PLAIN, **{name: True for name, kind in vars(wgpu.PLAIN).items() if isinstance(kind, bool)})


def llvm(isa: Isa, graph: Graph) -> list[str]:
    """LLVM IR of a graph for an instruction set."""
    options = Options()
    program, bounds = cpu.program_of(graph, isa, options)
    return generate(program, isa, bounds, cpu._kept(program), reuse=True, threads=2)


def wgsl(target: wgpu.Target, graph: Graph) -> list[str]:
    """The shaders of a graph."""
    plan = wgpu.build(graph, Options(), PORTABLE_BINDING, target)
    return [step.shader.text for step in (*plan.prepare, *plan.main)]


TARGETS: dict[str, tuple[Texts, int]] = {
    "avx512": (lambda g: llvm(isas.forced("avx512", for_codegen_only=True), g), 1),
    "avx512-vnni": (
        lambda g: llvm(replace(isas.forced("avx512", for_codegen_only=True), features="+avx512vnni"), g),
        8,
    ),
    "avx2": (lambda g: llvm(isas.forced("avx2", for_codegen_only=True), g), 4),
    "sse": (lambda g: llvm(isas.forced("sse", for_codegen_only=True), g), 16),
    "wgsl": (lambda g: wgsl(wgpu.PLAIN, g), 2),
    "wgsl-full": (lambda g: wgsl(FULL_GPU, g), 4),
}
"""Targets, each with how many op cases go by for one that is compiled."""


def programs(target: str, every: int, with_nets: bool) -> Iterator[tuple[str, Graph]]:
    """(name, graph) of what a target compiles."""
    counts: Counter[str] = Counter()
    for case in cases_of_every_op():
        counts[str(case)] += 1  # some cases differ in attributes alone
        name = f"{case} {counts[str(case)]}".replace("\n", " ")
        if crc32(name.encode()) % every == 0:
            yield f"{target}/{name}", case.graph()
    for name, net in nets().items() if with_nets else ():
        try:
            yield f"{target}/net {name}", rlx.load(net.path(), device="cpu").graph
        except (Absent, RlxError) as why:
            print(f"left out: {name}: {why}", file=sys.stderr)


def kernels(only: str, with_nets: bool) -> Iterator[tuple[str, str]]:
    """(name of a program, its text or the error's name) on every target that `only` begins."""
    for target, (texts, every) in TARGETS.items():
        if not target.startswith(only):
            continue
        for name, graph in programs(target, every, with_nets and target in ("avx512", "avx2", "wgsl")):
            try:
                yield name, "\n".join(texts(graph))
            except RlxError as error:
                yield name, f"{type(error).__name__}: {error}"


def write(path: Path, only: str, with_nets: bool) -> int:
    count = 0
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        for name, text in kernels(only, with_nets):
            out.writestr(name, text)
            count += 1
    print(f"{count} programs")
    return 0


def compare(path: Path, only: str, with_nets: bool, show: int) -> int:
    same = missing = 0
    differs: list[str] = []
    with zipfile.ZipFile(path) as before:
        names = set(before.namelist())
        for name, text in kernels(only, with_nets):
            if name not in names:
                missing += 1
                continue
            old = before.read(name).decode()
            if old == text:
                same += 1
                continue
            differs.append(name)
            if len(differs) <= show:
                lines = difflib.unified_diff(old.splitlines(), text.splitlines(), name, "now", lineterm="", n=2)
                print("\n".join(line[:160] for _, line in zip(range(60), lines)))
    for name in differs:
        print(f"differs: {name}")
    digest = hashlib.blake2b("\n".join(differs).encode(), digest_size=6).hexdigest()
    print(f"{same} programs the same, {len(differs)} differ ({digest}), {missing} new")
    return 1 if differs else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="targets whose name begins so: " + ", ".join(TARGETS))
    parser.add_argument("--no-nets", action="store_true", help="op cases alone")
    parser.add_argument("--show", type=int, default=3, help="how many differences to print")
    args = parser.parse_args()
    start = time.perf_counter()
    if args.action == "write":
        code = write(args.file, args.only, not args.no_nets)
    else:
        code = compare(args.file, args.only, not args.no_nets, args.show)
    print(f"{time.perf_counter() - start:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
