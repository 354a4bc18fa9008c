"""Importer functions: Resize in all its forms, and Upsample before it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from rlx.frontends.onnx.measuring import length, measure, measure_all, number, vector
from rlx.frontends.onnx.table import OnnxNode, Operand, as_int, onnx_op
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Value
from rlx.ir.literal import Array
from rlx.ops import build

_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}
_SIMPLE: dict[str, Any] = {"coordinates": "asymmetric", "nearest": "floor"}
"""What Resize of opset 10 and Upsample do without being told."""


@onnx_op("Upsample", until=8)
def upsample_by_attribute(node: OnnxNode, x: Value) -> Value:
    return upsample_by_scales(node, x, node.reals("scales"))


def upsample_by_scales(node: OnnxNode, x: Value, scales: Sequence[float]) -> Value:
    """With one scale for each axis."""
    return _resize(node, x, range(x.rank), _scaled(node, x, range(x.rank), scales), _SIMPLE)


@onnx_op("Upsample", since=9)
@onnx_op("Resize", until=10)
def upsample(node: OnnxNode, x: Value, scales: Operand) -> Value:
    return _resize(node, x, range(x.rank), _by_scales(node, x, range(x.rank), scales, {}), _SIMPLE)


@onnx_op("Resize", since=11)
def resize(node: OnnxNode, x: Value, roi: Operand | None, scales: Operand | None, sizes: Operand | None) -> Value:
    """By scales or by sizes, whichever is given; an empty input counts as none."""
    listed = node.integers("axes", None)
    axes = tuple(range(x.rank)) if listed is None else node.axes(listed, x.rank)
    rules: dict[str, Any] = {
        "coordinates": node.text("coordinate_transformation_mode", "half_pixel"),
        "nearest": node.text("nearest_mode", "round_prefer_floor"),
        "cubic_a": node.real("cubic_coeff_a", -0.75),
        "exclude_outside": node.flag("exclude_outside"),
        "extrapolation": node.real("extrapolation_value", 0.0),
        "antialias": node.flag("antialias"),
    }
    if rules["coordinates"] == "tf_crop_and_resize":
        if roi is None:
            raise node.wrong("expected a region of interest for tf_crop_and_resize, got none")
        part = _floats(node, roi)
        if part is None:
            raise node.unsupported("its region of interest is known only when the graph runs")
        rules["start"], rules["end"] = part[: len(axes)], part[len(axes) :]
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if sizes is not None and sizes.shape != (0,):
        known = sizes.known
        if known is None and policy != "stretch":
            return _resize(node, x, axes, _fitted(node, x, axes, vector(sizes), policy), rules)
        listed = measure_all(node, vector(sizes)) if known is None else list(known.reshape(-1))
        return _resize(node, x, axes, _sized(node, x, axes, listed, policy), rules)
    if scales is None or scales.shape == (0,):
        raise node.wrong("expected scales or sizes, got neither")
    return _resize(node, x, axes, _by_scales(node, x, axes, scales, rules), rules)


_PARTS = 720720
"""The least number that all up to 14 divide: scales such as 0.6 or 2/3 are whole numbers of such parts."""
Targets = list[tuple[Dim, Dim, Dim]]
"""By axis: the size, and the scale as numerator and denominator."""


def _floats(node: OnnxNode, item: Operand) -> list[float] | None:
    """Floats that the import can tell."""
    array: Array | None = item.known if item.known is not None else item.value.constant
    if array is None and item.value.name in node.graph.data:
        array = node.graph.data[item.value.name]  # a weight of several numbers is a param
    if array is None or not all(isinstance(n, (int, float, np.generic)) for n in array.reshape(-1)):
        return None
    return [float(n) for n in array.reshape(-1)]


def _by_scales(node: OnnxNode, x: Value, axes: Sequence[int], scales: Operand, rules: dict[str, Any]) -> Targets:
    """By scales that the import can tell, or by what a run finds them to be, in parts of a number that many divide."""
    factors = _floats(node, scales)
    if factors is not None:
        return _scaled(node, x, axes, factors, rules)
    if "start" in rules:
        raise node.unsupported("scales of a region of interest are known only when the graph runs")
    parts = build.round(scales.value.cast("f64") * float(_PARTS)).cast("i64")
    if length(node, parts) != len(axes):
        raise node.wrong(f"expected {len(axes)} scales, got {parts.type}")
    ups = [measure(node, parts[i], lower=1) for i in range(len(axes))]
    return [(dims.floordiv(dims.mul(x.shape[axis], up), _PARTS), up, _PARTS) for axis, up in zip(axes, ups)]


def _fitted(node: OnnxNode, x: Value, axes: Sequence[int], sizes: Value, policy: str) -> Targets:
    """One scale for all axes, the least or the greatest that the sizes ask for, worked out at run time."""
    up, down = sizes[0], number(node, x.shape[axes[0]])
    for i in range(1, len(axes)):
        size, extent = sizes[i], number(node, x.shape[axes[i]])
        left, right = size * down, up * extent
        better = left < right if policy == "not_larger" else left > right
        up, down = build.select(better, size, up), build.select(better, extent, down)
    rise, fall = measure(node, up, lower=1), measure(node, down, lower=1)
    targets: Targets = []
    for axis in axes:
        doubled = dims.add(dims.mul(dims.mul(x.shape[axis], rise), 2), fall)
        targets.append((dims.floordiv(doubled, dims.mul(fall, 2)), rise, fall))
    return targets


def _scaled(
    node: OnnxNode, x: Value, axes: Sequence[int], scales: Sequence[float], rules: dict[str, Any] | None = None
) -> Targets:
    """⌊extent · scale⌋, with scales such as 0.6 taken as the short fractions that they stand for."""
    if len(scales) != len(axes) or any(not 0 < s < 1e9 for s in scales):
        raise node.wrong(f"expected {len(axes)} scales above 0, got {list(scales)}")
    rules = rules or {}
    targets: Targets = []
    for i, (axis, scale) in enumerate(zip(axes, scales)):
        near = Fraction(scale).limit_denominator(4096)
        exact = near if np.float32(near) == np.float32(scale) else Fraction(scale).limit_denominator(1 << 20)
        part = Fraction(1)
        if "start" in rules:
            part = Fraction(rules["end"][i] - rules["start"][i]).limit_denominator(1 << 20)
        grown = exact * part
        size = dims.floordiv(dims.mul(x.shape[axis], grown.numerator), grown.denominator)
        targets.append((size, exact.numerator, exact.denominator))
    return targets


def _sized(node: OnnxNode, x: Value, axes: Sequence[int], sizes: list[Dim], policy: str) -> Targets:
    if len(sizes) != len(axes):
        raise node.wrong(f"expected {len(axes)} sizes, got {sizes}")
    if policy == "stretch":
        return [(size, size, x.shape[axis]) for axis, size in zip(axes, sizes)]
    if policy not in ("not_larger", "not_smaller"):
        raise node.wrong(f"expected a known keep_aspect_ratio_policy, got {policy!r}")
    extents = [as_int(node, x.shape[axis], "an extent") for axis in axes]
    known_sizes = [as_int(node, size, "a size") for size in sizes]
    choose = min if policy == "not_larger" else max
    scale = choose(Fraction(size, extent) for size, extent in zip(known_sizes, extents))
    rounded = [(2 * extent * scale.numerator + scale.denominator) // (2 * scale.denominator) for extent in extents]
    return [(size, scale.numerator, scale.denominator) for size in rounded]


def _resize(node: OnnxNode, x: Value, axes: Sequence[int], targets: Targets, rules: dict[str, Any]) -> Value:
    mode = node.text("mode", "nearest")
    if mode not in _MODES:
        raise node.wrong(f"expected a mode among {list(_MODES)}, got {mode!r}")
    cropped = rules.get("coordinates") == "tf_crop_and_resize"
    changed = sorted(
        (axis, i)
        for i, (axis, (size, up, down)) in enumerate(zip(axes, targets))
        if cropped or size != x.shape[axis] or up != down
    )
    if not changed:
        return x
    at, order = [axis for axis, _ in changed], [i for _, i in changed]
    sizes, up, down = ([targets[i][part] for i in order] for part in range(3))
    rules = {**rules, **{name: [rules[name][i] for i in order] for name in ("start", "end") if name in rules}}
    return build.resize(x, axes=at, sizes=sizes, up=up, down=down, mode=_MODES[mode], **rules)
