"""What a run moves and starts: of the program as a device schedules it, at known dims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlx.cost.estimate import Estimate
from rlx.errors import InputError
from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Value


@dataclass(frozen=True)
class GraphIoProfile:
    """Of one run.

    kernel_launches        kernels that start, those of loops as often as they run
    sync_points            times that the host waits
    host_input_bytes       of inputs, which go to the device
    host_output_bytes      of the outputs that were asked for, which come back
    device_traffic_bytes   what kernels read and write, each buffer once a kernel
    """

    kernel_launches: float
    sync_points: int
    host_input_bytes: int
    host_output_bytes: int
    device_traffic_bytes: float


def io_profile(
    graph: Graph, estimate: Estimate, binding: Mapping[str, int], outputs: Iterable[str] | None = None
) -> GraphIoProfile:
    """The profile of a run that gives back `outputs` (all if None). Raises InputError for names that are none.

    Outputs whose size only a run tells count nothing.
    """
    wanted = list(graph.outputs) if outputs is None else list(outputs)
    unknown = [name for name in wanted if name not in graph.outputs]
    if unknown:
        raise InputError(f"[io_profile] expected outputs among {list(graph.outputs)}, got {unknown}")
    return GraphIoProfile(
        kernel_launches=sum(kernel.calls for kernel in estimate.kernels),
        sync_points=estimate.syncs,
        host_input_bytes=sum(_bytes(value, binding) for value in graph.inputs),
        host_output_bytes=sum(_bytes(graph.outputs[name], binding) for name in wanted),
        device_traffic_bytes=sum(kernel.nbytes for kernel in estimate.kernels),
    )


def _bytes(value: Value, binding: Mapping[str, int]) -> int:
    if dims.symbols(value.type.size) - binding.keys():
        return 0
    return dims.evaluate(value.type.size, binding) * value.dtype.itemsize
