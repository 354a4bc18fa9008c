"""Shapes and counts that make no sense, known to the import or only to a run."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from hostile.case import FAR, I64, LEAST, MOST, F, Refused, case, gives, graph, one

X = np.arange(12, dtype="f4").reshape(4, 3)
PLACES: dict[str, tuple[str, ...]] = {"fixed": (), "run": ("run",), "computed": ("computed",)}

case("warm", lambda: graph([helper.make_node("Relu", ["x"], ["y"])], {"x": (F, [2])}, {"y": F}), [np.ones(2, "f4")],
     gives([1, 1]))  # fmt: skip


def each(
    name: str, op: str, arrays: tuple[Any, ...], at: tuple[int, ...], places: str = "fixed run computed", **more: Any
) -> None:
    """A case for each way in which the operands `at` may come: with the model, with the run, out of other nodes."""
    for place in places.split():
        keywords = {} if place == "fixed" else {place: at}
        one(f"{name}/{place}", op, *arrays, **keywords, **more)


for word, shape in {
    "huge": [FAR], "huge-product": [1 << 31, 1 << 31, 12], "overflow": [1 << 32, 1 << 32], "negative": [-5],
    "two-rests": [-1, -1], "other-count": [5, 3], "rest-does-not-divide": [-1, 5], "zero-beyond": [4, 3, 0],
    "least": [LEAST, 12], "most": [MOST],
}.items():  # fmt: skip
    each(f"reshape/{word}", "Reshape", (X, np.array(shape)), (1,), want=Refused("hostile"))
each("reshape/right", "Reshape", (X, np.array([0, -1, 1])), (1,), want=gives(X[:, :, None]))
one("reshape/allowzero-and-rest", "Reshape", X, np.array([0, -1]), allowzero=1, want=Refused("hostile"))
one("reshape/rank-of-100", "Reshape", X, np.array([12] + [1] * 100), want=Refused("rank"))
one("reshape/rank-of-100/run", "Reshape", X, np.array([12] + [1] * 100), want=Refused("rank"), run=(1,))
for word, shape in {
    "mismatch": [5, 3], "negative": [-1, 3], "huge": [FAR, 4, 3], "overflow": [1 << 32, 1 << 32, 4, 3],
    "least": [LEAST, 3],
}.items():  # fmt: skip
    each(f"expand/{word}", "Expand", (X, np.array(shape)), (1,), want=Refused("hostile"))
each("expand/right", "Expand", (X, np.array([2, 1, 1])), (1,), want=gives(np.stack([X, X])))
for word, shape in {
    "huge": [FAR], "negative": [-1], "overflow": [1 << 32, 1 << 32], "product": [1 << 20, 1 << 21], "least": [LEAST],
}.items():  # fmt: skip
    each(f"constant-of-shape/{word}", "ConstantOfShape", (np.array(shape),), (0,), want=Refused("hostile"))
_WIDE = np.zeros((6, 3), "i8")
each(
    "gather-elements/beyond-another-axis",
    "GatherElements",
    (X, _WIDE),
    (0, 1),
    "fixed run",
    axis=1,
    want=Refused("no larger"),
)
each(
    "scatter-elements/beyond-another-axis",
    "ScatterElements",
    (X, _WIDE, np.ones((6, 3), "f4")),
    (0, 1, 2),
    "fixed run",
    axis=1,
    want=Refused("no larger"),
)
each(
    "gather-elements/within",
    "GatherElements",
    (X, _WIDE[:2]),
    (0, 1),
    "fixed run",
    axis=1,
    want=gives(X[:2, :1].repeat(3, 1)),
)
one("reshape/shape-of-many", "Reshape", X, np.ones(1 << 20, "i8"), want=Refused("hostile"))
one("constant-of-shape/shape-of-many", "ConstantOfShape", np.ones(1 << 20, "i8"), want=Refused("hostile"))
for word, sizes in {"too-many": [2, 3], "too-few": [1, 1], "negative": [5, -1], "far": [FAR, 4 - FAR]}.items():
    each(f"split/{word}", "Split", (X, np.array(sizes)), (1,), outputs=2, want=Refused("hostile"))
one("split/more-outputs-than-parts", "Split", X, num_outputs=9, outputs=9, want=Refused("hostile"))
one("split/none", "Split", X, num_outputs=0, outputs=1, want=Refused("hostile"))
one("split/other-count", "Split", X, np.array([2, 2]), outputs=3, want=Refused("hostile"))
for word, (a, b, c) in {
    "no-step": (0, 5, 0), "huge": (0, FAR, 1), "least": (LEAST, MOST, 1), "overflow": (LEAST, MOST, MOST),
}.items():  # fmt: skip
    want = gives([LEAST, -1, MOST - 1]) if word == "overflow" else Refused("hostile")
    each(f"range/{word}", "Range", tuple(map(np.int64, (a, b, c))), (0, 1, 2), "fixed run", want=want)
for word, ends in {
    "nan": (0, np.nan, 1), "nan-step": (0, 5, np.nan), "nan-start": (np.nan, 5, 1), "endless": (0, np.inf, 1),
    "no-step": (0, 5, 0), "tiny-step": (0, 1e30, 1e-30), "endless-step": (0, 5, -np.inf),
}.items():  # fmt: skip
    each(f"range-f32/{word}", "Range", tuple(map(np.float32, ends)), (0, 1, 2), "fixed run",
         want=gives(np.zeros(0)) if word == "endless-step" else Refused("hostile"))  # fmt: skip
V = np.array([0, 1], "f4")
for word, depth in {"huge": FAR, "negative": -3, "least": LEAST, "most": MOST}.items():
    each(
        f"one-hot/depth-{word}",
        "OneHot",
        (np.array([0, 1]), np.int64(depth), V),
        (1,),
        "fixed run",
        want=Refused("hostile"),
    )
one("one-hot/depth-nan", "OneHot", np.array([0, 1]), np.float32(np.nan), V, want=Refused("hostile"))
one("one-hot/depth-inf", "OneHot", np.array([0, 1]), np.float32(np.inf), V, want=Refused("hostile"))
one("one-hot/values", "OneHot", np.array([0, 1]), np.int64(3), np.zeros(1, "f4"), want=Refused("hostile"))
one("one-hot/values-of-three", "OneHot", np.array([0, 1]), np.int64(3), np.zeros(3, "f4"), want=Refused("hostile"))
for word, pads in {
    "huge": [0, 0, FAR, 0], "overflow": [MOST, 0, MOST, 0], "crops-all": [-3, 0, -3, 0], "least": [LEAST, 0, 0, 0],
    "too-few": [1, 1, 1], "product": [1 << 20, 1 << 20, 0, 0],
}.items():  # fmt: skip
    each(f"pad/{word}", "Pad", (X, np.array(pads)), (1,), "fixed run", want=Refused("hostile"))
for mode in ("reflect", "edge", "wrap"):
    each(f"pad/{mode}-of-nothing", "Pad", (np.zeros((0, 3), "f4"), np.array([1, 0, 1, 0])), (1,), "fixed run",
         mode=mode, want=Refused("hostile"))  # fmt: skip
each(
    "pad/constant-of-nothing",
    "Pad",
    (np.zeros((0, 3), "f4"), np.array([1, 0, 1, 0])),
    (1,),
    "fixed run",
    want=gives(np.zeros((2, 3))),
)
one("pad/reflect-too-far", "Pad", X, np.array([0, 0, FAR, 0]), mode="reflect", want=Refused("hostile"))
one("pad/axes-twice", "Pad", X, np.array([1, 1, 1, 1]), None, np.array([0, 0]), want=Refused("hostile"))
one("pad/axis-out", "Pad", X, np.array([1, 1]), None, np.array([7]), want=Refused("hostile"))
each("pad/axis-out-late", "Pad", (X, np.array([1, 1]), None, np.array([7])), (3,), "run", want=Refused("hostile"))
each(
    "pad/axes-twice-late",
    "Pad",
    (X, np.array([1, 1, 1, 1]), None, np.array([0, -2])),
    (3,),
    "run",
    want=Refused("hostile"),
)

for word, (starts, ends, axes, steps) in {
    "axes-twice": ([0, 0], [2, 2], [0, 0], [1, 1]), "axes-twice-negative": ([0, 0], [2, 2], [0, -2], [1, 1]),
    "axis-out": ([0], [1], [2], [1]), "axis-under": ([0], [1], [-3], [1]), "no-step": ([0], [1], [0], [0]),
    "count": ([0, 0], [1], [0], [1]),
}.items():  # fmt: skip
    parts = tuple(np.array(p) for p in (starts, ends, axes, steps))
    each(f"slice/{word}", "Slice", (X, *parts), (1, 2, 3, 4), "fixed run", want=Refused("hostile"))
for word, (start, end, step, right) in {
    "least-step": (3, LEAST, LEAST, X[3:4]), "most-step": (0, MOST, MOST, X[:1]), "least-start": (LEAST, 2, 1, X[:2]),
    "all": (MOST, LEAST, -1, X[::-1]), "empty": (MOST, MOST, 1, X[:0]),
}.items():  # fmt: skip
    parts = tuple(np.array([p]) for p in (start, end, 0, step))
    each(f"slice/{word}", "Slice", (X, *parts), (1, 2, 4), "fixed run", want=gives(right))
    each(f"slice/{word}/axis", "Slice", (X, *parts), (1, 2, 3, 4), "run", want=gives(right))
for op in ("ReduceSum", "ReduceMax", "ReduceMean"):
    for word, axes in {"out": [5], "under": [-3], "twice": [0, 0], "twice-negative": [0, -2], "least": [LEAST]}.items():
        for place in ("fixed", "run") if op == "ReduceSum" else ("fixed",):
            each(f"{op}/axes-{word}", op, (X, np.array(axes)), (1,), place, want=Refused("hostile"))
for word, axis in {"out": 2, "under": -3, "least": LEAST}.items():
    each(f"cumsum/axis-{word}", "CumSum", (X, np.int64(axis)), (1,), "fixed run", want=Refused("hostile"))
for word, repeats in {
    "huge": [FAR, 1], "negative": [-1, 1], "overflow": [1 << 40, 1 << 40], "too-few": [2], "most": [MOST, MOST],
}.items():  # fmt: skip
    each(f"tile/{word}", "Tile", (X, np.array(repeats)), (1,), "fixed run", want=Refused("hostile"))
IMAGE = np.ones((1, 1, 2, 2), "f4")
for word, sizes in {
    "huge": [1, 1, FAR, 2],
    "negative": [1, 1, -2, 2],
    "zero-batch": [0, 1, 2, 2],
    "count": [1, 1, 2],
}.items():
    want = Refused("") if word != "zero-batch" else None
    each(f"resize/sizes-{word}", "Resize", (IMAGE, None, None, np.array(sizes)), (3,), "fixed run", want=want)
for word, scale in {"nan": np.nan, "endless": np.inf, "zero": 0, "negative": -1, "huge": 1e20}.items():
    each(f"resize/scales-{word}", "Resize", (IMAGE, None, np.array([1, 1, scale, 1], "f4")), (2,), "fixed run",
         want=Refused(""))  # fmt: skip
for word, k in {"too-large": 4, "negative": -1, "far": FAR, "least": LEAST}.items():
    each(f"top-k/{word}", "TopK", (X, np.array([k])), (1,), "fixed run", outputs=2, want=Refused("hostile"))
for word, axes in {"not-1": [0], "out": [4], "twice": [1, 1], "under": [-9]}.items():
    each(f"squeeze/{word}", "Squeeze", (X[:, None], np.array(axes)), (1,), "fixed run", want=Refused("hostile"))
for word, axes in {"out": [4], "twice": [0, 0], "twice-negative": [0, -4], "under": [-9]}.items():
    each(f"unsqueeze/{word}", "Unsqueeze", (X, np.array(axes)), (1,), "fixed run", want=Refused("hostile"))
for word, image in {"mismatch": [5, 6], "huge": [FAR, 5], "negative": [-5, 5]}.items():
    each(f"col2im/{word}", "Col2Im", (np.ones((1, 5, 5), "f4"), np.array(image), np.array([1, 5])), (1,), "fixed run",
         want=Refused("hostile"))  # fmt: skip
one(
    "col2im/block-of-none",
    "Col2Im",
    np.ones((1, 5, 5), "f4"),
    np.array([5, 5]),
    np.array([0, 5]),
    want=Refused("hostile"),
)
one("compress/longer", "Compress", X, np.ones(9, bool), axis=0, run=(1,), want=Refused(""))
one("compress/axis", "Compress", X, np.ones(2, bool), axis=4, run=(1,), want=Refused("hostile"))
one("eye-like/rank", "EyeLike", np.zeros((2, 2, 2), "f4"), want=Refused(""))
one("trilu/far", "Trilu", X, np.int64(MOST), run=(1,), upper=1, want=gives(np.zeros_like(X)))
one("trilu/least", "Trilu", X, np.int64(LEAST), run=(1,), upper=1, want=gives(X))
one("concat/shapes", "Concat", X, np.ones((3, 4), "f4"), axis=0, want=Refused("hostile"))
one("nonzero/of-huge", "NonZero", np.zeros((0,), "f4"), run=(0,), want=gives(np.zeros((1, 0))))
one("blackman/huge", "BlackmanWindow", np.int64(FAR), want=Refused("hostile|bytes"))
one("hann/negative", "HannWindow", np.int64(-4), want=Refused("hostile"))
one("hann/run", "HannWindow", np.int64(FAR), run=(0,), want=Refused("hostile"))
one("dft/length-huge", "DFT", np.ones((1, 4, 1), "f4"), np.int64(FAR), want=Refused("hostile"), opset=20)
one("dft/length-negative", "DFT", np.ones((1, 4, 1), "f4"), np.int64(-2), want=Refused("hostile"), opset=20)
one("stft/no-step", "STFT", np.ones((1, 64, 1), "f4"), np.int64(0), np.ones(8, "f4"), want=Refused("hostile"))
one("stft/negative-step", "STFT", np.ones((1, 64, 1), "f4"), np.int64(-8), np.ones(8, "f4"), want=Refused("hostile"))
one("mel/huge", "MelWeightMatrix", np.int64(FAR), np.int64(8), np.int64(16), np.float32(0), np.float32(8),
    want=Refused("hostile"))  # fmt: skip
one("center-crop/huge", "CenterCropPad", X, np.array([FAR, 3]), want=Refused("hostile"))
one("center-crop/negative", "CenterCropPad", X, np.array([-2, 3]), want=None)


def _two_huge_dims(op: str) -> bytes:
    """Names that the file gives no numbers; a run could bring none that fit."""
    nodes = [helper.make_node("Expand", ["x", "to"], ["big"]), helper.make_node(op, ["big", "big"], ["y"], "hostile")]
    return graph(nodes, {"x": (F, [1, 1])}, {"y": F}, {"to": np.array([1 << 20, 1 << 20])})


for op in ("Add", "MatMul", "Mul"):
    case(f"huge-value/{op}", lambda op=op: _two_huge_dims(op), [np.ones((1, 1), "f4")], Refused(""))  # type: ignore[misc]


def _reduced_to_nothing() -> bytes:
    """A value of 2^42 elements whose sum alone is asked for: no memory is needed for it, and no time should be."""
    nodes = [
        helper.make_node("Expand", ["x", "to"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["y"], "hostile", keepdims=0),
    ]
    return graph(nodes, {"x": (F, [1, 1])}, {"y": F}, {"to": np.array([1 << 21, 1 << 21])})


case("huge-value/reduced", _reduced_to_nothing, [np.ones((1, 1), "f4")], Refused(""))


def _declared(shape: list[Any]) -> bytes:
    return graph([helper.make_node("Relu", ["x"], ["y"])], {"x": (F, shape)}, {"y": F})


case("declared/negative", lambda: _declared([-3]), [np.ones(3, "f4")], gives(np.ones(3)))  # -1 is "any"
case("declared/most", lambda: _declared([MOST, MOST]), [np.ones((1, 1), "f4")], Refused(""))
case("declared/other", lambda: _declared([4]), [np.ones(3, "f4")], Refused("4"))
case("declared/rank", lambda: _declared([1] * 80), [np.ones(3, "f4")], Refused("rank"))
case("declared/code-in-a-name", lambda: _declared(["__import__('os').abort()"]), [np.ones(3, "f4")], gives(np.ones(3)))
case("declared/long-name", lambda: _declared(["n" * 100000]), [np.ones(3, "f4")], gives(np.ones(3)))


def _chain_of_expands(count: int) -> bytes:
    """Each doubles an axis: 2^count elements, of which none is ever held."""
    nodes = []
    last = "x"
    for i in range(count):
        nodes.append(helper.make_node("Concat", [last, last], [f"v{i}"], "hostile", axis=0))
        last = f"v{i}"
    nodes.append(helper.make_node("ReduceMax", [last], ["y"], keepdims=0))
    return graph(nodes, {"x": (F, [1])}, {"y": F})


case("doubling/40", lambda: _chain_of_expands(40), [np.ones(1, "f4")], Refused(""))
case("doubling/70", lambda: _chain_of_expands(70), [np.ones(1, "f4")], Refused(""))


def _squares(count: int) -> bytes:
    """A dim that is squared again and again while the graph runs."""
    nodes = [helper.make_node("Mul", ["n" if i == 0 else f"n{i - 1}"] * 2, [f"n{i}"]) for i in range(count)]
    nodes.append(helper.make_node("ConstantOfShape", [f"n{count - 1}"], ["y"], "hostile"))
    return graph(nodes, {"n": (I64, [1])}, {"y": F})


case("squares/10", lambda: _squares(10), [np.array([16])], gives(np.zeros(0)))  # integers wrap
case("squares/5", lambda: _squares(5), [np.array([3])], Refused("hostile"))


def _squared_shape(count: int) -> bytes:
    """A named dim that is squared again and again: a polynomial of degree 2^count."""
    nodes = [helper.make_node("Shape", ["x"], ["n"])]
    nodes += [helper.make_node("Mul", ["n" if i == 0 else f"n{i - 1}"] * 2, [f"n{i}"]) for i in range(count)]
    nodes.append(helper.make_node("Expand", ["x", f"n{count - 1}"], ["y"], "hostile"))
    return graph(nodes, {"x": (F, ["batch"])}, {"y": F})


def _grown_shape(count: int) -> bytes:
    """(n + 1)² again and again: so many terms that nobody could hold them."""
    nodes = [helper.make_node("Shape", ["x"], ["n"])]
    last = "n"
    for i in range(count):
        nodes += [helper.make_node("Add", [last, "one"], [f"a{i}"]), helper.make_node("Mul", [f"a{i}"] * 2, [f"n{i}"])]
        last = f"n{i}"
    nodes.append(helper.make_node("ConstantOfShape", [last], ["y"], "hostile"))
    return graph(nodes, {"x": (F, ["batch"])}, {"y": F}, {"one": np.array([1])})


case("squared-shape/10", lambda: _squared_shape(10), [np.ones(2, "f4")], Refused(""))
case("squared-shape/40", lambda: _squared_shape(40), [np.ones(2, "f4")], Refused(""))
case("grown-shape/20", lambda: _grown_shape(20), [np.ones(2, "f4")], Refused(""))
