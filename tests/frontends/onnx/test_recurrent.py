"""LSTM, GRU and RNN nodes against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from build import I32, F, model
from onnx import helper

import rlx

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def check(
    kind: str, device: str, optional: str = "b", opset: int = 18, sizes: tuple[int, ...] = (6, 3, 4, 5),
    named: bool = False, **attributes: Any,
) -> None:  # fmt: skip
    """`optional` says which inputs are there: b bias, l lengths, h and c states, p peepholes."""
    ort = pytest.importorskip("onnxruntime")
    steps, batch, size, hidden = sizes
    count = 2 if attributes.get("direction") == "bidirectional" else 1
    wide = GATES[kind] * hidden
    random = np.random.default_rng(1)

    def weights(*shape: int) -> Any:
        return (random.standard_normal(shape) / 2).astype("f4")

    first = bool(attributes.get("layout"))
    state = (batch, count, hidden) if first else (count, batch, hidden)
    arrays = {"x": weights(batch, steps, size) if first else weights(steps, batch, size)}
    frozen = {"w": weights(count, wide, size), "r": weights(count, wide, hidden)}
    slots = {"b": "b", "l": "l", "h": "h", **({"c": "c", "p": "p"} if kind == "LSTM" else {})}
    more = {"b": weights(count, 2 * wide), "l": np.array([steps, 1, steps - 2][:batch], np.int32), "h": weights(*state),
            "c": weights(*state), "p": weights(count, 3 * hidden)}  # fmt: skip
    names = ["x", "w", "r", *(slot if slot in optional else "" for slot in slots)]
    for slot in slots:
        if slot in optional:
            (arrays if slot in "lhc" else frozen)[slot] = more[slot]
    outputs = ["y", "hn", "cn"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(kind, names, outputs, hidden_size=hidden, **attributes)
    shapes: dict[str, Any] = {name: (I32 if name == "l" else F, a.shape) for name, a in arrays.items()}
    if named:
        shapes["x"] = (F, ["t", "n", size])
    proto = model([node], shapes, dict.fromkeys(outputs, F), frozen, opset)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, arrays)
    actual = rlx.load(proto.SerializeToString(), device=device).run(list(arrays.values()))
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


@pytest.fixture(params=["reference", "cpu"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("optional", ["", "b", "bh", "bhc", "bl", "blhcp"])
def test_directions_and_operands(kind: str, direction: str, optional: str, where: str) -> None:
    check(kind, where, optional, direction=direction)


@pytest.mark.parametrize("kind", GATES)
def test_before_opset_14(kind: str, where: str) -> None:
    check(kind, where, "bh", opset=7)


@pytest.mark.parametrize("kind", GATES)
def test_named_dims(kind: str, where: str) -> None:
    check(kind, where, "b", sizes=(9, 2, 17, 33), named=True, direction="bidirectional")


@pytest.mark.parametrize("kind", GATES)
def test_clip(kind: str, where: str) -> None:
    check(kind, where, "b", clip=0.3)


FUNCTIONS: dict[str, list[list[str]]] = {
    "LSTM": [["HardSigmoid", "Softsign", "Relu"], ["Sigmoid", "ScaledTanh", "Elu"]],
    "GRU": [["HardSigmoid", "Softsign"], ["Sigmoid", "LeakyRelu"]],
    "RNN": [["Affine"], ["Softplus"]],
}
NUMBERS: dict[str, dict[str, list[float]]] = {
    "HardSigmoid": {"activation_alpha": [0.3], "activation_beta": [0.4]},
    "ScaledTanh": {"activation_alpha": [0.7, 0.9], "activation_beta": [0.6]},
    "Affine": {"activation_alpha": [0.7], "activation_beta": [0.1]},
}


@pytest.mark.parametrize("kind, functions", [(k, f) for k, many in FUNCTIONS.items() for f in many])
def test_functions(kind: str, functions: list[str], where: str) -> None:
    numbers = next((NUMBERS[f] for f in functions if f in NUMBERS), {})
    check(kind, where, "b", activations=functions, **numbers)


def test_lstm_couples_its_gates(where: str) -> None:
    check("LSTM", where, "b", input_forget=1)


@pytest.mark.parametrize("optional", ["b", "bh", "blh"])
def test_gru_linear_before_reset(optional: str, where: str) -> None:
    check("GRU", where, optional, linear_before_reset=1, direction="bidirectional")


def test_unknown_functions_are_refused() -> None:
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], activations=["Sine"], hidden_size=2)
    shapes = {"x": (F, [4, 1, 3]), "w": (F, [1, 2, 3]), "r": (F, [1, 2, 2])}
    with pytest.raises(rlx.ModelError, match="expected 1 activations among"):
        rlx.load(model([node], shapes, {"y": F}).SerializeToString(), device="reference")


def test_state_with_a_batch_of_another_name(where: str) -> None:
    node = helper.make_node("GRU", ["x", "w", "r", "", "", "h"], ["y", "hn"], hidden_size=2)
    random = np.random.default_rng(0)
    frozen = {name: random.standard_normal(shape).astype("f4") for name, shape in (("w", (1, 6, 3)), ("r", (1, 6, 2)))}
    shapes = {"x": (F, ["t", "n", 3]), "h": (F, [1, "m", 2])}
    loaded_model = rlx.load(model([node], shapes, {"y": F, "hn": F}, frozen).SerializeToString(), device=where)
    y, last = loaded_model.run([np.ones((4, 3, 3), "f4"), np.zeros((1, 3, 2), "f4")])
    np.testing.assert_array_equal(y[-1], last)
    with pytest.raises(rlx.InputError):
        loaded_model.run([np.ones((4, 3, 3), "f4"), np.zeros((1, 2, 2), "f4")])
