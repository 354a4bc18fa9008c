"""What a run moves and launches, counted on the program that a device schedules, at known dims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rlx.backends.base import Options
from rlx.cost.estimate import Estimate
from rlx.device import registry
from rlx.device.device import Device
from rlx.errors import InputError, did_you_mean
from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Value
from rlx.ir.symbols import has_measured
from rlx.passes.checks import add_checks
from rlx.passes.cut import ending_at
from rlx.passes.state import guarded
from rlx.records import dataclass


@dataclass(frozen=True)
class GraphIoProfile:
    """Of one run.

    kernel_launches        kernels that start, those of loops as often as they run; on devices of libraries that are
                           handed graphs, what these are asked to compute
    launches_exact         whether that is what starts; a library may join some
    sync_points            times that the host waits
    host_input_bytes       of inputs, which go to the device
    host_output_bytes      of the outputs that were asked for, which come back
    device_traffic_bytes   what kernels read and write, each buffer once a kernel
    unified_memory         whether the device works in the processor's memory
    """

    kernel_launches: float
    launches_exact: bool
    sync_points: int
    host_input_bytes: int
    host_output_bytes: int
    device_traffic_bytes: float
    unified_memory: bool

    @property
    def host_readback_bytes(self) -> int:
        """Bytes that cross from the device's memory to the host's: none where both are one."""
        return 0 if self.unified_memory else self.host_output_bytes

    def as_dict(self) -> dict[str, Any]:
        """As data, `host_readback_bytes` too."""
        return {**asdict(self), "host_readback_bytes": self.host_readback_bytes}


Estimates = Callable[[Graph], Estimate]
"""What a run of a graph takes on the device, at the dims in question."""


def io_profile(
    graph: Graph, device: Device, options: Options, binding: Mapping[str, int], estimates: Estimates,
    outputs: Iterable[str] | None = None,
) -> GraphIoProfile:  # fmt: skip
    """The profile of a run of the program that gives back `outputs` (all if None), and nothing that only others need.
    Raises InputError for names that are none.

    Outputs whose size only a run tells count nothing.
    """
    names = list(graph.results) if outputs is None else list(outputs)
    unknown = [name for name in names if name not in graph.results]
    if unknown:
        near = did_you_mean(str(unknown[0]), graph.results)
        raise InputError(f"[io_profile] expected outputs among {list(graph.results)}, got {unknown}{near}")
    backend, ordinal = registry.backend(device)
    program = ending_at(graph, [graph.results[name] for name in names], names, advances=True)
    if backend.tells_checks and not has_measured(graph):
        checked = add_checks(program, options.check_indices, backend.loop_trips)
        program = guarded(checked, backend.writes_states).graph
    estimate = estimates(program)
    launches = None if has_measured(graph) else backend.launches(program, options, binding)
    return GraphIoProfile(
        kernel_launches=sum(kernel.calls for kernel in estimate.kernels) if launches is None else launches.count,
        launches_exact=launches is None or launches.exact,
        sync_points=estimate.syncs,
        host_input_bytes=sum(_bytes(value, binding) for value in graph.brought),
        host_output_bytes=sum(_bytes(graph.results[name], binding) for name in names),
        device_traffic_bytes=sum(kernel.nbytes for kernel in estimate.kernels),
        unified_memory=backend.unified_memory(ordinal),
    )


def _bytes(value: Value, binding: Mapping[str, int]) -> int:
    if dims.symbols(value.type.size) - binding.keys():
        return 0
    return dims.evaluate(value.type.size, binding) * value.dtype.itemsize
