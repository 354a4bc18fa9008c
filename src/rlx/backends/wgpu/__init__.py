"""The WebGPU backends: one generator of WGSL for Vulkan, OpenGL, DirectX and Metal, through the wgpu library.

`drivers.py` looks for drivers cheaply, `device.py` opens adapters, `claims.py` says which composites have a shader of
their own, `build.py` makes shaders of a graph, `layout.py` says where buffers lie, `executable.py` runs,
`timers.py` times.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from typing import Any

from rlx.backends.base import Backend, Options, Probe, Unsupported
from rlx.backends.executable import Executable
from rlx.backends.wgpu import drivers
from rlx.cost.estimate import Estimator, Rates
from rlx.errors import DeviceUnavailable
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Node

EXTRA = "pip install 'rlx[gpu]'"


class WgpuBackend(Backend):
    """Common part of the backends that go through wgpu.

    adapter_type   the kind of driver as wgpu calls it, None for whichever is best
    portable       keep to the limits that every WebGPU device has
    """

    adapter_type: str | None = None
    portable: bool = False
    loop_trips = 1 << 13  # each is waited for
    writes_states = True
    holds_experts = True

    def look(self) -> tuple[str, ...]:
        """What drivers may find."""
        raise NotImplementedError

    def probe(self) -> Probe:
        if importlib.util.find_spec("wgpu") is None:
            return Probe(reason=f"the package wgpu is not installed: {EXTRA}")
        devices = self.look()
        return Probe(devices=devices) if devices else Probe(reason=self.missing())

    def missing(self) -> str:
        """Why no driver was found, and what helps."""
        raise NotImplementedError

    def calibrate(self, ordinal: int = 0, step: Callable[[str], None] = lambda name: None) -> Rates:
        from rlx.backends.microbenchmarks import calibrate
        from rlx.backends.wgpu import cost
        from rlx.backends.wgpu.device import open_device

        common = calibrate(self, ordinal, step)
        target = open_device(self.adapter_type, ordinal, self.portable).target()
        return common | cost.calibrate(self, ordinal, step, common, target)

    def estimator(self, graph: Graph, options: Options, rates: Rates, ordinal: int = 0) -> Estimator:
        from rlx.backends.wgpu.cost import WgpuEstimator

        return WgpuEstimator(graph, options, rates)

    def unified_memory(self, ordinal: int = 0) -> bool:
        return bool(self._adapter(ordinal)["adapter_type"] in ("IntegratedGPU", "CPU"))

    def full_name(self, ordinal: int = 0) -> str:
        """By the adapter, where the library finds one; drivers alone tell little."""
        try:
            info = self._adapter(ordinal)
        except DeviceUnavailable:
            return super().full_name(ordinal)
        return f"{info['device']}, {info['description']}" if info["description"] else str(info["device"])

    def identity(self, ordinal: int = 0) -> dict[str, str]:
        from importlib.metadata import version

        info = self._adapter(ordinal)
        keys = {"device": "device", "driver": "description", "interface": "backend_type", "kind": "adapter_type"}
        return {**{name: str(info[key]) for name, key in keys.items()}, "wgpu": version("wgpu")}

    def _adapter(self, ordinal: int) -> Mapping[str, Any]:
        """What the library tells of an adapter: asked once, as that loads drivers. Raises DeviceUnavailable."""
        from rlx.backends.wgpu.device import adapter_info

        return adapter_info(self.adapter_type, ordinal)

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        from rlx.backends.wgpu import build

        return build.unsupported(graph)

    def claim(self, node: Node) -> str | None:
        from rlx.backends import simt_claims

        return simt_claims.claim(node)

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        from rlx.backends.wgpu import build
        from rlx.backends.wgpu.device import open_device
        from rlx.backends.wgpu.executable import WgpuExecutable

        start = time.perf_counter_ns()
        device = open_device(self.adapter_type, ordinal, self.portable)
        target = device.target(halves=build.computes_in(graph, dtypes.f16))
        plan = build.build(graph, options, device.max_binding, target)
        executable = WgpuExecutable(plan, device, options.profile)
        executable.compile_ns = time.perf_counter_ns() - start
        return executable


class VulkanBackend(WgpuBackend):
    name = "vulkan"
    adapter_type = "Vulkan"

    def look(self) -> tuple[str, ...]:
        return drivers.vulkan()

    def missing(self) -> str:
        return (
            "no Vulkan loader or driver found (libvulkan.so.1 and a manifest in vulkan/icd.d): install the graphics "
            "driver, or for software rendering mesa-vulkan-drivers and libvulkan1"
        )


class OpenGlBackend(WgpuBackend):
    name = "opengl"
    adapter_type = "OpenGL"

    def look(self) -> tuple[str, ...]:
        return drivers.opengl()

    def missing(self) -> str:
        return "no OpenGL library found (libEGL.so.1): install the graphics driver, or libegl1 and libgl1-mesa-dri"


class DirectXBackend(WgpuBackend):
    name = "directx"
    adapter_type = "D3D12"

    def look(self) -> tuple[str, ...]:
        return drivers.directx()

    def missing(self) -> str:
        return "DirectX 12 is there on Windows only"


class MetalBackend(WgpuBackend):
    name = "metal"
    adapter_type = "Metal"

    def look(self) -> tuple[str, ...]:
        return drivers.metal()

    def missing(self) -> str:
        return "Metal is there on Apple systems only"


class GpuBackend(WgpuBackend):
    """The best adapter there is: discrete before integrated before software, Metal before Vulkan before the others."""

    name = "gpu"
    looks: tuple[Callable[[], tuple[str, ...]], ...] = (drivers.metal, drivers.vulkan, drivers.directx)

    def look(self) -> tuple[str, ...]:
        """OpenGL's are the same products, and count only where there are no others."""
        return tuple(name for look in self.looks for name in look()) or drivers.opengl()

    def missing(self) -> str:
        return "no driver of Vulkan, OpenGL, DirectX or Metal found: install the graphics driver"


class WebGpuBackend(GpuBackend):
    """The same within the limits that the WebGPU standard promises everywhere."""

    name = "webgpu"
    portable = True


BACKENDS: dict[str, type[WgpuBackend]] = {
    kind.name: kind for kind in (VulkanBackend, OpenGlBackend, DirectXBackend, MetalBackend, GpuBackend, WebGpuBackend)
}
