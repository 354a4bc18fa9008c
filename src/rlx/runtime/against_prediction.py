"""Shows a profile beside the predicted time of each kernel: it reveals wrong prices, and kernels that are slower than
necessary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from rlx.cost.estimate import KernelEstimate
from rlx.device import registry
from rlx.device.choice import Chooser
from rlx.device.policy import DevicePolicy
from rlx.errors import ProfileError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.records import dataclass
from rlx.runtime.profiler import Key, Profile, key_of
from rlx.runtime.session import Session
from rlx.runtime.signature import Signature


@dataclass(frozen=True)
class Compared:
    """What all kernels of a name and of the same nodes took in a run, and what was predicted of them; `ratio` is the
    prediction over the time, None where either is missing."""

    name: str
    sources: tuple[str, ...]
    calls: int
    took_ns: float
    predicted_ns: float | None

    @property
    def ratio(self) -> float | None:
        known = self.predicted_ns is not None and self.predicted_ns > 0 and self.took_ns > 0
        return self.predicted_ns / self.took_ns if known and self.predicted_ns is not None else None


@dataclass(frozen=True)
class Comparison:
    """The kernels of a profile, the longest first. `measured` tells whether the rates were; else they are a prior's."""

    kernels: tuple[Compared, ...]
    measured: bool

    @property
    def took_ns(self) -> float:
        return sum(kernel.took_ns for kernel in self.kernels)

    @property
    def predicted_ns(self) -> float:
        return sum(kernel.predicted_ns or 0.0 for kernel in self.kernels)

    @property
    def usual(self) -> float:
        """The median ratio: what a machine that is busy, or slower than when it was measured, has in common."""
        return median([k.ratio for k in self.kernels if k.ratio is not None] or [1.0])

    def worst(self, share: float = 0.002) -> list[Compared]:
        """Kernels of at least this share of the time, the farthest from the usual ratio first."""
        least = share * self.took_ns
        known = [(k, k.ratio) for k in self.kernels if k.ratio is not None and k.took_ns >= least]
        return [k for k, ratio in sorted(known, key=lambda pair: -abs(math.log(pair[1] / self.usual)))]


def compared(graph: Graph, inputs: Mapping[str, Array], session: Session, profiled: Profile) -> Comparison:
    """A profile of the graph on these inputs beside its prediction. Raises ProfileError where nothing predicts."""
    estimates, measured = _estimates(graph, inputs, session, profiled)
    took: dict[Key, tuple[int, float]] = {}
    for timed in profiled.kernels:
        calls, ns = took.get(key_of(timed), (0, 0.0))
        took[key_of(timed)] = calls + timed.calls, ns + timed.total_ns
    predicted = {key: estimate.ns for key, estimate in estimates.items()}
    kernels = [Compared(*key, calls, ns, predicted.get(key)) for key, (calls, ns) in took.items() if calls]
    return Comparison(tuple(sorted(kernels, key=lambda k: -k.took_ns)), measured)


def predicted_kernels(
    graph: Graph, inputs: Mapping[str, Array], session: Session, profiled: Profile
) -> dict[Key, KernelEstimate]:
    """What each kernel of a profile is expected to take; nothing for a device that nothing predicts."""
    try:
        return _estimates(graph, inputs, session, profiled)[0]
    except ProfileError:
        return {}


def _estimates(
    graph: Graph, inputs: Mapping[str, Array], session: Session, profiled: Profile
) -> tuple[dict[Key, KernelEstimate], bool]:
    """What kernels are expected to take, those of a name and of the same nodes together, and whether rates were
    measured."""
    device = registry.parse(profiled.device)
    binding = Signature(graph).binding(list(inputs.values()), graph.data)
    estimate, by = Chooser(graph, DevicePolicy(), session.options).estimate(device, binding)
    if estimate is None or by is None:
        raise ProfileError(f"[profile] expected rates to predict {device} by: `rlx devices --calibrate` measures them")
    together: dict[Key, KernelEstimate] = {}
    for kernel in estimate.kernels:
        before = together.get(key_of(kernel))
        together[key_of(kernel)] = kernel if before is None else _sum(before, kernel)
    return together, not by.is_prior


def _sum(a: KernelEstimate, b: KernelEstimate) -> KernelEstimate:
    return replace(
        a, ns=a.ns + b.ns, compute_ns=a.compute_ns + b.compute_ns, memory_ns=a.memory_ns + b.memory_ns,
        flops=a.flops + b.flops, nbytes=a.nbytes + b.nbytes, calls=a.calls + b.calls,
    )  # fmt: skip
