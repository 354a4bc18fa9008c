"""Quantised nets that onnxruntime's tools make of float ones, with and without calibration: the same answers.

onnxruntime is asked in ways that are exact on every processor: where values are quantised and dequantised it works in
floats, and integer products get weights without a sign (`real_models.unsigned`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from benchmarks.zoo import Net, nets
from real_models import exported_minilm, path_of, unsigned

CALIBRATION = 3


class Feeder:
    """What calibration reads: a few inputs of the net, scaled differently."""

    def __init__(self, net: Net, sizes: Iterator[float]) -> None:
        self.net, self.sizes = net, sizes

    def get_next(self) -> dict[str, Any] | None:
        scale = next(self.sizes, None)
        if scale is None:
            return None
        return {name: (array * np.float32(scale)) for name, array in self.net.inputs().items()}


def quantised(net: Net, folder: Path, activations: str, per_channel: bool) -> Path:
    """The net with int8 weights, and activations of this type."""
    tools = pytest.importorskip("onnxruntime.quantization")
    path = folder / f"{net.name}.int8.onnx"
    tools.quantize_static(
        str(path_of(net)),
        str(path),
        Feeder(net, iter(np.linspace(0.5, 1.0, CALIBRATION))),
        quant_format=tools.QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=getattr(tools.QuantType, activations),
    )
    return path


def answers(path: Path, inputs: Mapping[str, Any]) -> Any:
    """The first output in onnxruntime."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return runtime.InferenceSession(unsigned(path), options).run(None, dict(inputs))[0]


CASES = [(name, "QInt8", True) for name in ("ocr-direction", "detector")]
CASES += [("ocr-direction", kind, per_channel) for kind, per_channel in (("QUInt8", True), ("QUInt8", False))]


@pytest.mark.parametrize("name, activations, per_channel", [*CASES, ("detector", "QUInt8", False)])
def test_a_statically_quantised_net_decides_as_onnxruntime(
    name: str, activations: str, per_channel: bool, tmp_path: Path
) -> None:
    """Implementations may round a step apart: nearly all results are close, and the decision is the same."""
    net = nets()[name]
    path = quantised(net, tmp_path, activations, per_channel)
    actual = rlx.load(path, device="cpu").run(net.inputs())[0]
    expected = answers(path, net.inputs())
    scale = float(np.abs(expected).max())
    assert np.quantile(np.abs(actual - expected), 0.99) < 0.02 * scale
    assert (actual.argmax(-1) == expected.argmax(-1)).mean() > 0.9


@pytest.mark.parametrize("weights, per_channel", [("QInt8", False), ("QInt8", True), ("QUInt8", False)])
def test_minilm_quantised_while_it_runs(weights: str, per_channel: bool, tmp_path: Path) -> None:
    """Rounding apart by a step grows from layer to layer in any two implementations; sentences keep their direction."""
    tools = pytest.importorskip("onnxruntime.quantization")
    path = tmp_path / "minilm.int8.onnx"
    kind = getattr(tools.QuantType, weights)
    tools.quantize_dynamic(str(exported_minilm("legacy")), str(path), weight_type=kind, per_channel=per_channel)
    model = rlx.load(path, device="cpu")
    for batch, length in ((1, 16), (2, 7)):
        ids = np.random.default_rng(length).integers(1000, 20000, (batch, length))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        actual, expected = model(**inputs)["last_hidden_state"], answers(path, inputs)
        norms = np.linalg.norm(actual, axis=-1) * np.linalg.norm(expected, axis=-1)
        assert ((actual * expected).sum(-1) / norms).min() > 0.97
