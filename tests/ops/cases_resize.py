"""Cases of resizing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ops.case import FLOATS, Case, array, case, specimen
from rlx.ir import dtype as dtypes
from rlx.ops.resampling import COORDINATES, MODES, NEAREST


@specimen("resize")
def _resize(name: str) -> Iterator[Case]:
    x = array((2, 3, 5, 7))
    grown = {"axes": (2, 3), "sizes": (8, 11), "up": (8, 11), "down": (5, 7)}
    less = {"axes": (2, 3), "sizes": (3, 4), "up": (3, 4), "down": (5, 7)}
    for mode in MODES:
        for coordinates in COORDINATES:
            part = {"start": (0.1, -0.25), "end": (0.5, 1.25), "extrapolation": 7.0}
            extra = part if coordinates == "tf_crop_and_resize" else {}
            for what, sizes in (("grow", grown), ("shrink", less)):
                how = {"mode": mode, "coordinates": coordinates, **sizes, **extra}
                yield case(name, f"{mode}-{coordinates}-{what}", x, **how)
    for nearest in NEAREST:
        yield case(name, f"nearest-{nearest}", x, nearest=nearest, **less)
        yield case(name, f"ties-{nearest}", array((20,)), axes=(0,), sizes=(6,), up=(6,), down=(20,), nearest=nearest)
    for mode in ("linear", "cubic"):
        for outside in (False, True):
            how = {"mode": mode, "exclude_outside": outside}
            yield case(name, f"{mode}-outside", x, **how, **grown)
            yield case(name, f"{mode}-antialias", x, antialias=True, **how, **less)
            yield case(name, f"{mode}-antialias-grow", x, antialias=True, **how, **grown)
        for dtype in (*FLOATS, dtypes.u8, dtypes.i32):
            yield case(name, mode, array((1, 2, 5, 7), dtype), mode=mode, **grown)
    for dtype in (dtypes.bool_, dtypes.i64, dtypes.bf16):
        yield case(name, "nearest", array((1, 2, 5, 7), dtype), **grown)
    yield case(
        name, "fraction", np.arange(12, dtype=np.float32), axes=(0,), sizes=(7,), up=(3,), down=(5,), mode="linear"
    )
    yield case(name, "one", array((1, 1)), axes=(0, 1), sizes=(3, 1), up=(3, 1), down=(1, 1), mode="linear")
    yield case(name, "nothing", array((2, 3)), axes=(1,), sizes=(0,), up=(0,), down=(3,))
