"""Products of f32 on matrix units that take shorter floats: each operand as the sum of two of these, which lanes make
of what they load (`language/cuda_parts.cuh`). Errors are of the size that those of sums of f32 have.

Numbers that are not finite, or that would be infinite when shorter, spoil sums. Contractions make sums that are not
finite again, in f32: that costs next to nothing elsewhere. Attention takes such operands apart another way.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.codegen.simt.code import Code
from rlx.kernel.ir.contraction import Contraction


def multiply(code: Code, left: Sequence[str], count: int, right: Sequence[str]) -> None:
    """Adds to `sums` what four lanes have of eight rows each, pairs of high and low ones, and of eight columns each: 16
    steps along k. There are `count` times eight rows, zeros behind those that are given."""
    rows = [code.let(f"in_parts<false>({piece})", "rows") for piece in left]
    rows += [code.let("Parts{}", "rows")] * (count - len(rows))
    columns = [code.let(f"in_parts<false>({piece})", "columns") for piece in right]
    for i, (high, low) in enumerate(zip(rows[::2], rows[1::2])):
        halves = ", ".join(code.let(f"woven<{half}>({high}, {low})", "rows") for half in range(2))
        for j, each in enumerate(columns):
            code.emit(f"mma_f32(sums[{i}][{j}], {halves}, {each});")


def rows_apart(code: Code, chunk: int) -> str:
    """Both halves of a chunk of queries, any numbers, whose rows are `high` and `low`: the left side of a product."""
    rows = ", ".join(code.let(f"in_parts<true>({name}[{chunk}])", "rows") for name in ("high", "low"))
    return ", ".join(code.let(f"woven<{half}>({rows})", "rows") for half in range(2))


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
