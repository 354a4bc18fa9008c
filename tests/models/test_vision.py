"""Pictures: text is read, a face is found."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.zoo import nets
from real_models import assert_same_answers, opened, path_of, peer

TEXT = "The quick brown fox 2026"
PAGE = (
    "Region-based segmentation",
    "Let us first determine markers of the coins and the",
    "background. These markers are pixels that we can label",
    "the markers are found at the two extreme parts of the",
    "histogram of grey values:",
)


def picture(name: str) -> Any:
    """One of scikit-image's, which is not imported for it."""
    images = pytest.importorskip("PIL.Image")
    spec = find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("scikit-image is not installed: it has the picture")
    return images.open(Path(spec.submodule_search_locations[0]) / "data" / name).convert("RGB")


@pytest.fixture(scope="module")
def ocr() -> tuple[Any, Any]:
    """The example, and a reader of it."""
    for package in ("PIL", "scipy"):
        pytest.importorskip(package)
    from examples import ocr_image

    path_of(nets()["ocr-detector"])
    return ocr_image, ocr_image.Reader("cpu")


def test_a_drawn_line_is_read(ocr: tuple[Any, Any]) -> None:
    example, reader = ocr
    assert [text for _, text in reader.read(example.drawn(TEXT))] == [TEXT]


def test_a_line_upside_down_is_read(ocr: tuple[Any, Any]) -> None:
    example, reader = ocr
    rotated = example.drawn(TEXT).rotate(180)
    assert [text for _, text in reader.read(rotated)] == [TEXT]


def test_a_page_is_read(ocr: tuple[Any, Any]) -> None:
    _, reader = ocr
    read = [text for _, text in reader.read(picture("page.png"))]
    assert all(line in read for line in PAGE)
    for model in (reader.detector, reader.direction, reader.recogniser):
        assert model.compiled.compile_count == 1


def test_the_recogniser_alone_reads_a_line() -> None:
    for package in ("PIL", "scipy"):
        pytest.importorskip(package)
    from examples.ocr_image import HEIGHT, drawn, pixels, width_of

    model = opened("ocr-recogniser")
    line = drawn(TEXT).crop((10, 5, 380, 55))
    image = pixels(line.resize((width_of(line), HEIGHT)))
    (chances,) = assert_same_answers(model, peer("ocr-recogniser"), {"x": image})
    characters = ["", *model.notes["metadata character"].splitlines(), " "]
    steps = chances[0].argmax(1)
    fresh = np.append(True, steps[1:] != steps[:-1])
    assert "".join(characters[i] for i in steps[fresh]).strip() == TEXT


def test_a_face_is_found() -> None:
    image = picture("astronaut.png").resize((320, 320))
    model = opened("detector")
    pixels = np.ascontiguousarray(np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 255)
    (boxes,) = assert_same_answers(model, peer("detector"), {"images": pixels})
    scores = boxes[0, 4:]
    kind, place = np.unravel_index(scores.argmax(), scores.shape)
    x, y = boxes[0, :2, place]
    assert kind == 1 and scores[kind, place] > 0.75
    assert 110 < x < 170 and 40 < y < 110  # her face, in pixels of 320
