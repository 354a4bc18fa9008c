"""Nets with quantise and dequantise nodes, made from float ones by onnxruntime's calibration: the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from benchmarks.zoo import Net, nets
from real_models import path_of, supported

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


def quantised(net: Net, folder: Path) -> Path:
    """The net with int8 weights and activations."""
    tools = pytest.importorskip("onnxruntime.quantization")
    made = folder / f"{net.name}.int8.onnx"
    tools.quantize_static(
        str(path_of(net)),
        str(made),
        Feeder(net, iter(np.linspace(0.5, 1.0, CALIBRATION))),
        quant_format=tools.QuantFormat.QDQ,
        per_channel=True,
    )
    return made


@pytest.mark.parametrize("name", ["ocr-direction", "detector"])
def test_a_statically_quantised_net_decides_as_onnxruntime(name: str, tmp_path: Path) -> None:
    """Implementations may round a step apart: nearly all results are close, and the decision is the same."""
    net = nets()[name]
    path = quantised(net, tmp_path)
    with supported():
        got = rlx.load(path, device="cpu").run(net.inputs())[0]
    runtime = pytest.importorskip("onnxruntime")
    wanted = runtime.InferenceSession(str(path)).run(None, net.inputs())[0]
    scale = float(np.abs(wanted).max())
    assert np.quantile(np.abs(got - wanted), 0.99) < 0.02 * scale
    assert (got.argmax(-1) == wanted.argmax(-1)).mean() > 0.9
