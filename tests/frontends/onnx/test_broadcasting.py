"""Open dims of models that prove to be 1 against others, against onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from build import BOOL, I64, F, model
from onnx import helper, numpy_helper

import rlx
from rlx.errors import InputError, ModelError, ShapeError

DEVICES = ("reference", "cpu")


def node(op: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def f(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


def same(actual: list[Any], expected: list[Any]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


SPLIT = {"all": np.array([0, -1, 2]), "begin": np.array([-1]), "end": np.array([1 << 40]), "flat": np.array([-1])}
# nodes, inputs, outputs
MODELS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], dict[str, int]]] = {
    "shape arithmetic on the sum": (
        [
            node("Add", ["x", "y"], "z"),
            node("Shape", ["z"], "shape"),
            node("Reshape", ["z", "all"], "split"),
            node("Slice", ["z", "begin", "end"], "last"),
            node("Reshape", ["z", "flat"], "row"),
        ],
        {"x": (F, ("n", 4)), "y": (F, ("m", 4))},
        {"z": F, "shape": I64, "split": F, "last": F, "row": F},
    ),
    "three": (
        [node("Add", ["x", "y"], "s"), node("Mul", ["s", "w"], "p"), node("Sub", ["p", "x"], "z")],
        {"x": (F, ("n", 4)), "y": (F, ("m", 4)), "w": (F, ("k", 4))},
        {"z": F},
    ),
    "where": (
        [node("Where", ["c", "x", "y"], "z")],
        {"c": (BOOL, ("n", 1)), "x": (F, ("m", 4)), "y": (F, ("k", 4))},
        {"z": F},
    ),
    "products of batches": (
        [node("MatMul", ["x", "y"], "p"), node("Add", ["p", "w"], "s"), node("Softmax", ["s"], "z", axis=-1)],
        {"x": (F, ("n", 2, 3)), "y": (F, ("m", 3, 5)), "w": (F, ("k", 1, 5))},
        {"z": F},
    ),
    "gemm": (
        [node("Gemm", ["x", "y", "w"], "g", alpha=0.5), node("Relu", ["g"], "z")],
        {"x": (F, ("n", 3)), "y": (F, (3, 4)), "w": (F, ("m", 4))},
        {"z": F},
    ),
    "expand both ways": (
        [node("Shape", ["y"], "s"), node("Expand", ["x", "s"], "e"), node("Neg", ["e"], "z")],
        {"x": (F, ("n", 4)), "y": (F, ("m", 1))},
        {"z": F},
    ),
    "maximum of three": (
        [node("Max", ["x", "y", "w"], "t"), node("Concat", ["t", "t"], "z", axis=0)],
        {"x": (F, ("n", 4)), "y": (F, ("m", 4)), "w": (F, ("k", 1))},
        {"z": F},
    ),
}
COMBINED = [(3, 3, 3), (1, 3, 3), (3, 1, 3), (3, 3, 1), (1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, device: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    nodes, inputs, outputs = MODELS[name]
    proto = model(nodes, inputs, outputs, SPLIT if name.startswith("shape") else None)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    loaded = rlx.load(proto.SerializeToString(), device=device)
    used = {d for _, shape in inputs.values() for d in shape}
    several = [s for s in COMBINED if "k" in used or s[2] == 3]
    if name == "gemm":  # its third operand spreads, but does not make it larger
        several = [(3, 3, 0), (3, 1, 0), (1, 1, 0)]
    for sizes in several:
        known = dict(zip("nmk", sizes))
        arrays = {}
        for i, (key, (code, shape)) in enumerate(inputs.items()):
            array = f(*(known.get(d, d) for d in shape), seed=i)
            arrays[key] = array > 0 if code == BOOL else array
        same(loaded.run(arrays), session.run(None, arrays))


def two(n: str = "n", m: str = "m") -> onnx.ModelProto:
    nodes = [node("Add", ["x", "y"], "s"), node("MatMul", ["s", "w"], "p"), node("Reshape", ["p", "all"], "z")]
    weights = {"w": f(4, 6, seed=9), "all": np.array([-1, 2, 3])}
    return model(nodes, {"x": (F, (n, 4)), "y": (F, (m, 4))}, {"z": F}, weights)


def test_nothing_against_one() -> None:
    """onnxruntime gives no elements either."""
    ort = pytest.importorskip("onnxruntime")
    nodes = [node("Mul", ["x", "y"], "z")]
    proto = model(nodes, {"x": (F, ("n", 3)), "y": (F, ("m", 3))}, {"z": F})
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    loaded = rlx.load(proto.SerializeToString(), device="cpu")
    for n, m in ((0, 1), (1, 0), (0, 0)):
        arrays = {"x": f(n, 3), "y": f(m, 3)}
        same(loaded.run(arrays), session.run(None, arrays))
    with pytest.raises(InputError, match=r"n = 0 against m = 4; n = 0 by input 'x' axis 0, m = 4 by input 'y' axis 0"):
        loaded.run({"x": f(0, 3), "y": f(4, 3)})


def test_a_shape_to_expand_to_is_compared_with_what_is_there() -> None:
    nodes, inputs, outputs = MODELS["expand both ways"]
    loaded = rlx.load(model(nodes, inputs, outputs).SerializeToString(), device="cpu")
    with pytest.raises(InputError, match="n = 3 against m = 4"):
        loaded.run([f(3, 4), f(4, 1)])


def test_a_file_is_read_anew_once_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx.frontends.onnx import importer

    read: list[dict[str, int]] = []
    before = importer.import_model

    def counted(*args: Any) -> Any:
        read.append(dict(args[4]))
        return before(*args)

    loaded = rlx.load(two().SerializeToString(), device="cpu")
    monkeypatch.setattr(importer, "import_model", counted)
    w = f(4, 6, seed=9)
    for m in (4, 1, 7, 0, 50):
        x, y = f(1, 4), f(m, 4, seed=1)
        same(loaded.run([x, y]), [((x + y) @ w).reshape(-1, 2, 3)])
    assert read == [{"n": 1}] and loaded.compiled.compile_count == 2


def test_weights_that_were_set_and_outputs_that_were_selected() -> None:
    compiled = rlx.load(two().SerializeToString(), device="cpu").compiled
    x, y, w = f(5, 4), f(1, 4, seed=1), f(4, 6, seed=3)
    compiled.set_param("w", w)
    expected = [((x + y) @ w).reshape(-1, 2, 3)]
    same(compiled.run([x, y]), expected)
    nodes = [node("Add", ["x", "y"], "s"), node("Exp", ["s"], "e"), node("Neg", ["e"], "z")]
    proto = model(nodes, {"x": (F, ("n", 4)), "y": (F, ("m", 4))}, {"e": F, "z": F})
    part = rlx.load(proto.SerializeToString(), device="cpu").compiled.select(["z"])
    same(part.run([x, y]), [-np.exp(x + y)])


def test_dims_that_differ_are_named_wherever_they_meet() -> None:
    """The sum's dim is that of y where x has one row, so the third is compared with it."""
    nodes = [node("Add", ["x", "y"], "s"), node("Concat", ["s", "v"], "z", axis=1)]
    inputs = {"x": (F, ("n", 4)), "y": (F, ("m", 4)), "v": (F, ("k", 2))}
    loaded = rlx.load(model(nodes, inputs, {"z": F}).SerializeToString(), device="cpu")
    x, y, v = f(1, 4), f(3, 4), f(3, 2)
    same(loaded.run([x, y, v]), [np.concatenate([x + y, v], 1)])
    same(loaded.run([y, x, v]), [np.concatenate([x + y, v], 1)])
    for arrays in ([x, y, f(2, 2)], [y, x, f(2, 2)], [y, x, f(1, 2)], [x, y, f(1, 2)]):
        with pytest.raises(InputError, match=r"outside of axis 1.*, at node 'Concat_1'.* by input 'v' axis 0"):
            loaded.run(arrays)


