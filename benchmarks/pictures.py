"""Draws the pictures of the README from the committed results:

    pip install matplotlib && python -m benchmarks.pictures

Each picture names its file of results and the digest of what it holds, so that a test finds pictures of other results.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
SPEED = RESULTS / "models-2026-11-30.txt"
CHOICE = RESULTS / "device_choice-2026-11-28.txt"
GREY = "#808080"
"""Of text and lines, which is read on white and on black."""
OURS, THEIRS, OTHERS = "#e4572e", "#4c8dae", "#76b041"
LINE = re.compile(
    r"^(?P<net>\S+) (?P<threads>\d+)t +error \S+ +rlx (?P<rlx>[\d.]+) ms +onnxruntime (?P<onnxruntime>[\d.]+|-)"
    r" +openvino (?P<openvino>[\d.]+|-)", re.MULTILINE,
)  # fmt: skip
CASE = re.compile(
    r"^.{30} (?P<device>cpu|xla|vulkan) +[\d.]+ +(?P<predicted>[\d.]+) +(?P<measured>[\d.]+) ", re.MULTILINE
)


def source_of(file: Path) -> str:
    """What a picture says of where it comes from."""
    return f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"


def speeds(threads: int) -> list[tuple[str, float, dict[str, float]]]:
    """Nets with our time in ms, and the others' times over ours, those that gain most first."""
    rows = []
    for line in LINE.finditer(SPEED.read_text(encoding="utf-8")):
        if int(line["threads"]) == threads:
            ours = float(line["rlx"])
            ratios = {n: float(line[n]) / ours for n in ("onnxruntime", "openvino") if line[n] != "-"}
            rows.append((line["net"], ours, ratios))
    return sorted(rows, key=lambda row: min(row[2].values()))


def predictions() -> dict[str, list[tuple[float, float]]]:
    """Predicted and measured times in ms by device."""
    pairs: dict[str, list[tuple[float, float]]] = {"cpu": [], "xla": [], "vulkan": []}
    for line in CASE.finditer(CHOICE.read_text(encoding="utf-8")):
        pairs[line["device"]].append((float(line["predicted"]), float(line["measured"])))
    return pairs


def draw_speed(plot: Any) -> Any:
    """A row for each net: how many times as long the other runtimes take."""
    rows = speeds(1)
    figure, axes = plot.subplots(figsize=(8, 0.27 * len(rows) + 1.1))
    for at, (_, _, ratios) in enumerate(rows):
        axes.plot([1, max(ratios.values())], [at, at], color=GREY, alpha=0.35, linewidth=1)
    for name, colour, marker in (("onnxruntime", THEIRS, "o"), ("openvino", OTHERS, "D")):
        points = [(ratios[name], at) for at, (_, _, ratios) in enumerate(rows) if name in ratios]
        axes.scatter(*zip(*points), color=colour, marker=marker, s=28, label=name, zorder=3)
    axes.axvline(1, color=OURS, linewidth=2, label="rlx")
    axes.set_xscale("log")
    axes.set_xticks([0.8, 1, 1.5, 2, 3, 5, 10, 20], ["0.8", "1", "1.5", "2", "3", "5", "10", "20"])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [f"{net}  ({ours:.3g} ms)" for net, ours, _ in rows], fontsize=8)
    axes.set_xlabel("time of the other runtime / time of rlx, one thread (right of the line rlx is faster)")
    axes.legend(loc="lower right", frameon=False, labelcolor=GREY)
    return figure


def draw_predictions(plot: Any) -> Any:
    """Predicted against measured times of programs on three devices."""
    figure, axes = plot.subplots(figsize=(8, 4.2))
    for (name, pairs), colour, marker in zip(predictions().items(), (OURS, THEIRS, OTHERS), "oDs"):
        axes.scatter(*zip(*pairs), color=colour, marker=marker, s=20, label=name, zorder=3)
    ends = [0.003, 2000]
    axes.plot(ends, ends, color=GREY, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("predicted, ms")
    axes.set_ylabel("measured, ms")
    axes.legend(loc="lower right", frameon=False, labelcolor=GREY)
    return figure


def main() -> None:
    """Draws all."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({
        "svg.hashsalt": "rlx", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9,
        "axes.spines.top": False, "axes.spines.right": False,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GREY),
    })  # fmt: skip
    for name, draw, file in (("speed", draw_speed, SPEED), ("predictions", draw_predictions, CHOICE)):
        figure = draw(pyplot)
        about = {"Date": None, "Creator": "benchmarks/pictures.py", "Source": source_of(file)}
        figure.savefig(IMAGES / f"{name}.svg", transparent=True, bbox_inches="tight", metadata=about)


if __name__ == "__main__":
    main()
