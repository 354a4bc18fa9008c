"""The interface of a backend: it finds its devices, reports what it supports, and compiles graphs to executables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from rlx.backends.claims import PREFER_NATIVE, Dispatch
from rlx.backends.executable import Executable
from rlx.errors import CapabilityError
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.backends.size_buckets import SizeBuckets
    from rlx.cost.estimate import Estimator, Rates
    from rlx.cost.prior import Traits
    from rlx.ir.graph import Graph, Node
    from rlx.ir.op import Op
    from rlx.passes.driver import Pass
    from rlx.passes.precision import Policy

QUANTISED = ("int8", "f8")
"""Precisions with products by weights in 8 bits, which are graphs of their own (`runtime.quantised`)."""


@dataclass(frozen=True)
class Probe:
    """The result of a cheap look: physical devices by name, or why there are none and what would help."""

    devices: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Options:
    """How to compile. `disable` holds names of passes or rewrites (`pass`, `pass/rewrite`) to leave out; `profile` adds
    what `Bound.profile` needs to the code; without `check_indices` indices that are out of range are clamped. `tiered`
    has quick code run until better code is there, where a backend makes both. Backends that hold experts in part hold
    `expert_budget` of each weight, or as many as it says by name. `precision` is what products compute in
    (`passes.precision`); `calibration` is the digest of what ranges of integers come from (`runtime.quantised`)."""

    disable: frozenset[str] = frozenset()
    threads: int | None = None
    isa: str | None = None
    cache: bool = True
    profile: bool = False
    dispatch: Dispatch = PREFER_NATIVE
    check_indices: bool = True
    tiered: bool = False
    expert_budget: int | tuple[tuple[str, int], ...] | None = None
    precision: str = "f32"
    calibration: str = ""

    def policy(self, also: tuple[type[Op], ...] = ()) -> Policy | None:
        """Which nodes compute in another dtype than the graph says. `also` are products that a backend claims."""
        from rlx.passes.precision import policy_of

        return policy_of(self.precision, also)


@dataclass(frozen=True)
class Launches:
    """Kernels that a run starts; if not `exact`, a library may join some of them."""

    count: float
    exact: bool = True


@dataclass(frozen=True)
class Unsupported:
    """One node that a backend does not support, and why."""

    node: Node
    reason: str


@dataclass
class Backend(ABC):
    """One way to run graphs. Instances are cheap; nothing heavy is imported before `compile`."""

    name: str = field(init=False)
    tells_checks: ClassVar[bool] = True
    """Whether programs can tell by one more result, of u64, what their data were; else nobody looks at indices."""
    prior_band: ClassVar[float] = 1.0
    """How far off predictions may be that go by `prior`."""
    compiles_sizes: ClassVar[bool] = False
    """Whether every size of an input with named dims, or every bucket of sizes, is a compile of its own."""
    writes_states: ClassVar[bool] = False
    """Whether programs write into the arrays of a graph's `states`; else their next values are outputs like others."""
    holds_experts: ClassVar[bool] = False
    """Whether a weight of experts can be on the device in part (`Executable.reserve`)."""
    reads_in_place: ClassVar[bool] = False
    """Whether kernels read arrays that are on the device where these lie; else a run copies them first."""
    loop_trips: ClassVar[int] = 1 << 16
    """That loops which data end may take in a run, where nobody says how many: some seconds' worth."""

    @abstractmethod
    def probe(self) -> Probe:
        """Looks for devices in well under a millisecond, importing nothing heavy."""

    def on_processor(self, ordinal: int = 0) -> bool:
        """Whether programs run on the processor, as those of the backend cpu do."""
        return False

    def full_name(self, ordinal: int = 0) -> str:
        """The product name of a device, and its important properties."""
        return self.probe().devices[ordinal]

    def identity(self, ordinal: int = 0) -> dict[str, str]:
        """What a calibration holds for: the product, and versions of drivers and libraries. It may load them."""
        return {"device": self.full_name(ordinal)}

    def calibrate(self, ordinal: int = 0, step: Callable[[str], None] = lambda name: None) -> Rates | None:
        """Measures the device, in two seconds at most; `step` hears of each measurement. None leaves it to the small
        graphs that any device runs (`backends.microbenchmarks`)."""
        return None

    def traits(self, ordinal: int = 0) -> Traits | None:
        """What probing tells of the device, as recorded profiles have it (`cost.prior`); None where there are none."""
        return None

    def prior(self, ordinal: int = 0) -> Rates | None:
        """Rates that a device with these traits should have, where it was not measured. None if nothing is known."""
        from rlx.cost.prior import predict, recorded

        traits = self.traits(ordinal)
        if traits is None:
            return None
        return predict(recorded(type(self).__module__), traits) or None

    def free_bytes(self, ordinal: int = 0) -> int | None:
        """Memory of the device that programs can still get; None where nothing tells."""
        return None

    @property
    def may_have_prior(self) -> bool:
        """Whether `prior` may know anything, without opening a device."""
        return type(self).traits is not Backend.traits or type(self).prior is not Backend.prior

    def estimator(self, graph: Graph, options: Options, rates: Rates, ordinal: int = 0) -> Estimator | None:
        """The graph made ready for predictions; None leaves it to `cost.generic`. Raises UnsupportedOp."""
        return None

    def launches(self, graph: Graph, options: Options, binding: Mapping[str, int]) -> Launches | None:
        """What a run of the graph starts, where that is not the kernels of the `estimator`."""
        return None

    def size_buckets(self, graph: Graph, options: Options) -> SizeBuckets | None:
        """Which sizes share a program, if the backend `compiles_sizes`; None where none do."""
        return None

    def unified_memory(self, ordinal: int = 0) -> bool:
        """Whether the device works in the processor's memory, so that nothing crosses a bus. It may open the device."""
        return True

    def claim(self, node: Node) -> str | None:
        """None if the backend has no kernel of its own for such composites, "" if that takes the node, else why not."""
        return None

    def passes(self, options: Options) -> list[Pass]:
        """What graphs go through before they are compiled."""
        from rlx.passes.pipeline import layout, standard

        return [*standard(options.dispatch.claims(self.claim), options.policy()), *layout()]

    def legalise(self, graph: Graph, options: Options) -> Graph:
        """The graph as this backend compiles it: simplified, and composites that it does not claim decomposed."""
        from rlx import flags
        from rlx.passes.pipeline import optimise

        return optimise(graph, self.passes(options), options.disable | frozenset(flags.disable()))[0]

    @abstractmethod
    def unsupported(self, graph: Graph) -> list[Unsupported]:
        """Nodes that `compile` would refuse; of the graph, or of what it is legalised to, with their origin as source.
        Empty means that it compiles."""

    @abstractmethod
    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        """Raises UnsupportedOp naming every node that cannot be taken, DeviceUnavailable, CompileError."""

    def code_facts(self, options: Options) -> dict[str, str]:
        """What saved code hangs on: the machine that it was made for, and versions of all that it speaks with."""
        return {}

    def code_mismatch(self, facts: Mapping[str, str], options: Options) -> str:
        """Why code that was saved with these facts does not run here; empty if it does."""
        return "this backend does not save code"

    def load_code(self, data: bytes, facts: Mapping[str, str], options: Options) -> Executable:
        """The executable of what `Executable.code` gave, where there is no misfit. Raises ModelError."""
        raise CapabilityError(f"[load_compiled] expected a backend that saves code, got {self.name}")
