"""The context of one run of passes, over graphs or kernels: what is switched off, how many rewrites are left, and what
was rewritten."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import field

from rlx import flags, logs
from rlx.records import dataclass


@dataclass
class Report:
    """What a run of passes did: how often each rewrite was applied, how long each pass took, how many nodes it left."""

    rewrites: dict[str, int] = field(default_factory=dict)
    pass_ns: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of rewrites applied."""
        return sum(self.rewrites.values())

    def __str__(self) -> str:
        lines = [f"{name}: {count}" for name, count in sorted(self.rewrites.items())]
        return "\n".join([*lines, f"{self.total} rewrites, {sum(self.pass_ns.values()) / 1e6:.1f} ms"])


class Context:
    """One run: what is switched off, how many rewrites are left, and the report."""

    def __init__(self, disable: Iterable[str] = (), stop_at: int | None = None) -> None:
        limit = flags.stop_at() if stop_at is None else stop_at
        self.disable = frozenset(disable) | frozenset(flags.disable())
        self.left = limit if limit >= 0 else sys.maxsize
        self.report = Report()
        self.settled: dict[str, object] = {}
        """The graph in which a pass has last found nothing to rewrite."""
        self.verbose = logs.wanted(logs.REWRITES, "rewrites")

    @classmethod
    def after(cls, report: Report, disable: Iterable[str] = ()) -> Context:
        """A run that goes on where another has ended: `RLX_STOP_AT` counts the rewrites of both."""
        limit = flags.stop_at()
        return cls(disable, max(limit - report.total, 0) if limit >= 0 else None)

    def enabled(self, pass_name: str, rewrite: str | None = None) -> bool:
        """Whether a pass, or one rewrite of it, is switched on."""
        return pass_name not in self.disable and (rewrite is None or f"{pass_name}/{rewrite}" not in self.disable)

    def spend(self, pass_name: str, rewrite: str, place: object) -> bool:
        """Counts a rewrite that is about to be applied somewhere; False if it is switched off or none are left."""
        if self.left <= 0 or not self.enabled(pass_name, rewrite):
            return False
        self.left -= 1
        self.count(pass_name, rewrite, place)
        return True

    def count(self, pass_name: str, rewrite: str, place: object) -> None:
        """Enters a rewrite into the report."""
        key = f"{pass_name}/{rewrite}"
        self.report.rewrites[key] = self.report.rewrites.get(key, 0) + 1
        if self.verbose:
            logs.tell(logs.REWRITES, "rewrites", f"rewrite {self.report.total} {key} at {place!r}")
