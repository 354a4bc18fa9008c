"""Resize and Upsample: against onnxruntime in every mode, with sizes known and not, and where ties decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from build import F, model, one
from onnx import helper

import rlx
from support import isa_of, kind_of

MODES = ("nearest", "linear", "cubic")
PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")


def peer(proto: onnx.ModelProto, *arrays: Any) -> Any:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), arrays)))[0]


def resizing(shape: tuple[Any, ...], opset: int = 19, **attributes: Any) -> onnx.ModelProto:
    """x is resized by `scales` or to `sizes`, whichever of the two is among the attributes."""
    initialisers = {n: np.asarray(attributes.pop(n)) for n in ("scales", "sizes") if n in attributes}
    names = ["x", "", "scales" if "scales" in initialisers else "", "sizes" if "sizes" in initialisers else ""]
    while not names[-1]:
        names.pop()
    return model(
        [helper.make_node("Resize", names, ["y"], **attributes)], {"x": (F, shape)}, {"y": F}, initialisers, opset
    )


def image(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype("f4")


def ours(proto: onnx.ModelProto, device: str, *arrays: Any) -> Any:
    model = proto.SerializeToString()
    return rlx.load(model, device=kind_of(device), isa=isa_of(device), cache=False).run(list(arrays))[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_mode_is_what_onnxruntime_does(mode: str, place: str, dynamic: bool, device: str) -> None:
    """Sizes that grow and that shrink, and scales; those of nearest such that no tie comes."""
    x = image(1, 2, 9, 13)
    shape: tuple[Any, ...] = (1, 2, "h", "w") if dynamic else x.shape
    targets: list[dict[str, Any]] = [{"scales": np.array([1, 1, 2, 3], "f4")}, {"sizes": np.array([1, 2, 16, 17])}]
    targets.append({"sizes": np.array([1, 2, 4, 5])})
    for target in targets:
        proto = resizing(shape, mode=mode, coordinate_transformation_mode=place, **target)
        np.testing.assert_allclose(ours(proto, device, x), peer(proto, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(("antialias", "outside"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_sizes_unknown_are_as_sizes_known(mode: str, antialias: int, outside: int, device: str) -> None:
    x = image(2, 1, 11, 8)
    how = {"mode": mode, "antialias": antialias, "exclude_outside": outside}
    for target in ({"sizes": np.array([2, 1, 5, 20])}, {"scales": np.array([1, 1, 0.6, 1.5], "f4")}):
        known = ours(resizing(x.shape, **how, **target), device, x)
        late = ours(resizing((2, 1, "h", "w"), **how, **target), device, x)
        np.testing.assert_allclose(late, known, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_ties_are_exact(nearest: str, dynamic: bool, device: str) -> None:
    """20 → 6: elements 1 and 4 lie in the middle between two."""
    expected = {
        "floor": [1, 4, 7, 11, 14, 17],
        "ceil": [2, 5, 8, 12, 15, 18],
        "round_prefer_floor": [1, 4, 8, 11, 14, 18],
        "round_prefer_ceil": [1, 5, 8, 11, 15, 18],
    }
    proto = resizing(("n",) if dynamic else (20,), sizes=np.array([6]), nearest_mode=nearest)
    assert ours(proto, device, np.arange(20, dtype="f4")).tolist() == expected[nearest]


def test_before_opset_11_places_are_asymmetric() -> None:
    x = np.arange(6, dtype="f4").reshape(1, 1, 2, 3)
    scales = np.array([1, 1, 2, 2], "f4")
    expected = np.repeat(np.repeat(x, 2, 2), 2, 3)
    np.testing.assert_array_equal(one("Upsample", x, scales, opset=9, fixed=[1]), expected)
    np.testing.assert_array_equal(one("Resize", x, scales, opset=10, fixed=[1]), expected)
    np.testing.assert_array_equal(one("Upsample", x, opset=7, scales=[1.0, 1.0, 2.0, 2.0]), expected)


def test_a_size_hangs_on_another_input(device: str) -> None:
    """x is brought to the height and width of another image, as feature pyramids do."""
    nodes = [
        helper.make_node("Shape", ["like"], ["s"]),
        helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="linear"),
    ]
    proto = model(nodes, {"x": (F, (1, 2, "h", "w")), "like": (F, (1, 2, "H", "W"))}, {"y": F})
    for height, width in ((6, 10), (3, 4), (9, 2)):
        x, like = image(1, 2, 5, 7), image(1, 2, height, width)
        np.testing.assert_allclose(ours(proto, device, x, like), peer(proto, x, like), rtol=1e-4, atol=1e-5)
