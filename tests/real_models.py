"""What tests of real models share: opening one or skipping with the reason, onnxruntime's answers, comparing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from benchmarks.zoo import Absent, Net, nets
from rlx.device import registry
from rlx.errors import UnsupportedOp
from rlx.ir.literal import Array


def path_of(net: Net) -> Path:
    """Where the model lies, or a skip that names the package to install."""
    try:
        return net.path()
    except Absent as why:
        pytest.skip(str(why))


def opened(net: Net | str, device: str = "cpu", **options: Any) -> rlx.Model:
    """The model, compiled for a device; a skip if the package, the device or an op is not there."""
    net = nets()[net] if isinstance(net, str) else net
    path = path_of(net)
    found = registry.probe(device)
    if not found.devices:
        pytest.skip(f"{device}: {found.reason}")
    try:
        model = rlx.load(path, device=device, **options)
        _ = model.compiled
    except UnsupportedOp as why:
        pytest.skip(str(why))
    return model


def peer(net: Net | str) -> Any:
    """The same model in onnxruntime, on one thread, or a skip."""
    runtime = pytest.importorskip("onnxruntime")
    net = nets()[net] if isinstance(net, str) else net
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return runtime.InferenceSession(str(path_of(net)), options, providers=["CPUExecutionProvider"])


def assert_close(got: Sequence[Array], wanted: Sequence[Array]) -> None:
    """All outputs within rtol 1e-3 and atol 1e-4 of the greatest magnitude."""
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        assert a.dtype == b.dtype
        scale = float(np.abs(b).max()) if b.size else 1.0
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * scale)


def assert_same_answers(model: rlx.Model, session: Any, inputs: Mapping[str, Array]) -> list[Array]:
    """Runs both, compares, and gives our results."""
    got = model.run(inputs)
    assert_close(got, session.run(None, dict(inputs)))
    return got
