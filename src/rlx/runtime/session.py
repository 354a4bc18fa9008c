"""Session: the choice of a device and of options, and the compile step."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from rlx import flags
from rlx.arguments import methods_checked
from rlx.backends.base import QUANTISED, Options
from rlx.errors import GraphError, OptionError, UnsupportedOp, did_you_mean
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.program import Inputs, Program
from rlx.runtime.signature import Signature

if TYPE_CHECKING:
    from rlx.backends.base import Unsupported
    from rlx.device.device import Device
    from rlx.device.policy import DevicePolicy
    from rlx.ir.graph import Graph
    from rlx.runtime.chain import DeviceChain
    from rlx.runtime.graph_devices import GraphDevices
    from rlx.runtime.quantised import Calibration
    from rlx.runtime.tuning import Tuning


Precision = Literal["f32", "f32_fast", "f16", "bf16", "int8", "f8"]


@methods_checked(but=("compile", "meant"))
class Session:
    """Compiles graphs for one device.

    device    a name such as `cpu`, `vulkan:1`, `reference`; `auto` chooses among the devices that support the graph,
              under the policy of RLX_DEVICES and similar variables; a list is a chain, of which the first device is
              used that compiles the graph
    disable   passes or rewrites to leave out (`pass`, `pass/rewrite`), in addition to those of RLX_DISABLE
    threads   threads of the CPU backend; None uses RLX_NUM_THREADS
    isa       instruction set of the CPU backend; None uses RLX_CPU_ISA
    cache     whether to read and write the compile cache on disk; None uses RLX_CACHE
    compile   `meanwhile` runs quickly compiled code until better code is ready; with `before` the first run waits for
              that; None uses RLX_TIERS
    expert_budget   how many experts of each weight of a mixture a device with memory of its own holds, of those devices
              that can hold some only; others come from the host when rows choose them. None is all
    precision   the dtype in which products, convolutions and attention of f32 take their operands: `f32`, or `f16` or
              `bf16`, whose sums are still of f32. Matrix units of GPUs are many times as fast with those, and weights
              take half the memory; results have three digits. `f32_fast` is f32 with errors of the same size, and lets
              matrix units make products of several ones of shorter floats: on `cuda`, of three of TF32; f32 elsewhere.
              With `int8` products with weights are of bytes, with `f8` of floats of 8 bits (f8e4m3) with sums of f32,
              which matrix units of `cuda` multiply from compute capability 8.9 on
    calibration   of `int8` and `f8`: inputs of typical runs, each as `run` takes them. Operands of products then have
              the ranges that they have in these; without, each row's own, which every run looks for
    check_indices   whether a data-dependent index out of range is an error; otherwise it is clamped. None uses
              RLX_CHECK_INDICES

    Raises DeviceUnavailable for a device that is not available, OptionError, FlagError.
    """

    calibration: tuple[Any, ...] = ()

    def __init__(
        self,
        device: str | Sequence[str | Device] = "auto",
        *,
        disable: str | Iterable[str] = (),
        threads: int | None = None,
        isa: str | None = None,
        cache: bool | None = None,
        check_indices: bool | None = None,
        compile: Literal["meanwhile", "before"] | None = None,
        expert_budget: int | None = None,
        precision: Precision = "f32",
        calibration: Calibration | None = None,
    ) -> None:
        self.device = device if isinstance(device, str) else AUTO
        self.devices_in_turn = () if isinstance(device, str) else _parsed(device)
        isa = isa or flags.cpu_isa()
        self.options = Options(
            disable=frozenset([disable] if isinstance(disable, str) else disable) | frozenset(flags.disable()),
            threads=_checked_threads(threads) or flags.num_threads() or None,
            isa=None if isa == "auto" else isa,
            cache=flags.cache() if cache is None else cache,
            check_indices=flags.check_indices() if check_indices is None else check_indices,
            tiered=flags.tiers() if compile is None else _is_tiered(compile),
            expert_budget=_checked_budget(expert_budget),
            precision=precision,
        )
        if precision != "f32":
            self.options.policy()  # so that one that there is not is told of now
        if calibration is not None:
            from rlx.runtime import quantised

            self.calibration = quantised.checked(calibration, precision)
            self.options = replace(self.options, calibration=quantised.digest_of(self.calibration))
        if self.options.disable:
            from rlx.device import switches

            switches.check(self.options.disable)
        if self.device not in (AUTO, "cpu"):  # the processor is always here
            from rlx.device import registry

            registry.backend(self.device)  # so that one that is not here is told of now

    def __repr__(self) -> str:
        return f"<Session on {', '.join(map(str, self.devices_in_turn)) or self.device}>"

    def with_options(self, options: Options) -> Session:
        """A session for the same device with other options."""
        session = copy.copy(self)
        session.options = options
        return session

    def on(self, device: str, options: Options) -> Session:
        """A session for one device with other options."""
        session = self.with_options(options)
        session.device, session.devices_in_turn = device, ()
        return session

    def compile(self, graph: Graph, inputs: Inputs | None = None) -> CompiledGraph:
        """Compiles the graph for the session's device, with the weights that the graph contains.

        inputs   arrays of the expected sizes; `auto` then chooses the device for these, otherwise for usual sizes

        Raises UnsupportedOp that names every node that the device does not support, DeviceUnavailable, CompileError.
        """
        if not hasattr(graph, "outputs") or not hasattr(graph, "nodes"):  # its class is not imported for this
            made = "rlx.load opens models, which compile themselves, and rlx.jit compiles functions"
            raise GraphError(f"[session] expected a rlx.Graph, got {type(graph).__name__}: {made}")
        if not graph.outputs:
            raise GraphError(f"[session] expected a graph with outputs (graph.output declares them), got {graph!r}")
        graph = self.meant(graph)
        if self.device == AUTO:
            return self._compile_chosen(graph, inputs)
        try:
            return self._compile_for(self.device, graph)
        except UnsupportedOp as error:
            from rlx.device import registry
            from rlx.device.support import refused_nodes

            backend, _ = registry.backend(self.device)
            reason = _refusal(self.device, graph, refused_nodes(graph, backend)) or str(error)
            raise UnsupportedOp(f"[session] {reason}") from None

    def meant(self, graph: Graph) -> Graph:
        """The graph that is compiled for a graph: one of integers, or of floats of 8 bits, where the session's
        precision is of these. It stands for itself. Raises InputError for a calibration that the graph does not take,
        or that was written to."""
        if self.options.precision not in QUANTISED:
            return graph
        from rlx.runtime import quantised

        if self.calibration:
            quantised.check_unchanged(self.calibration, self.options.calibration)
        return quantised.quantised(graph, self.calibration, self.options.disable, self.options.precision)

    def _compile_for(self, device: str, graph: Graph) -> CompiledGraph:
        from rlx.device import registry
        from rlx.runtime.compiler import Compiler

        backend, ordinal = registry.backend(device)
        compiler = Compiler(device, backend, self.options, ordinal)
        return CompiledGraph(Program(graph, device, compiler.compile(graph), compiler, graph.data))

    def _compile_chosen(self, graph: Graph, inputs: Inputs | None) -> CompiledGraph:
        """For the device of the policy. Where that is certain, nothing is imported that compares devices."""
        from rlx.device.policy import at_once

        policy = self._policy()
        certain = at_once(policy)
        if certain is not None:
            try:
                return self._compile_for(str(certain), graph)
            except UnsupportedOp:
                pass  # another device may support the graph, or an error says of each why it does not
        devices = self._devices(graph)
        if _follows_chain(policy):
            return devices.compile_chain()
        return devices.compile_resolved(inputs=inputs)

    def tune(self, graph: Graph, inputs: Inputs, seconds: float = 20.0) -> Tuning:
        """Searches for faster schedules of the graph's kernels on the CPU for these inputs, for about so many seconds
        (Ctrl-C ends it sooner). What is found is kept in the cache on disk, for every program with such a kernel that
        is compiled from then on; `rlx tune --forget` drops it.

        Raises OptionError for another device, and what `compile` and `run` raise.
        """
        from rlx.runtime.tuning import Search

        if self.device not in (AUTO, "cpu"):
            raise OptionError(f"[tune] expected device cpu, whose kernels are searched, got {self.device!r}")
        meant = self.meant(graph)
        Signature(meant).arrays(inputs)  # what is wrong is told before anything is compiled
        return Search(lambda o: self.on("cpu", o)._compile_for("cpu", meant), inputs, self.options, seconds).run()

    def chooses(self, device: str) -> bool:
        """Whether the device is certain before the graph is known, if it supports the graph: it is named, or nothing
        else may be quicker."""
        if self.device != AUTO:
            return self.device == device
        if self.devices_in_turn:
            return False
        from rlx.device import registry
        from rlx.device.policy import DevicePolicy, at_once

        return not registry.has_plugins() and str(at_once(DevicePolicy.from_env())) == device

    def devices(self, graph: Graph) -> GraphDevices:
        """The graph on all devices that the policy of the environment allows, with the session's options."""
        return self._devices(self.meant(graph))

    def _devices(self, graph: Graph) -> GraphDevices:
        from rlx.runtime.graph_devices import GraphDevices

        return GraphDevices(graph, self._policy(), self.options)

    def chain(self, graph: Graph, continued: CompiledGraph | None = None) -> DeviceChain | None:
        """The graph on the session's chain of devices; None if the session has none, or none with the device of
        `continued`, the program that it begins with if there is one."""
        if self.device != AUTO or not (self.devices_in_turn or flags.device_flags("RLX")["DEVICE_CHAIN"]()):
            return None
        policy = self._policy()
        if not _follows_chain(policy) or (continued and continued.device not in map(str, policy.chain)):
            return None
        from rlx.runtime.chain import DeviceChain

        return DeviceChain(self.devices(graph), continued)

    def _policy(self) -> DevicePolicy:
        from rlx.device.policy import DevicePolicy

        policy = DevicePolicy.from_env()
        if self.devices_in_turn:
            return replace(policy, chain=self.devices_in_turn, hint=None)
        return policy if self.device == AUTO else policy.only(self.device)


