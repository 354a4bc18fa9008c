"""Importer functions: sampling of images at data-dependent places, col2im, reversed sequences."""

from __future__ import annotations

from rlx.frontends.onnx.measuring import measure_all, vector
from rlx.frontends.onnx.table import Known, OnnxNode, Operand, as_int, onnx_op
from rlx.ir import dim as dims
from rlx.ir.graph import Value
from rlx.ops import build

_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}


@onnx_op("GridSample")
def grid_sample(node: OnnxNode, x: Value, grid: Value) -> Value:
    mode = node.text("mode", "linear")
    if mode not in _MODES:
        raise node.wrong(f"expected a mode among {list(_MODES)}, got {mode!r}")
    padding = node.text("padding_mode", "zeros")
    return build.grid_sample(x, grid, mode=_MODES[mode], padding=padding, corners=node.flag("align_corners"))


@onnx_op("RoiAlign")
def roi_align(node: OnnxNode, x: Value, regions: Value, batch: Value) -> Value:
    """Before opset 16 regions are not moved by half an element."""
    samples = node.integer("sampling_ratio", 0)
    if samples < 1:
        raise node.unsupported("as many samples as a region is large are not supported: sampling_ratio must be given")
    old = "output_half_pixel" if node.opset < 16 else "half_pixel"
    return build.roi_align(
        x, regions, batch, height=node.integer("output_height", 1), width=node.integer("output_width", 1),
        samples=samples, scale=node.real("spatial_scale", 1.0), mode=node.text("mode", "avg"),
        half_pixel=node.text("coordinate_transformation_mode", old) == "half_pixel",
    )  # fmt: skip


@onnx_op("Col2Im")
def col2im(node: OnnxNode, x: Value, image: Operand, block: Known) -> Value:
    sides = measure_all(node, vector(image)) if image.known is None else list(image.known.reshape(-1))
    rank = len(sides)
    sizes = [as_int(node, k, "its block") for k in block.reshape(-1)]
    pads = node.integers("pads", (0,) * (2 * rank))
    return build.col2im(
        x, image=sides, block=sizes, strides=node.integers("strides", (1,) * rank),
        dilations=node.integers("dilations", (1,) * rank), low=pads[:rank], high=pads[rank:],
    )  # fmt: skip


@onnx_op("ReverseSequence")
def reverse_sequence(node: OnnxNode, x: Value, lengths: Value) -> Value:
    time, batch = node.axis(x.rank, 0, "time_axis"), node.axis(x.rank, 1, "batch_axis")
    return build.reverse_sequence(x, lengths, time_axis=time, batch_axis=batch)


@onnx_op("MaxUnpool")
def max_unpool(node: OnnxNode, x: Value, indices: Value, output_shape: Operand | None) -> Value:
    """Elements go back to where a pool took them from, all else is 0. Indices count the elements of all of the image
    that the pool would have had; a larger one that is asked for has zeros behind it."""
    kernel = node.integers("kernel_shape")
    rank = x.rank - 2
    strides, pads = node.integers("strides", (1,) * rank), node.integers("pads", (0,) * (2 * rank))
    fits = rank >= 1 and len(kernel) == len(strides) == rank and len(pads) == 2 * rank
    if not fits or any(n < 1 for n in (*kernel, *strides)) or any(n < 0 for n in pads):
        actual = f"a kernel {list(kernel)}, strides {list(strides)}, pads {list(pads)}"
        raise node.wrong(f"expected a kernel, strides and pads for the {rank} spatial axes of {x.type}, got {actual}")
    spatial = [
        dims.add(dims.mul(dims.add(d, -1), s), k - a - b)
        for d, s, k, a, b in zip(x.shape[2:], strides, kernel, pads[:rank], pads[rank:])
    ]
    shape = (*x.shape[:2], *spatial)
    count = dims.product(shape)
    zero = build.broadcast_to(node.graph.constant(0, x.dtype), shape=(count,))
    flat = node.require(indices.reshape(-1), indices, 0, count, "indices")
    y = build.scatter_elements(zero, flat, x.reshape(-1), axis=0).reshape(shape)
    if output_shape is None:
        return y
    target = (
        measure_all(node, vector(output_shape)) if output_shape.known is None else list(output_shape.known.reshape(-1))
    )
    high = [dims.add(w, dims.mul(d, -1)) for w, d in zip(target, shape, strict=True)]
    return build.pad(y, low=(0,) * len(shape), high=high)


@onnx_op("TensorScatter")
def tensor_scatter(node: OnnxNode, past: Value, update: Value, first: Value | None) -> Value:
    """`update` written along an axis of a cache, for each batch element from its own position on."""
    axis = node.axis(past.rank, -2)
    step = build.iota(
        node.graph, shape=tuple(d if i == axis else 1 for i, d in enumerate(update.shape)), dtype="i64", axis=axis
    )
    at = step if first is None else step + first.cast("i64").reshape(-1, *([1] * (past.rank - 1)))
    if node.text("mode", "linear") == "circular":
        at = build.mod(at, build.dims_tensor(node.graph, values=(past.shape[axis],)).reshape())
    return build.scatter_elements(past, build.broadcast_to(at, shape=update.shape), update, axis=axis)


@onnx_op("LRN")
def local_response_norm(node: OnnxNode, x: Value) -> Value:
    return build.local_response_norm(
        x, size=node.integer("size"), alpha=node.real("alpha", 1e-4), beta=node.real("beta", 0.75),
        bias=node.real("bias", 1.0),
    )  # fmt: skip
