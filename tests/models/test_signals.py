"""EEG and speech: bursts, seizures, words and silence are told apart, and all variants of a net agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.zoo import nets
from examples import eeg_spindles, speech_activity
from real_models import assert_same_answers, opened, path_of, peer, spoken
from rlx.ir.literal import Array

VARIANTS = ("voice", "voice-ifless", "voice-16k", "voice-half", "voice-static")


def resident_bytes() -> int:
    """What this process holds in memory."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("this system does not tell how much memory a process holds")
    return int(statm.read_text().split()[1]) * 4096


# EEG


def test_spindles_are_found_where_they_are() -> None:
    path_of(nets()["eeg-spindle"])
    bursts_s = (6.0, 15.0, 24.0)
    chance = eeg_spindles.Detector("cpu").chance(eeg_spindles.made_eeg(bursts_s))
    spans = eeg_spindles.spans(chance)
    assert len(spans) == len(bursts_s)
    assert all(start < at < stop for (start, stop), at in zip(spans, bursts_s))
    assert np.median(chance) < 0.02


def test_the_spindle_net_on_a_signal_equals_onnxruntime() -> None:
    eeg = np.stack([eeg_spindles.made_eeg(seed=seed) for seed in range(2)])
    inputs = {
        "raw_signal": eeg_spindles.normal(eeg[:, None]).astype(np.float32),
        "spectrogram": eeg_spindles.normal(np.stack([eeg_spindles.scalogram(x) for x in eeg])).astype(np.float32),
    }
    assert_same_answers(opened("eeg-spindle"), peer("eeg-spindle"), inputs)


def spectrogram(x: Array, rate_hz: int) -> Array:
    """[1, 100, times]: power of 1 s windows every half second, 0 to 99 Hz, every frequency normalised over time."""
    x = (x - x.mean()) / x.std()
    half = rate_hz // 2
    frames = np.stack([x[at : at + rate_hz] for at in range(0, len(x) - rate_hz + 1, half)])
    taper = np.interp(np.arange(rate_hz), *_tukey(rate_hz))
    frames = (frames - frames.mean(1, keepdims=True)) * taper
    power = (np.abs(np.fft.rfft(frames, axis=1)[:, :100]) ** 2).T
    scaled = (power - power.mean(1, keepdims=True)) / power.std(1, keepdims=True)
    return np.ascontiguousarray(scaled[None], np.float32)


def _tukey(count: int) -> tuple[Array, Array]:
    """Points of a window that rises and falls as a cosine over an eighth of its length at either end."""
    at = np.arange(count)
    edge = np.minimum(at, count - 1 - at) / (0.125 * (count - 1))
    return at, np.where(edge < 1, 0.5 * (1 - np.cos(np.pi * edge)), 1.0)


def seizure_like(burst: bool) -> eeg_spindles.Samples:
    """300 s of 1/f noise at 256 Hz, with a minute of 4 Hz spikes and waves in it."""
    rate_hz, seconds = 256, 300
    count = rate_hz * seconds
    shape = np.fft.rfft(np.random.default_rng(3).standard_normal(count))
    shape[1:] /= np.sqrt(np.fft.rfftfreq(count, 1 / rate_hz)[1:])
    shape[0] = 0
    noise = np.fft.irfft(shape, count)
    x: eeg_spindles.Samples = 20 * noise / noise.std()
    if burst:
        time_s = np.arange(120 * rate_hz, 180 * rate_hz) / rate_hz
        phase = (time_s * 4) % 1
        x[120 * rate_hz : 180 * rate_hz] += 120 * np.exp(-(((phase - 0.15) / 0.04) ** 2)) - 60 * np.sin(
            2 * np.pi * phase
        )
    return x


@pytest.mark.parametrize("name", ["eeg-seizure-a", "eeg-seizure-b"])
def test_a_seizure_is_told_from_noise(name: str) -> None:
    model, session = opened(name), peer(name)
    quiet, burst = (
        assert_same_answers(model, session, {"x": spectrogram(seizure_like(with_burst), 256)})[1][:, 0, 3]
        for with_burst in (False, True)
    )
    assert quiet.mean() < 0.05
    assert burst[250:350].mean() > 0.9


