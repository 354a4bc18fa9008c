"""What a kernel of the CPU does at known dims, in the units that `rates.py` prices."""

from __future__ import annotations

from dataclasses import field

from rlx.records import dataclass

Amounts = dict[str, float]
"""Amounts of work by the name of their rate."""


@dataclass
class KernelWork:
    """A kernel at known dims: amounts, cycles that bodies wait for their own results, bytes that it touches (`warm` as
    in `Footprint`) and how many times as long as streamed ones these take, floating-point operations, pieces that
    threads may share, and its kind as in `KernelEstimate`."""

    amounts: Amounts = field(default_factory=dict)
    waits: float = 0.0
    flops: float = 0.0
    warm_bytes: float = 0.0
    total_bytes: float = 0.0
    slowness: float = 1.0
    pieces: float = 1.0
    kind: str = "elementwise"

    def add(self, name: str, amount: float) -> None:
        if amount:
            self.amounts[name] = self.amounts.get(name, 0.0) + amount
