"""Packs panels of matrices that are known only at run time: copied into scratch, or transposed in registers."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.codegen.simd.body import Body, lane_mask
from rlx.codegen.simd.function import memory_type, register_type
from rlx.codegen.simd.registers import Reg, Vector
from rlx.codegen.simd.transpose import transpose
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.kernel.ir.index import Linear, load


@dataclass(frozen=True)
class Source:
    """What `pack_panel` copies: slot and offset of the matrix, the panel's first column, where it goes, and its
    dtype. f16 and bf16 become f32."""

    slot: int
    offset: Linear
    column: str
    target: str
    ragged: bool
    dtype: DType = dtypes.f32


def pack_panel(body: Body, work_axes: tuple[int, int], vectors: int, extents: tuple[str, str], source: Source) -> None:
    """Copies a panel of a matrix into scratch: for every k, `vectors` vectors along n.

    What lies behind the last column is zero, or repeats the last column where the panel is transposed.

    work_axes  loop axes (k, n) that the source's offset is linear in
    extents    (k, columns left from the panel's first one)
    """
    k_axis, n_axis = work_axes
    depth, f, lanes = extents[0], body.f, body.lanes
    whole = "0"
    if source.offset.coefficient(k_axis) == 1 and source.offset.coefficient(n_axis) != 1:
        whole = f.mul(f.divide(depth, str(lanes)), str(lanes))
        if whole != "0":
            _pack_transposed(body, work_axes, vectors, (whole, extents[1]), source)
    if whole != depth:
        _pack_copied(body, work_axes, vectors, extents, source, whole)


def _pack_copied(
    body: Body, work_axes: tuple[int, int], vectors: int, extents: tuple[str, str], source: Source, first: str
) -> None:
    """From row `first` on."""
    f, lanes, scalar = body.f, body.lanes, register_type(source.dtype)
    kind = body.kind(scalar, True)
    k_axis, n_axis = work_axes
    value = load(source.slot, source.offset, source.dtype)

    def one(k: str, _: list[str]) -> list[str]:
        for j in range(vectors):
            body.push()
            body.axes[k_axis] = k
            body.axes[n_axis] = f.add(source.column, str(j * lanes))
            mask = lane_mask(body, f.sub(extents[1], str(j * lanes))) if source.ragged else None
            body.vector = Vector(n_axis, mask)
            register = body.splat(body.gen(value)).name
            if mask is not None and source.offset.coefficient(n_axis) == 0:
                register = f.value(f"select <{lanes} x i1> {mask}, {kind} {register}, {kind} zeroinitializer")
            place = f.offset(source.target, scalar, f.add(f.mul(k, str(vectors * lanes)), str(j * lanes)))
            f.emit(f"store {kind} {register}, ptr {place}, align 4")
            body.vector = None
            body.pop()
        return []

    f.loop(first, extents[0], 1, [], one)


def _pack_transposed(
    body: Body, work_axes: tuple[int, int], vectors: int, extents: tuple[str, str], source: Source
) -> None:
    """Columns lie along memory: squares of lanes x lanes elements are read along it and turned in registers."""
    f, lanes, scalar = body.f, body.lanes, register_type(source.dtype)
    kind, held = body.kind(scalar, True), body.kind(memory_type(source.dtype), True)
    k_axis, n_axis = work_axes
    last = f.smax(f.sub(extents[1], "1"), "0")

    def square(k: str, _: list[str]) -> list[str]:
        for j in range(vectors):
            rows = []
            for lane in range(lanes):
                body.push()
                inside = f.smin(str(j * lanes + lane), last)
                body.axes[k_axis], body.axes[n_axis] = k, f.add(source.column, inside)
                where = body.pointer(source.slot, source.dtype, source.offset)
                raw = f.value(f"load {held}, ptr {where}, align {min(source.dtype.itemsize, 4)}")
                rows.append(body.decode(Reg(raw, source.dtype, True)).name)
                body.pop()
            for lane, row in enumerate(transpose(body, rows, scalar)):
                place = f.add(f.mul(f.add(k, str(lane)), str(vectors * lanes)), str(j * lanes))
                f.emit(f"store {kind} {row}, ptr {f.offset(source.target, scalar, place)}, align 4")
        return []

    f.loop("0", extents[0], lanes, [], square)
