"""Reads the text of an image: where text is, which way up it is, what it says. Three nets of PP-OCR.

pip install --no-deps rapidocr==3.10.0 pillow scipy
python examples/ocr_image.py page.png          (without a file it draws a line and reads it)
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

import rlx

Floats = NDArray[np.float32]
Box = tuple[int, int, int, int]
HEIGHT = 48  # of a line, for the nets that read one


class Reader:
    """The three nets. Each is compiled once and then takes images of every size."""

    def __init__(self, device: str = "auto") -> None:
        spec = find_spec("rapidocr")
        if spec is None or not spec.submodule_search_locations:
            sys.exit("the models come with a package: pip install --no-deps rapidocr==3.10.0")
        folder = Path(spec.submodule_search_locations[0]) / "models"
        self.detector = rlx.load(folder / "PP-OCRv6_det_small.onnx", device=device)
        self.direction = rlx.load(folder / "ch_ppocr_mobile_v2.0_cls_mobile.onnx", device=device)
        self.recogniser = rlx.load(folder / "PP-OCRv6_rec_small.onnx", device=device)
        # the characters stand in the file: one a line, after the blank that separates equal neighbours
        self.characters = ["", *self.recogniser.notes["metadata character"].splitlines(), " "]

    def read(self, image: Image.Image) -> list[tuple[Box, str]]:
        """Boxes (left, top, right, bottom) and their texts, from top to bottom."""
        image = image.convert("RGB")
        lines = []
        for box in self.boxes(image):
            text = self.line(image.crop(box))
            if text:
                lines.append((box, text))
        return lines

    def boxes(self, image: Image.Image) -> list[Box]:
        """Where lines of text are. The detector tells for every pixel how likely it belongs to one."""
        scale = max(1.0, 736 / max(image.size))
        width, height = (max(32, int(side * scale) // 32 * 32) for side in image.size)
        (chance,) = self.detector.run([pixels(image.resize((width, height)))])
        chance = chance[0, 0]
        regions, _ = ndimage.label(chance > 0.3)
        found = []
        for number, (rows, columns) in enumerate(ndimage.find_objects(regions), 1):
            h, w = rows.stop - rows.start, columns.stop - columns.start
            if min(h, w) < 3 or chance[rows, columns][regions[rows, columns] == number].mean() < 0.5:
                continue
            grow = 1.6 * h * w / (2 * (h + w))  # regions are drawn narrower than the letters
            sides = columns.start - grow, rows.start - grow, columns.stop + grow, rows.stop + grow
            x, y = image.width / width, image.height / height
            left, top, right, bottom = (round(side * by) for side, by in zip(sides, (x, y, x, y)))
            found.append((max(left, 0), max(top, 0), min(right, image.width), min(bottom, image.height)))
        return sorted(found, key=lambda box: (box[1], box[0]))

    def is_upside_down(self, line: Image.Image) -> bool:
        """Whether a line has to be turned by 180°."""
        seen = np.zeros((1, 3, HEIGHT, 192), np.float32)
        shown = pixels(line.resize((min(192, width_of(line)), HEIGHT)))
        seen[..., : shown.shape[3]] = shown
        (chances,) = self.direction.run([seen])
        return bool(chances[0, 1] > 0.9)

    def line(self, line: Image.Image) -> str:
        """What a line says: the likeliest character at every step, repeats and blanks left out."""
        if self.is_upside_down(line):
            line = line.rotate(180)
        (chances,) = self.recogniser.run([pixels(line.resize((width_of(line), HEIGHT)))])
        steps = chances[0].argmax(1)
        fresh = np.append(True, steps[1:] != steps[:-1])
        return "".join(self.characters[i] for i in steps[fresh]).strip()


def width_of(line: Image.Image) -> int:
    """How wide a line is at the height that the nets want."""
    return max(8, round(line.width * HEIGHT / line.height))


def pixels(image: Image.Image) -> Floats:
    """An image as the nets see it: [1, 3, height, width], blue first, from -1 to 1."""
    array = np.asarray(image, np.float32)[:, :, ::-1] / 127.5 - 1
    return np.ascontiguousarray(array.transpose(2, 0, 1)[None])


def drawn(text: str, size: int = 30) -> Image.Image:
    """A line of text, black on white."""
    font = ImageFont.load_default(size)
    image = Image.new("RGB", (int(font.getlength(text)) + 40, size * 2), "white")
    ImageDraw.Draw(image).text((20, size // 2), text, "black", font)
    return image


def main() -> None:
    image = Image.open(sys.argv[1]) if len(sys.argv) > 1 else drawn("The quick brown fox 2026")
    for box, text in Reader().read(image):
        print(f"{box!s:28} {text}")


if __name__ == "__main__":
    main()
