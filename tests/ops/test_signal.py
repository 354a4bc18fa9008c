"""Transforms against NumPy, SciPy's definitions and themselves: lengths that the run brings, long ones, round trips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ops import fourier_plan
from rlx.ops.signal import mel_filters
from support import run_on


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def error(actual: Array, expected: Array) -> float:
    """The largest difference by the size of the whole."""
    return float(np.abs(actual - expected).max() / np.sqrt(np.mean(np.abs(expected) ** 2)))


def transforms(length: Any) -> Graph:
    graph = rlx.Graph()
    x, y = graph.input("x", (2, length)), graph.input("y", (2, length))
    for name, value in zip(("re", "im", "real_re", "real_im"), (*ops.fft(x, y), *ops.rfft(x))):
        graph.output(value, name=name)
    back_re, back_im = ops.fft(*ops.fft(x, y), inverse=True)
    graph.output(back_re, name="back_re")
    graph.output(back_im, name="back_im")
    return graph


@pytest.mark.parametrize("length", [1, 2, 9, 64, 250])
def test_a_length_that_the_run_brings(length: int, device: str) -> None:
    x, y = noise(2, length), noise(2, length, seed=1)
    actual = run_on(device, transforms("n"), {"x": x, "y": y})
    expected = np.fft.fft(x + 1j * y.astype(np.float64))
    assert error(actual["re"] + 1j * actual["im"], expected) < 3e-6
    if length > 1:
        assert error(actual["real_re"] + 1j * actual["real_im"], np.fft.rfft(x.astype(np.float64))) < 3e-6
    assert error(actual["back_re"] + 1j * actual["back_im"], x + 1j * y) < 3e-6


def test_long_transforms_keep_their_accuracy(device: str) -> None:
    for length in (32768, 65537, 30030):
        x, y = noise(2, length), noise(2, length, seed=1)
        actual = run_on(device, transforms(length), {"x": x, "y": y})
        expected = np.fft.fft(x + 1j * y.astype(np.float64))
        assert error(actual["re"] + 1j * actual["im"], expected) < 5e-6
        assert error(actual["back_re"] + 1j * actual["back_im"], x + 1j * y) < 5e-6


def test_a_named_length_at_the_back_transform(device: str) -> None:
    graph = rlx.Graph()
    x = graph.input("x", (3, "n"))
    graph.output(ops.irfft(*ops.rfft(x), length=x.shape[1]), name="y")
    for length in (1, 8, 13):
        x_array = noise(3, length)
        assert error(run_on(device, graph, {"x": x_array})["y"], x_array) < 1e-6


def test_roots_are_exact_where_they_can_be() -> None:
    real, imaginary = fourier_plan.roots(np.arange(8) + 8 * 10**15, 8, -1)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(real, [1, half, 0, -half, -1, -half, 0, half], atol=1e-16)
    assert imaginary[[0, 4]].tolist() == [0, 0] and imaginary[[2, 6]].tolist() == [-1, 1]


def test_a_real_signals_spectrum_gives_no_imaginary_part(device: str) -> None:
    graph = rlx.Graph()
    re, im = graph.input("re", (1, 14)), graph.input("im", (1, 14))
    graph.output(ops.fft(re, im, inverse=True)[1], name="y")
    half = np.fft.rfft(noise(1, 14)).astype(np.complex64)
    spectrum = np.concatenate([half, half[:, 6:0:-1].conj()], axis=1)
    inputs = {"re": np.ascontiguousarray(spectrum.real), "im": np.ascontiguousarray(spectrum.imag)}
    assert np.abs(run_on(device, graph, inputs)["y"]).max() < 1e-15


def test_a_signal_comes_back_from_its_short_time_transform(device: str) -> None:
    graph = rlx.Graph()
    x = graph.input("x", (2, "n"))
    window = ops.hann_window(graph, 64)
    graph.output(ops.istft(*ops.stft(x, window, step=16), window, step=16), name="y")
    signal = noise(2, 64 + 16 * 20)
    actual = run_on(device, graph, {"x": signal})["y"]
    assert actual.shape == signal.shape
    assert np.abs(actual - signal)[:, 1:].max() < 1e-4  # the window hides the first element
    assert error(actual[:, 64:-64], signal[:, 64:-64]) < 1e-5


def test_short_time_transform_equals_torch(device: str) -> None:
    torch = pytest.importorskip("torch")
    x, window = noise(2, 4000), np.hanning(401)[:-1].astype(np.float32)
    graph = rlx.Graph()
    value = graph.input("x", x.shape)
    re, im = ops.stft(value, graph.constant(window), step=160)
    graph.output(re, name="re")
    graph.output(im, name="im")
    actual = run_on(device, graph, {"x": x})
    expected = torch.stft(
        torch.from_numpy(x.astype(np.float64)), 400, 160, window=torch.from_numpy(window.astype(np.float64)),
        center=False, return_complex=True,
    )  # fmt: skip
    assert error(np.swapaxes(actual["re"] + 1j * actual["im"], 1, 2), expected.numpy()) < 2e-6


def test_power_spectrum_equals_scipy(device: str) -> None:
    scipy_signal = pytest.importorskip("scipy.signal")
    x = noise(2, 3000) + 3
    graph = rlx.Graph()
    value = graph.input("x", x.shape)
    window = ops.hann_window(graph, 256)
    graph.output(ops.welch(value, window, step=128, rate_hz=100.0), name="y")
    _, expected = scipy_signal.welch(x.astype(np.float64), 100.0, nperseg=256)
    np.testing.assert_allclose(run_on(device, graph, {"x": x})["y"], expected, rtol=1e-4)


def test_peaks_are_the_tones(device: str) -> None:
    time_s = np.arange(2560) / 256
    x = np.sin(2 * np.pi * 10 * time_s) + 0.5 * np.sin(2 * np.pi * 37 * time_s) + 0.01 * noise(2560)
    graph = rlx.Graph()
    value = graph.input("x", (1, "n"))
    for part, name in zip(ops.welch_peaks(value, ops.hann_window(graph, 256), step=128, rate_hz=256.0, count=2), "fp"):
        graph.output(part, name=name)
    actual = run_on(device, graph, {"x": x[None].astype(np.float32)})
    assert actual["f"].tolist() == [[10, 37]] and actual["p"][0, 0] > 3 * actual["p"][0, 1]


@pytest.mark.parametrize("name", ["hann_window", "hamming_window", "blackman_window"])
@pytest.mark.parametrize("periodic", [True, False])
def test_windows(name: str, periodic: bool, device: str) -> None:
    numpy: Any = {"hann_window": np.hanning, "hamming_window": np.hamming, "blackman_window": np.blackman}[name]
    graph = rlx.Graph()
    size = graph.input("x", ("n",)).shape[0]
    build: Any = getattr(ops, name)
    windows: list[Value] = [build(graph, n, periodic) for n in (size, 24)]
    for i, value in enumerate(windows):
        graph.output(value, name=f"y{i}")
    actual = run_on(device, graph, {"x": noise(24)})
    expected = numpy(25)[:-1] if periodic else numpy(24)
    for value in actual.values():
        np.testing.assert_allclose(value, expected, atol=3e-7)


def test_mel_filters_cover_the_scale() -> None:
    for slaney in (True, False):
        filters = mel_filters(40, 512, 16000, 20, 7600, slaney=slaney)
        assert filters.shape == (257, 40) and (filters >= 0).all() and (filters.sum(0) > 0).all()
        assert (np.diff(filters.argmax(0)) >= 0).all()
    area = mel_filters(10, 1 << 14, 16000).sum(0) * 16000 / (1 << 14)
    np.testing.assert_allclose(area, 1, rtol=1e-2)
    with pytest.raises(rlx.ShapeError, match="expected bands between frequencies"):
        mel_filters(4, 64, 8000, 5000, 4000)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda x: ops.fft(x, length=0), r"\[fft\] expected a transform of 1 to"),
        (lambda x: ops.fft(x, length=1 << 40), r"\[fft\] expected a transform of 1 to"),
        (lambda x: ops.fft(x, axis=2), r"\[fft\] expected axis in"),
        (lambda x: ops.fft(x, x[:1]), r"\[fft\] expected parts of one shape"),
        (lambda x: ops.irfft(x[:, :1]), r"\[irfft\] expected a transform of 1 to"),
        (lambda x: ops.rfft(x.cast("i32")), r"\[rfft\] expected x to be of kind float"),
        (lambda x: ops.frames(x, length=4, step=0), r"\[frames\] expected frames and steps of at least 1"),
        (lambda x: ops.stft(x[:, :3], x[0], step=1), r"\[stft\] expected a signal of at least one frame"),
        (lambda x: ops.istft(x, x, x[0], step=1), r"\[istft\] expected bins for a window"),
        (lambda x: ops.overlap_add(x, step=-1), r"\[overlap_add\] expected a step"),
        (lambda x: ops.welch_peaks(x, x[0], step=1, count=9), r"\[welch_peaks\] expected a count of peaks"),
    ],
)
def test_errors_say_what_was_expected(make: Any, message: str) -> None:
    graph = rlx.Graph()
    x = graph.input("x", (2, 8))
    with pytest.raises(rlx.RlxError, match=message):
        make(x)