def body(nodes: Sequence[onnx.NodeProto], inputs: dict[str, Any], outputs: Sequence[str], **known: Any) -> Any:
    return helper.make_graph(
        list(nodes),
        "body",
        [helper.make_tensor_value_info(name, code, shape) for name, (code, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in known.items()],
    )


@pytest.mark.parametrize("device", DEVICES)
def test_branches_and_loops(device: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    yes = body([node("Add", ["x", "y"], "a"), node("ReduceSum", ["a"], "c", keepdims=0)], {}, ["c"])
    no = body([node("Mul", ["x", "y"], "b"), node("ReduceSum", ["b"], "d", keepdims=0)], {}, ["d"])
    inside = {"i": (I64, ()), "going": (BOOL, ()), "state": (F, ())}
    steps = [
        node("Sub", ["x", "y"], "t"),
        node("ReduceMax", ["t"], "most", keepdims=0),
        node("Add", ["state", "most"], "new"),
        node("Identity", ["going"], "on"),
    ]
    nodes = [
        node("If", ["p"], "r", then_branch=yes, else_branch=no),
        node("Loop", ["count", "", "r"], "last", "rows", body=body(steps, inside, ["on", "new", "t"])),
    ]
    inputs = {"p": (BOOL, ()), "x": (F, ("n", 2)), "y": (F, ("m", 2))}
    proto = model(nodes, inputs, {"r": F, "last": F, "rows": F}, {"count": np.int64(40)})
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    loaded = rlx.load(proto.SerializeToString(), device=device)
    for n, m in ((3, 3), (1, 3), (3, 1)):
        for truth in (True, False):
            arrays = {"p": np.array(truth), "x": f(n, 2), "y": f(m, 2, seed=1)}
            same(loaded.run(arrays), session.run(None, arrays))


def test_what_is_left_of_a_model_says_why_it_cannot(tmp_path: Path) -> None:
    """A graph that was imported and saved reckons with equal dims for good."""
    loaded = rlx.load(two().SerializeToString(), device="cpu")
    loaded.save(tmp_path / "m.rlx")
    loaded.compiled.save(tmp_path / "m.bin")
    x, y = f(3, 4), f(3, 4, seed=1)
    for opened in (rlx.load(tmp_path / "m.rlx", device="cpu").compiled, rlx.load_compiled(tmp_path / "m.bin")):
        same(opened.run([x, y]), loaded.run([x, y]))
        pattern = r"m = 1; n = 3 by input 'x' axis 0, m = 1 by input 'y' axis 0; this program was made for equal dims"
        with pytest.raises(InputError, match=pattern):
            opened.run([x, y[:1]])
        same(opened.run([x, y]), loaded.run([x, y]))


@pytest.mark.parametrize("device", DEVICES)
def test_a_branch_that_is_not_taken_hinders_no_run(device: str, tmp_path: Path) -> None:
    yes = body([node("Add", ["x", "y"], "a"), node("ReduceSum", ["a"], "c", keepdims=0)], {}, ["c"])
    no = body([node("ReduceMax", ["y"], "d", keepdims=0)], {}, ["d"])
    nodes = [node("If", ["p"], "r", then_branch=yes, else_branch=no)]
    proto = model(nodes, {"p": (BOOL, ()), "x": (F, ("n", 2)), "y": (F, ("m", 2))}, {"r": F})
    loaded = rlx.load(proto.SerializeToString(), device=device)
    loaded.save(tmp_path / "m.rlx")
    opened = rlx.load(tmp_path / "m.rlx", device=device)
    x, y = f(1, 2), f(3, 2, seed=1)
    for program in (loaded, opened):
        same(program.run([np.array(False), x, y]), [y.max()])
    same(loaded.run([np.array(True), x, y]), [(x + y).sum()])
    with pytest.raises((InputError, ShapeError), match=r"shapes do not broadcast along axis 0, at node .If_0.Add_0."):
        opened.run([np.array(True), x, y])
    same(opened.run([np.array(True), y, y]), [2 * y.sum()])


def test_a_file_that_was_written_to_since_is_not_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(two().SerializeToString())
    loaded = rlx.load(path, device="cpu")
    x, y = f(3, 4), f(3, 4, seed=1)
    expected = loaded.run([x, y])
    with open(path, "r+b") as file:
        file.write(b"\0")
    os.utime(path, (1, 1))
    with pytest.raises(ModelError, match="written to since"):
        loaded.run([x, y[:1]])
    same(loaded.run([x, y]), expected)


def test_weights_stay_in_their_file(tmp_path: Path) -> None:
    """What a program that may come later would need is not held in memory meanwhile."""
    path = tmp_path / "m.onnx"
    path.write_bytes(two().SerializeToString())
    loaded = rlx.load(path, device="cpu")
    x, y = f(3, 4), f(1, 4, seed=1)
    expected = [((x + y) @ f(4, 6, seed=9)).reshape(-1, 2, 3)]
    same(loaded.run([x, y]), expected)
    params = loaded.compiled.executable._given  # type: ignore[attr-defined]
    assert params.keys() == {"w"} and params["w"] is loaded.compiled.params["w"] and params["w"].base is not None
    same(loaded.compiled.clone().run([x, y]), expected)


def test_shapes_that_the_caller_gives() -> None:
    loaded = rlx.load(two().SerializeToString(), device="cpu", shapes={"x": ("2*a", 4), "y": ("a+1", 4)})
    w = f(4, 6, seed=9)
    for n, m in ((2, 2), (0, 1)):
        x, y = f(n, 4), f(m, 4, seed=1)
        same(loaded.run([x, y]), [((x + y) @ w).reshape(-1, 2, 3)])
