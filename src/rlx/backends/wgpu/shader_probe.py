"""Small shaders that find out what a device does where WGSL leaves it open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.codegen.simt.code import WORKGROUP
from rlx.ir.literal import Array

if TYPE_CHECKING:
    from rlx.backends.wgpu.device import Device


class ShaderProbe:
    """A shader with arrays that it reads and writes as bindings 0, 1 … of its first group, an invocation an element."""

    def __init__(self, device: Device, shader: str) -> None:
        self.raw, self.usage = device.raw, device.wgpu.BufferUsage
        module = self.raw.create_shader_module(code=device.enabled(shader))
        self.pipeline = self.raw.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )

    def __call__(self, arrays: list[Array]) -> list[Array]:
        """What becomes of the arrays."""
        raw, usage = self.raw, self.usage.STORAGE | self.usage.COPY_SRC
        buffers: list[Any] = [raw.create_buffer_with_data(data=array, usage=usage) for array in arrays]
        entries = [
            {"binding": i, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
            for i, buffer in enumerate(buffers)
        ]
        encoder = raw.create_command_encoder()
        run = encoder.begin_compute_pass()
        run.set_pipeline(self.pipeline)
        run.set_bind_group(0, raw.create_bind_group(layout=self.pipeline.get_bind_group_layout(0), entries=entries))
        run.dispatch_workgroups(arrays[0].size // WORKGROUP, 1)
        run.end()
        raw.queue.submit([encoder.finish()])
        return [np.frombuffer(raw.queue.read_buffer(b), a.dtype) for b, a in zip(buffers, arrays)]
