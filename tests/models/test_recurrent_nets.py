"""Voice detectors and a seizure detector as people have them: recurrent nets, branches, all on the CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx

RATES = {16000: 576, 8000: 288}  # samples in a chunk with its context


def file(package: str, path: str) -> Path:
    """A file of an installed package; skips the test where it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed")
    found_path = Path(spec.submodule_search_locations[0]) / path
    if not found_path.exists():
        pytest.skip(f"{package} brings no {path}")
    return found_path


def peer(path: Path) -> Any:
    ort = pytest.importorskip("onnxruntime")
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def assert_same(actual: list[Any], expected: list[Any]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * max(float(np.abs(b).max()), 1e-3))


def speech(samples: int, batch: int) -> Any:
    """Harmonics of a voice with a slow beat, and a little noise."""
    t = np.arange(samples * 20) / 16000
    wave = sum(np.sin(2 * np.pi * 140 * k * t) / k for k in range(1, 12)) * (1 + np.sin(2 * np.pi * 4 * t)) / 8
    noise = np.random.default_rng(0).standard_normal((batch, wave.size)) / 50
    return (wave + noise).astype("f4")


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", ["silero_vad", "silero_vad_op18_ifless"])
def test_voice_detector_for_two_rates(name: str, rate: int) -> None:
    path = file("silero_vad", f"data/{name}.onnx")
    other = peer(path)
    model = rlx.load(path, device="cpu")
    names = [i.name for i in other.get_inputs()]
    wave = speech(RATES[rate], 2)
    state = np.zeros((2, 2, 128), "f4")
    for chunk in np.split(wave, wave.shape[1] // RATES[rate], axis=1)[:6]:
        inputs = {"input": np.ascontiguousarray(chunk), "state": state, "sr": np.array(rate)}
        actual = model.run([inputs[n] for n in names])
        assert_same(actual, other.run(None, inputs))
        state = actual[1]


def test_voice_detector_says_what_length_it_needs() -> None:
    model = rlx.load(file("silero_vad", "data/silero_vad.onnx"), device="cpu")
    chunk, state = np.zeros((1, 576), "f4"), np.zeros((2, 1, 128), "f4")
    model(input=chunk, state=state, sr=np.array(16000))
    with pytest.raises(rlx.InputError, match="was taken to be on import"):
        model(input=chunk, state=state, sr=np.array(8000))
    model(input=chunk, state=state, sr=np.array(16000))


@pytest.mark.parametrize("chunks", [1, 7, 60])
def test_voice_detector_over_a_sequence(chunks: int) -> None:
    path = file("silero_vad", "data/silero_vad_16k_sequence.onnx")
    wave = speech(576 * chunks // 20 + 576, 1)[0, : 576 * chunks].reshape(chunks, 576)
    inputs = {"input": wave, "h": np.zeros((1, 1, 128), "f4"), "c": np.zeros((1, 1, 128), "f4")}
    assert_same(rlx.load(path, device="cpu").run(list(inputs.values())), peer(path).run(None, inputs))


def test_seizure_detector() -> None:
    path = file("brainmaze_eeg_models", "seizure/_models/modelA_paper.onnx")
    other, model = peer(path), rlx.load(path, device="cpu")
    name = other.get_inputs()[0].name
    for batch, steps in ((1, 300), (2, 157)):
        x = np.random.default_rng(steps).standard_normal((batch, 100, steps)).astype("f4")
        assert_same(model.run([x]), other.run(None, {name: x}))
