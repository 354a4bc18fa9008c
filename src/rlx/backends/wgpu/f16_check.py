"""Checks that a device's f16 behaves as rlx needs. WGSL defines neither how it rounds nor what happens to subnormal
numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlx.backends.wgpu.shader_probe import ShaderProbe
from rlx.codegen.simt.code import WORKGROUP
from rlx.ir.literal import Array

if TYPE_CHECKING:
    from rlx.backends.wgpu.device import Device

SHADER = f"""enable f16;
@group(0) @binding(0) var<storage, read_write> floats: array<f32>;
@group(0) @binding(1) var<storage, read_write> halves: array<f16>;
@group(0) @binding(2) var<storage, read_write> rounded: array<f32>;
@compute @workgroup_size({WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
  let at = group.x * {WORKGROUP}u + lane;
  let x = floats[at];
  floats[at] = f32(halves[at]);
  halves[at] = f16(x);
  rounded[at] = f32(f16(x));
}}
"""


def exact(device: Device) -> bool:
    """Whether every f16 is read as what it is, and f32s are rounded to the nearest one, ties to even, large ones to
    infinity: tried with all f16, with f32s half way between two, and with neighbours of these."""
    run = ShaderProbe(device, SHADER)
    codes = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for floats in _floats(codes):
        with np.errstate(over="ignore"):
            halves = floats.astype(np.float16)
        read, stored, rounded = run([floats, codes, np.zeros_like(floats)])
        pairs = ((read, codes), (stored, halves), (rounded, halves))
        if not all(np.array_equal(_bits(actual), _bits(expected)) for actual, expected in pairs):
            return False
    return True


def _floats(codes: Array) -> list[Array]:
    """Arrays as long as `codes` of f32s that are hard to round."""
    bits = codes.astype(np.float32).view(np.uint32)
    half = np.uint32(1 << 12)  # of the last place of a normal f16
    finite = np.isfinite(codes)
    middles = [np.where(finite, bits + np.uint32(step), bits).view(np.float32) for step in (half, half - 1, half + 1)]
    subnormal = np.linspace(-(2.0**-13), 2.0**-13, codes.size, dtype=np.float64).astype(np.float32)
    exactly_between = ((np.arange(codes.size) - codes.size // 2 + 0.5) * 2.0**-24).astype(np.float32)
    return [bits.view(np.float32), *middles, subnormal, exactly_between]


def _bits(values: Array) -> Array:
    """Values as what tells -0 from 0, with one NaN."""
    whole = values.astype(np.float32)
    return np.where(np.isnan(whole), np.float32(np.nan), whole).view(np.uint32)
