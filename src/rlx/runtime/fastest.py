"""Finds the fastest device for a graph in one call."""

from __future__ import annotations

from rlx.arguments import checked
from rlx.device import registry
from rlx.device.device import HELPERS, Device
from rlx.device.policy import DevicePolicy
from rlx.errors import DeviceUnavailable
from rlx.ir.graph import Graph
from rlx.runtime.graph_devices import GraphDevices
from rlx.runtime.program import Inputs


@checked
def fastest_device(
    graph: Graph | None = None, inputs: Inputs | None = None, policy: DevicePolicy | None = None
) -> Device:
    """The device that is predicted the fastest for a graph, at the sizes of these inputs. Without a graph it is the
    strongest kind that is here, as far as the policy (that of the environment if None) lets it be chosen.

    Raises DeviceUnavailable, UnsupportedOp.
    """
    rules = DevicePolicy.from_env() if policy is None else policy
    if graph is not None:
        return GraphDevices(graph, rules).fastest(inputs)
    here = [d for d in rules.candidates() if registry.is_available(d) and not rules.why_refused(d)]
    real = [d for d in here if d.kind not in HELPERS]
    if not here:
        raise DeviceUnavailable(
            f"[device] expected a device that the policy admits, got none; {registry.available_text()}"
        )
    return (real or here)[0]
