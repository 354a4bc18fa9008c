"""Where somebody speaks in a wav file: Silero's voice detector over all of it in one run.

pip install --no-deps silero-vad==6.2.3
python examples/speech_activity.py recording.wav
"""

from __future__ import annotations

import sys
import wave
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import rlx

Floats = NDArray[np.float32]
RATE_HZ = 16000
CHUNK = 512  # samples that one chance stands for
CONTEXT = 64  # samples before them that the net sees as well


class Listener:
    """The net with its recurrence over any number of chunks: one compile for recordings of every length."""

    def __init__(self, device: str = "auto") -> None:
        spec = find_spec("silero_vad")
        if spec is None or not spec.submodule_search_locations:
            sys.exit("the model comes with a package: pip install --no-deps silero-vad==6.2.3")
        folder = Path(spec.submodule_search_locations[0]) / "data"
        self.model = rlx.load(folder / "silero_vad_16k_sequence.onnx", device=device)

    def chances(self, sound: Floats) -> Floats:
        """For every chunk of 32 ms, how likely somebody speaks."""
        state = np.zeros((1, 1, 128), np.float32)
        made: Floats = self.model(input=chunks(sound), h=state, c=state)["speech_probs"]
        return made


def chunks(sound: Floats) -> Floats:
    """[count, 576]: chunks with the samples before them; silence fills both ends."""
    count = -(-len(sound) // CHUNK)
    padded = np.pad(sound, (CONTEXT, count * CHUNK - len(sound)))
    views: Floats = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + CHUNK)
    return np.ascontiguousarray(views[::CHUNK])


def read_wav(path: str) -> Floats:
    """Samples from -1 to 1 at 16 kHz, channels averaged."""
    with wave.open(path) as file:
        if file.getsampwidth() != 2:
            sys.exit(f"{path}: expected 16-bit samples, got {8 * file.getsampwidth()}-bit ones")
        rate_hz, channels = file.getframerate(), file.getnchannels()
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, channels)
    sound = samples.mean(1) / 32768
    if rate_hz != RATE_HZ:
        places = np.arange(int(len(sound) * RATE_HZ / rate_hz)) * rate_hz / RATE_HZ
        sound = np.interp(places, np.arange(len(sound)), sound)
    return sound.astype(np.float32)


def segments(chances: Floats, start: float = 0.5, stop: float = 0.35) -> list[tuple[float, float]]:
    """Stretches of speech in seconds: they begin above `start`, and end where 0.3 s stay below `stop`."""
    pause = 0.3 * RATE_HZ / CHUNK
    found: list[list[int]] = []
    speaking = False
    for number, chance in enumerate(chances):
        speaking = chance > (stop if speaking else start)
        if not speaking:
            continue
        if found and number - found[-1][1] <= pause:
            found[-1][1] = number + 1
        else:
            found.append([number, number + 1])
    return [(first * CHUNK / RATE_HZ, last * CHUNK / RATE_HZ) for first, last in found]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/speech_activity.py recording.wav")
    for start, stop in segments(Listener().chances(read_wav(sys.argv[1]))):
        print(f"{start:7.2f} s to {stop:7.2f} s")


if __name__ == "__main__":
    main()
