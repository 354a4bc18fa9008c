"""Whole models from other packages, on every device that is there: the answers of onnxruntime, and the right labels."""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import rlx
from benchmarks.zoo import nets
from real_models import exported_minilm, path_of
from rlx.device import registry
from support import commit_number

OTHERS = ("null", "gpu")
"""Devices that compute nothing, or are another's."""
DEVICES = [name for name in registry.BUILT_IN if name not in OTHERS and registry.probe(name).devices]
EXPORTERS = ("dynamo", "legacy")


def exporters_for(device: str) -> tuple[str, ...]:
    """All for the processor; for another device one, whose turn it is at this commit."""
    turn = (crc32(device.encode()) + commit_number()) % len(EXPORTERS)
    return EXPORTERS if device in ("cpu", "reference") else (EXPORTERS[turn],)


@lru_cache(maxsize=len(EXPORTERS))
def session_of(path: Path) -> Any:
    """onnxruntime's, which takes longer to begin than to run."""
    return pytest.importorskip("onnxruntime").InferenceSession(str(path))


def answers_of_onnxruntime(path: Path, inputs: dict[str, Any]) -> list[Any]:
    outputs: list[Any] = session_of(path).run(None, inputs)
    return outputs


def assert_close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4 * float(np.abs(expected).max()))


@pytest.mark.devices(*DEVICES)
def test_minilm_at_any_batch_and_length(device: str) -> None:
    for exporter in exporters_for(device):
        check_minilm(exported_minilm(exporter), device)


def check_minilm(path: Path, device: str) -> None:
    model = rlx.load(path, device=device)
    assert [str(v.type) for v in model.graph.inputs] == ["i64[batch, seq]"] * 2
    for batch, seq in ((1, 1), (2, 7), (3, 20)):
        ids = np.random.default_rng(seq).integers(1000, 20000, (batch, seq))
        mask = np.ones_like(ids)
        mask[0, seq // 2 + 1 :] = 0
        inputs = {"input_ids": ids, "attention_mask": mask}
        assert_close(model(**inputs)["last_hidden_state"], answers_of_onnxruntime(path, inputs)[0])
    if model.compiled.capabilities.dynamic_dims:  # others compile every size
        assert model.compiled.compile_count == 1


def classifier() -> tuple[Path, list[str]]:
    path = path_of(nets()["bytes"])
    labels: list[str] = json.loads((path.parent / "config.min.json").read_text())["target_labels_space"]
    return path, labels


def features(content: bytes) -> Any:
    """1024 bytes from the front and from the back, 256 where there are none."""
    content = content.strip()
    out = np.full(2048, 256, np.int32)
    head, tail = content[:1024], content[-1024:]
    out[: len(head)] = np.frombuffer(head, np.uint8)
    out[2048 - len(tail) :] = np.frombuffer(tail, np.uint8)
    return out


@pytest.mark.devices(*DEVICES)
def test_the_byte_type_classifier(device: str) -> None:
    path, labels = classifier()
    model = rlx.load(path, device=device)
    config = json.dumps({"name": "x", "values": list(range(300)), "nested": {"a": [True, None]}}, indent=2).encode()
    samples = {
        "python": Path(__file__).read_bytes(),
        "elf": Path(sys.executable).resolve().read_bytes(),
        "json": config,
    }
    x = np.stack([features(content) for content in samples.values()])
    (scores,) = model.run([x])
    assert_close(scores, answers_of_onnxruntime(path, {"bytes": x})[0])
    assert [labels[i] for i in scores.argmax(1)] == list(samples)
    assert scores.max(1).min() > 0.7
