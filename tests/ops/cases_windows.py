"""Cases of convolutions and windows."""

from __future__ import annotations

from collections.abc import Iterator

from ops.case import Case, array, case, specimen
from rlx.ir import dtype as dtypes


def _sizes(rank: int, **fields: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    plain = {"strides": (1,) * rank, "dilations": (1,) * rank, "low": (0,) * rank, "high": (0,) * rank}
    return {**plain, **fields}


@specimen("conv")
def _conv(name: str) -> Iterator[Case]:
    yield case(name, "plain", array((2, 3, 9, 8)), array((5, 3, 3, 3), seed=1), **_sizes(2))
    yield case(name, "padded", array((1, 4, 7, 6)), array((8, 4, 3, 3), seed=1), **_sizes(2, low=(1, 1), high=(1, 1)))
    yield case(name, "stride", array((2, 16, 9, 11)), array((49, 16, 3, 3), seed=1),
               **_sizes(2, strides=(2, 2), low=(1, 0), high=(0, 1)))  # fmt: skip
    yield case(name, "dilated", array((1, 3, 12, 12)), array((4, 3, 3, 2), seed=1), **_sizes(2, dilations=(2, 3)))
    yield case(name, "pointwise", array((2, 20, 5, 4)), array((7, 20, 1, 1), seed=1), **_sizes(2))
    yield case(name, "pointwise-stride", array((1, 6, 5, 5)), array((7, 6, 1, 1), seed=1), **_sizes(2, strides=(2, 2)))
    yield case(
        name, "groups", array((2, 6, 5, 5)), array((4, 3, 3, 3), seed=1), groups=2, **_sizes(2, low=(1, 1), high=(1, 1))
    )
    yield case(name, "depthwise", array((1, 20, 6, 7)), array((20, 1, 3, 3), seed=1), groups=20,
               **_sizes(2, strides=(1, 2), low=(1, 1), high=(1, 1)))  # fmt: skip
    yield case(name, "multiplier", array((1, 4, 6, 7)), array((12, 1, 3, 3), seed=1), groups=4, **_sizes(2))
    yield case(name, "line", array((2, 5, 40)), array((6, 5, 5), seed=1), **_sizes(1, low=(2,), high=(2,)))
    yield case(name, "frames", array((2, 1, 100)), array((10, 1, 16), seed=1), **_sizes(1, strides=(4,)))
    yield case(name, "column", array((2, 20, 40, 1)), array((6, 20, 5, 1), seed=1), **_sizes(2, strides=(2, 1)))
    yield case(
        name,
        "volume",
        array((1, 2, 4, 5, 6)),
        array((3, 2, 2, 3, 2), seed=1),
        **_sizes(3, low=(1, 0, 1), high=(0, 1, 1)),
    )
    yield case(name, "cropped", array((1, 2, 8)), array((3, 2, 3), seed=1), **_sizes(1, low=(-1,), high=(-2,)))
    yield case(name, "empty-batch", array((0, 2, 8)), array((3, 2, 3), seed=1), **_sizes(1))
    yield case(name, "special", array((1, 2, 30), special=True), array((3, 2, 3), seed=1), **_sizes(1))
    yield case(name, "last", array((2, 6, 7, 3)), array((3, 3, 3, 5), seed=1), channels_last=True, **_sizes(2))
    for dtype in (dtypes.f64, dtypes.f16, dtypes.i32):
        yield case(name, f"of-{dtype}", array((1, 3, 6, 5), dtype), array((4, 3, 2, 2), dtype, seed=1), **_sizes(2))


@specimen("conv_transpose")
def _conv_transpose(name: str) -> Iterator[Case]:
    yield case(name, "plain", array((1, 3, 4, 5)), array((3, 4, 3, 3), seed=1), **_sizes(2))
    yield case(name, "stride", array((2, 6, 4, 5)), array((6, 4, 2, 2), seed=1), **_sizes(2, strides=(2, 2)))
    yield case(name, "padded", array((1, 3, 4, 5)), array((3, 2, 3, 4), seed=1),
               extra=(1, 0), **_sizes(2, strides=(2, 3), low=(1, 0), high=(1, 2), dilations=(2, 1)))  # fmt: skip
    yield case(name, "groups", array((1, 4, 6)), array((4, 3, 3), seed=1), groups=2, **_sizes(1, strides=(2,)))


@specimen("dilate")
def _dilate(name: str) -> Iterator[Case]:
    yield case(name, "both", array((3, 4)), steps=(2, 3))
    yield case(name, "none", array((3, 4)), steps=(1, 1))
    yield case(name, "empty", array((0, 4)), steps=(2, 1))


@specimen("reduce_window")
def _reduce_window(name: str) -> Iterator[Case]:
    for combine in ("add", "max", "min"):
        yield case(name, combine, array((2, 3, 8, 9)), combine=combine, window=(3, 2),
                   **_sizes(2, strides=(2, 1), low=(1, 0), high=(1, 1), dilations=(1, 2)))  # fmt: skip
    yield case(
        name, "special", array((1, 30), special=True), combine="max", window=(3,), **_sizes(1, low=(2,), high=(2,))
    )
    yield case(name, "whole", array((2, 9), dtypes.i8), combine="max", window=(2,), **_sizes(1, strides=(2,)))


@specimen("average_pool")
def _average_pool(name: str) -> Iterator[Case]:
    yield case(name, "plain", array((1, 2, 6, 6)), window=(2, 2), **_sizes(2, strides=(2, 2)))
    for counted in (False, True):
        yield case(name, f"pads-{counted}", array((1, 2, 7, 6)), window=(3, 3), count_pads=counted,
                   **_sizes(2, strides=(2, 2), low=(1, 1), high=(1, 2)))  # fmt: skip
    yield case(
        name,
        "beyond",
        array((1, 2, 7)),
        window=(3,),
        count_pads=True,
        beyond=(1,),
        **_sizes(1, strides=(2,), high=(2,)),
    )
