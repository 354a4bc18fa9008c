"""A family of gates: two products of one side, or the halves of one product, of which an activation of one scales the
other; a norm in front, a product and a residual behind. A part of the programs of the device `cuda-emulated`."""

from __future__ import annotations

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.graph import Value
from tools.fuzz.generate import Maker, family

DTYPES = (dtypes.f16, dtypes.f16, dtypes.bf16, dtypes.bf16, dtypes.f32)
DEPTHS, WIDTHS = (16, 24, 40, 64, 64, 19), (8, 16, 24, 40, 40, 64, 72, 10)
"""Of both sides' sums, and columns of a side: mostly whole pieces and panels."""
ROWS = (1, 5, 17, 33, 40, 65)
ACTIVATIONS = ("silu", "silu", "gelu", "sigmoid", "relu", "tanh")


@family(2)
def gate(make: Maker) -> None:
    choose, chance = make.random.choice, make.chance
    dtype, depth, width = choose(DTYPES), choose(DEPTHS), choose(WIDTHS)
    rows: Dim = dims.symbol(make.symbols[0]) if make.symbols and chance(0.7) else choose(ROWS)
    x = make.leaf((*([choose((1, 2))] if chance(0.3) else []), rows, depth), dtype, what="input")
    y = _normed(make, x) if chance(0.4) else x
    if chance(0.4):
        both = _side(make, y, 2 * width)
        left, right = (make.slice(both, both.rank - 1, start, start + width) for start in (0, width))
    else:
        left, right = (_side(make, y, width) for _ in range(2))
    left, right = choose(((left, right), (right, left)))
    made = make.add(choose(("mul", "mul", "add")), make.add(choose(ACTIVATIONS), left), right)
    if chance(0.6):
        made = make.add("matmul", made, make.leaf((width, depth), dtype, what="param"))
        if chance(0.5):
            make.add("add", make.add("mul", made, 1.0 / width), x)


def _normed(make: Maker, x: Value) -> Value:
    vectors = [make.leaf((x.shape[-1],), dtypes.f32, what="param") for _ in range(2)]
    made = make.add("layer_norm", make.add("cast", x, to=dtypes.f32), *vectors, axis=-1, epsilon=1e-3)
    return make.add("cast", made, to=x.dtype)


def _side(make: Maker, x: Value, columns: int) -> Value:
    depth = x.shape[-1]
    assert isinstance(depth, int)
    y = make.add("matmul", x, make.leaf((depth, columns), x.dtype, what="param"))
    y = make.add("mul", y, 1.0 / depth) if make.chance(0.5) else y
    return make.add("add", y, make.leaf((columns,), x.dtype, what="param")) if make.chance(0.3) else y
