"""Finds sleep spindles (bursts of 11 to 16 Hz) in an EEG and draws them.

pip install --no-deps brainmaze-eeg-models==0.1.0 && pip install matplotlib
python examples/eeg_spindles.py [recording.npy] [picture.png]     (one channel at 250 Hz; without it, a made one)
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import rlx

Samples = NDArray[np.float64]
RATE_HZ = 250
WINDOW = 30 * RATE_HZ  # the net sees 30 s at a time


class Detector:
    """The net of OpenSpindleNet: 30 s of EEG in, how sure it is of a spindle at every sample."""

    def __init__(self, device: str = "auto") -> None:
        spec = find_spec("brainmaze_eeg_models")
        if spec is None or not spec.submodule_search_locations:
            sys.exit("the model comes with a package: pip install --no-deps brainmaze-eeg-models==0.1.0")
        folder = Path(spec.submodule_search_locations[0])
        self.model = rlx.load(folder / "spindles" / "_models" / "spindle-detector-eeg.onnx", device=device)

    def chance(self, eeg: Samples) -> Samples:
        """For every sample of a channel, how likely it lies in a spindle. All windows run as one batch."""
        count = -(-len(eeg) // WINDOW)
        windows = np.pad(eeg, (0, count * WINDOW - len(eeg))).reshape(count, WINDOW)
        spectra = np.stack([scalogram(window) for window in windows])
        logits = self.model(
            raw_signal=normal(windows[:, None]).astype(np.float32), spectrogram=normal(spectra).astype(np.float32)
        )["segmentation"]
        made: Samples = 1 / (1 + np.exp(-logits.astype(np.float64).reshape(-1)[: len(eeg)]))
        return made


def normal(x: Samples) -> Samples:
    """Every row with mean 0 and deviation 1; silent rows are 0."""
    deviation = x.std(-1, keepdims=True)
    made: Samples = (x - x.mean(-1, keepdims=True)) / np.where(deviation > 0, deviation, 1)
    return made


def scalogram(x: Samples) -> Samples:
    """[15, samples]: magnitudes of a wavelet transform (complex Shannon, bandwidth 6, centre 13) from 24 to 12 Hz.

    It follows pywt.cwt, wavelet sampled at 1024 points: the net was trained on that.
    """
    points = np.linspace(-20, 20, 1024)
    step = points[1] - points[0]
    wavelet = np.sqrt(6) * np.sinc(6 * points) * np.exp(2j * np.pi * 13 * points)
    integral = np.conj(np.cumsum(wavelet) * step)
    rows = []
    for scale in np.geomspace(135, 270, 15):
        taken = (np.arange(scale * 40 + 1) / (scale * step)).astype(int)
        kernel = integral[taken[taken < len(points)]][::-1]
        length = len(x) + len(kernel) - 1
        convolved = np.fft.ifft(np.fft.fft(x, length) * np.fft.fft(kernel, length))
        changes = np.sqrt(scale) * np.abs(np.diff(convolved))
        start = (len(changes) - len(x)) // 2
        rows.append(changes[start : start + len(x)])
    return np.stack(rows)


def spans(chance: Samples, least: float = 0.5) -> list[tuple[float, float]]:
    """Stretches of at least 0.3 s above a chance, in seconds."""
    above = np.concatenate([[False], chance > least, [False]])
    edges = np.flatnonzero(above[1:] != above[:-1]).reshape(-1, 2)
    return [(a / RATE_HZ, b / RATE_HZ) for a, b in edges if b - a >= 0.3 * RATE_HZ]


def made_eeg(bursts_s: tuple[float, ...] = (6.0, 15.0, 24.0), seconds: int = 30, seed: int = 0) -> Samples:
    """1/f noise of 20 µV with bursts of 13.2 Hz, each about a second long."""
    count = seconds * RATE_HZ
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(count))
    spectrum[1:] /= np.sqrt(np.fft.rfftfreq(count, 1 / RATE_HZ)[1:])
    spectrum[0] = 0
    noise = np.fft.irfft(spectrum, count)
    time_s = np.arange(count) / RATE_HZ
    wave = np.sin(2 * np.pi * 13.2 * time_s)
    bursts = sum(np.exp(-(((time_s - at) / 0.4) ** 2)) for at in bursts_s)
    made: Samples = 20 * noise / noise.std() + 40 * bursts * wave
    return made


def draw(eeg: Samples, chance: Samples, path: str) -> None:
    """The signal, the spindles in it, and how sure the net is."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    time_s = np.arange(len(eeg)) / RATE_HZ
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(12, 5), height_ratios=(3, 1))
    upper.plot(time_s, eeg, color="0.2", linewidth=0.6)
    upper.set_ylabel("EEG (µV)")
    lower.plot(time_s, chance, color="tab:red")
    lower.set(xlabel="time (s)", ylabel="spindle", ylim=(0, 1), xlim=(0, time_s[-1]))
    for start, stop in spans(chance):
        upper.axvspan(start, stop, color="tab:red", alpha=0.2)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    if find_spec("matplotlib") is None:
        sys.exit("the picture is drawn by matplotlib: pip install matplotlib")
    eeg = np.load(sys.argv[1]).astype(np.float64) if len(sys.argv) > 1 else made_eeg()
    picture = sys.argv[2] if len(sys.argv) > 2 else "spindles.png"
    chance = Detector().chance(eeg)
    for start, stop in spans(chance):
        print(f"{start:7.2f} s to {stop:7.2f} s")
    draw(eeg, chance, picture)
    print(f"drawn into {picture}")


if __name__ == "__main__":
    main()