# speech


@pytest.fixture(scope="module")
def listener() -> speech_activity.Listener:
    path_of(nets()["voice-sequence"])
    return speech_activity.Listener("cpu")


@pytest.fixture
def speech(tmp_path: Path) -> Array:
    """A second of silence, a sentence, a second of silence, the sentence."""
    path = spoken("The quick brown fox jumps over the lazy dog.", tmp_path / "speech.wav")
    words, silence = speech_activity.read_wav(str(path)), np.zeros(16000, np.float32)
    return np.concatenate([silence, words, silence, words])


def test_speech_is_found_and_noise_is_not(listener: speech_activity.Listener, speech: Array) -> None:
    segments = speech_activity.segments(listener.chances(speech))
    assert len(segments) == 2
    assert 0.9 < segments[0][0] < 1.3 and segments[0][1] < segments[1][0] - 0.8
    noise = np.random.default_rng(0).standard_normal(48000, np.float32) / np.float32(10)
    assert listener.chances(noise).max() < 0.2


def test_ten_lengths_from_one_compile(listener: speech_activity.Listener, speech: Array) -> None:
    whole = listener.chances(speech)
    for count in (1, 2, 3, 5, 17, 50, 100, 111, 200, 230):
        part = listener.chances(speech[: count * speech_activity.CHUNK])
        np.testing.assert_allclose(part, whole[:count], rtol=1e-3, atol=1e-4)
    assert listener.model.compiled.compile_count == 1


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_the_voice_detector_agree(name: str, listener: speech_activity.Listener, speech: Array) -> None:
    model = opened(name)
    state = np.zeros((2, 1, 128), np.float32)
    rate = {"sr": np.array(16000)} if "sr" in model.input_names else {}
    chances = []
    for chunk in speech_activity.chunks(speech[:48000]):
        out = model(input=chunk[None], state=state, **rate)
        chances.append(out["output"][0, 0])
        state = out["stateN"]
    expected = listener.chances(speech[:48000])
    if name == "voice-half":  # other weights: it decides as the others do
        assert np.mean((np.array(chances) > 0.5) == (expected > 0.5)) > 0.9
    else:
        np.testing.assert_allclose(chances, expected, atol=2e-3)


def wake_word(sound: Array, run: Callable[[str, Array], Array]) -> float:
    """The best score of the wake word in a sound."""
    mel = run("mel", (sound[None] * 32767).astype(np.float32)).reshape(-1, 32) / 10 + 2
    windows = np.stack([mel[at : at + 76] for at in range(0, len(mel) - 75, 8)])[..., None]
    embedded = run("speech-embedding", windows).reshape(-1, 96)
    return max(float(run("wake-word", embedded[None, at : at + 16]).item()) for at in range(len(embedded) - 15))


@pytest.mark.parametrize("text, low, high", [("hey jarvis", 0.9, 1.0), ("the lazy dog", 0.0, 0.05)])
def test_the_wake_word_is_heard(text: str, low: float, high: float, tmp_path: Path) -> None:
    models: dict[str, Any] = {name: opened(name) for name in ("mel", "speech-embedding", "wake-word")}
    sessions = {name: peer(name) for name in models}
    sound = np.pad(speech_activity.read_wav(str(spoken(text, tmp_path / "said.wav"))), (24000, 8000))

    def run(name: str, x: Array) -> Array:
        x = np.ascontiguousarray(x)
        return assert_same_answers(models[name], sessions[name], {models[name].input_names[0]: x})[0]

    assert low <= wake_word(sound, run) <= high


# sizes


def test_memory_stays_flat_over_random_lengths() -> None:
    model = opened("mel")
    generator = np.random.default_rng(0)
    sound = generator.standard_normal((1, 64000)).astype(np.float32)

    def some(count: int) -> None:
        for length in generator.integers(600, 64000, count):
            model.run([np.ascontiguousarray(sound[:, :length])])

    some(150)
    before = resident_bytes()
    some(350)
    assert resident_bytes() - before < 32 << 20
    assert model.compiled.compile_count == 1
