"""The driver of kernel passes: every rewrite is named and counted, can be switched off (`RLX_DISABLE`), and
is one of the rewrites that `RLX_STOP_AT` counts; under `RLX_CHECK=1` the program is verified after each pass."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from rlx import flags, logs
from rlx.ir.rewriting import Context
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.verify import verify


class KernelPass(ABC):
    """Program to program, in place, with the same meaning."""

    name: str
    required = False
    """Whether the target cannot do without: such passes are not switched off, and no rewrite of them is held back."""

    @abstractmethod
    def run(self, program: Program, context: Context) -> None:
        """Rewrites the program."""

    def spend(self, context: Context, rewrite: str, kernel: Kernel) -> bool:
        """Counts a rewrite of this pass; whether it may be applied."""
        if self.required:
            context.count(self.name, rewrite, kernel.name)
            return True
        return context.spend(self.name, rewrite, kernel.name)


class LeafPass(KernelPass):
    """Puts other kernels in the place of some that compute something themselves, in branches and loops too."""

    @abstractmethod
    def matches(self, program: Program, kernel: Kernel) -> str | None:
        """The name of the rewrite that applies to a kernel, if any does."""

    @abstractmethod
    def replace(self, program: Program, kernel: Kernel) -> Sequence[Kernel]:
        """The kernels that take the place of one that matches."""

    def regions(self, program: Program) -> tuple[list[Kernel], ...]:
        """The rows of kernels that are searched."""
        return (program.prepare, program.main)

    def run(self, program: Program, context: Context) -> None:
        def rewritten(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
            for kernel in kernels:
                if kernel.work.owns_kernels:
                    yield kernel.map_children(rewritten)
                    continue
                rewrite = self.matches(program, kernel)
                if rewrite is None or not self.spend(context, rewrite, kernel):
                    yield kernel
                else:
                    yield from self.replace(program, kernel)

        for kernels in self.regions(program):
            # a pass may add kernels to `prepare` while it walks `main`
            kernels[:] = list(rewritten(tuple(kernels)))


def run_kernel_passes(program: Program, passes: Iterable[KernelPass], context: Context) -> Program:
    """Runs passes in order, those that are switched on; verifies after each under `RLX_CHECK=1`. Returns the program,
    which was changed in place."""
    check = flags.check()
    logged = logs.wanted(logs.PASSES, "passes")
    for each in passes:
        if not each.required and not context.enabled(each.name):
            continue
        before = context.report.total
        start_ns = time.perf_counter_ns()
        each.run(program, context)
        report = context.report
        report.pass_ns[each.name] = report.pass_ns.get(each.name, 0) + time.perf_counter_ns() - start_ns
        if logged:
            done, count = report.total - before, len(program.prepare) + len(program.main)
            logs.tell(logs.PASSES, "passes", f"pass {each.name}: {done} rewrites, {count} kernels")
        if check:
            verify(program, each.name)
    return program