AUTO = "auto"


def _checked_threads(threads: int | None) -> int | None:
    if threads is not None and (type(threads) is not int or threads < 0):
        raise OptionError(f"[session] expected a number of threads, or 0 or None for all, got {threads!r}")
    return threads


def _checked_budget(budget: int | None) -> int | None:
    if budget is not None and (type(budget) is not int or budget < 1):
        raise OptionError(f"[session] expected an expert_budget of at least 1, got {budget!r}")
    return budget


def _follows_chain(policy: DevicePolicy) -> bool:
    return bool(policy.chain) and policy.hint is None and policy.force is None


def _parsed(devices: Sequence[str | Device]) -> tuple[Device, ...]:
    from rlx.device import registry

    if not isinstance(devices, Sequence):
        raise OptionError(f"[session] expected the name of a device, or a list of names, got {devices!r}")
    parsed = tuple(dict.fromkeys(registry.parse(device) for device in devices))
    if not parsed:
        raise OptionError("[session] expected a device, or a list of at least one, got an empty list")
    return parsed


def _is_tiered(compile: str) -> bool:
    if compile not in ("meanwhile", "before"):
        near = did_you_mean(str(compile), ("meanwhile", "before"))
        raise OptionError(f"[session] expected compile to be 'meanwhile' or 'before', got {compile!r}{near}")
    return compile == "meanwhile"


def _refusal(device: str, graph: Graph, refused: list[Unsupported]) -> str:
    """All nodes that the device does not support, one per line; empty if it names none."""
    if not refused:
        return ""
    lines = [f"{u.node.op.name} at node {(u.node.source or u.node.name)!r}: {u.reason}" for u in refused]
    return f"{device} cannot take {len(refused)} of {len(graph.nodes)} nodes:\n    " + "\n    ".join(lines)
