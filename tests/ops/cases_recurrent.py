"""Cases of recurrent nets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ops.case import Case, array, case, specimen
from rlx.ir import dtype as dtypes

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def _net(
    name: str, what: str, sizes: tuple[int, ...] = (5, 2, 3, 4), both: bool = False, peep: bool = False,
    lengths: list[int] | None = None, dtype: Any = dtypes.f32, **attributes: Any,
) -> Case:  # fmt: skip
    """`sizes` are steps, batch, inputs and hidden."""
    steps, batch, size, hidden = sizes
    count, wide = 2 if both else 1, GATES[name] * hidden
    shapes = [(steps, batch, size), (count, wide, size), (count, wide, hidden)]
    shapes += [(count, 2 * wide), (count, batch, hidden)]
    if name == "lstm":
        shapes.append((count, batch, hidden))
        if peep or lengths is not None:
            shapes.append((count, 3 * hidden))
    arrays = [(array(shape, dtypes.f32, i) / 4).astype(dtype.numpy) for i, shape in enumerate(shapes)]
    if lengths is not None:
        arrays.append(np.array(lengths, np.int32))
    return case(name, what, *arrays, **({"direction": "bidirectional"} if both else {}), **attributes)


@specimen("lstm", "gru", "rnn")
def _recurrent(name: str) -> Iterator[Case]:
    yield _net(name, "plain")
    yield _net(name, "reverse", direction="reverse")
    yield _net(name, "both", (7, 1, 5, 20), both=True)
    yield _net(name, "wide", (3, 9, 17, 33), both=True)
    yield _net(name, "lengths", (6, 3, 4, 5), both=True, lengths=[6, 0, 4])
    yield _net(name, "clip", clip=0.5)
    yield _net(name, "nothing", (0, 2, 3, 4))
    yield _net(name, "nobody", (3, 0, 3, 4))
    functions = {"lstm": ("hardsigmoid", "softsign", "relu"), "gru": ("hardsigmoid", "scaledtanh"), "rnn": ("affine",)}
    count = len(functions[name])
    yield _net(
        name, "functions", activations=functions[name], alphas=(0.3,) * count, betas=(0.4,) * count,
    )  # fmt: skip
    yield _net(name, "others", activations=("leakyrelu", "elu", "softplus")[:count])
    for dtype in (dtypes.f64, dtypes.f16):
        yield _net(name, f"of-{dtype}", dtype=dtype)
    if name == "lstm":
        yield _net(name, "peepholes", peep=True, both=True)
        yield _net(name, "coupled", peep=True, input_forget=True)
    if name == "gru":
        yield _net(name, "linear", (7, 1, 5, 20), both=True, linear_before_reset=True)
