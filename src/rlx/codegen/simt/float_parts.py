"""Products of f32 on matrix units that take shorter floats: each operand as the sum of two of these, which lanes make
of what they load (`language/cuda_parts.cuh`). Errors are of the size that those of sums of f32 have.

Numbers that are not finite, or that would be infinite when shorter, spoil sums. Contractions make sums that are not
finite again, in f32: that costs next to nothing elsewhere. Attention takes such operands apart another way.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.codegen.simt.code import Code
from rlx.kernel.ir.contraction import Contraction

SUMS_AT_ONCE = 8
"""Sums whose products take turns, where a warp has so many: matrix units begin one of another sum meanwhile."""


def multiply(code: Code, left: Sequence[str], count: int, right: Sequence[str]) -> None:
    """Adds to `sums` what four lanes have of eight rows each, pairs of high and low ones, and of eight columns each: 16
    steps along k. There are `count` times eight rows, zeros behind those that are given."""
    rows = [code.let(f"in_parts<false>({piece})", "rows") for piece in left]
    rows += [code.let("Parts{}", "rows")] * (count - len(rows))
    halves = [
        array(code, "rows", [f"woven<{half}>({high}, {low})" for high, low in zip(rows[::2], rows[1::2])])
        for half in range(2)
    ]
    step = max(SUMS_AT_ONCE // (count // 2), 1)
    for at in range(0, len(right), step):
        columns = array(code, "columns", [f"in_parts<false>({piece})" for piece in right[at : at + step]])
        code.emit(f"mma_f32(sums, {at}, {', '.join(halves)}, {columns});")


def array(code: Code, name: str, elements: Sequence[str]) -> str:
    """The name of an array of operands that were taken apart."""
    made = code.fresh(name)
    code.emit(f"const Parts {made}[{len(elements)}] = {{{', '.join(elements)}}};")
    return made


def rows_apart(code: Code, chunk: int) -> tuple[str, str]:
    """Both halves of a chunk of queries, any numbers, whose rows are `high` and `low`: the left side of a product."""
    rows = ", ".join(code.let(f"in_parts<true>({name}[{chunk}])", "rows") for name in ("high", "low"))
    first, second = (code.let(f"woven<{half}>({rows})", "rows") for half in range(2))
    return first, second


def powers(code: Code) -> tuple[str, str]:
    """The powers of attention as the left side of a product with values, each half for eight keys, of which four lanes
    have two each."""
    halves = []
    for half in range(2):
        bits = (f"__float_as_uint(scores[{half}][{number}])" for number in (0, 2, 1, 3))
        halves.append(code.let(f"in_parts<false>(Piece{{{', '.join(bits)}}})", "powers"))
    return halves[0], halves[1]


def add_products(code: Code, work: Contraction, total: str, left: str, right: str) -> None:
    """Adds the products of a row and a column, at places of a tap, to a variable, one after the other."""
    k = f"k / {work.group} * {work.packed * work.group} + k % {work.group}" if work.packed else "k"
    code.emit("#pragma unroll 1")
    with code.block(f"for (int k = 0; k < {work.k}; k++)"):
        code.emit(f"{total} = fmaf(({left})[k], ({right})[{k}], {total});")
