"""Checks that a device's subgroups are as shaders assume: a power of two of lanes, numbered consecutively, all of which
exchange values. WGSL guarantees none of this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlx.backends.wgpu.shader_probe import ShaderProbe
from rlx.codegen.simt.code import WORKGROUP

if TYPE_CHECKING:
    from rlx.backends.wgpu.device import Device

GROUPS = 64
"""Workgroups that are asked."""
SHADER = f"""@group(0) @binding(0) var<storage, read_write> sizes: array<u32>;
@group(0) @binding(1) var<storage, read_write> places: array<u32>;
@group(0) @binding(2) var<storage, read_write> others: array<u32>;
@compute @workgroup_size({WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32,
        @builtin(subgroup_size) size: u32, @builtin(subgroup_invocation_id) place: u32) {{
  let at = group.x * {WORKGROUP}u + lane;
  sizes[at] = size;
  places[at] = place;
  others[at] = subgroupShuffleXor(lane, select(0u, size / 2u, size <= {WORKGROUP}u));
}}
"""


def usable(device: Device) -> bool:
    """Whether subgroups are as above."""
    nothing = np.zeros(GROUPS * WORKGROUP, np.uint32)
    sizes, places, others = ShaderProbe(device, SHADER)([nothing] * 3)
    size = int(sizes[0])
    if size < 1 or WORKGROUP % size or not (sizes == size).all():
        return False
    lanes = np.tile(np.arange(WORKGROUP, dtype=np.uint32), GROUPS)
    return bool((places == lanes % size).all() and (others == lanes ^ np.uint32(size // 2)).all())
