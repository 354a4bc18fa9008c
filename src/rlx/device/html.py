"""The explanation as one page that needs nothing else: predicted times as bars, kernels under the roofline."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from rlx.device.choice import Candidate, Decision
from rlx.device.explain import as_text, split

COLOURS = {"compute": "#3b6fb6", "memory": "#d98a2b", "launch": "#8a8a8a", "copies": "#5aa469"}
WIDTH, BAR = 860, 26
_Scale = Callable[[float], float]
"""From a value to a place."""
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; color: #222; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
pre { background: #f5f5f3; padding: 1rem; overflow-x: auto; font-size: 12.5px; line-height: 1.4; }
svg text { font: 12px system-ui, sans-serif; fill: #222; } svg .quiet { fill: #777; }
svg { width: 100%; height: auto; } .key span { margin-right: 1.2rem; } .key i { display: inline-block; width: .8rem;
height: .8rem; margin-right: .35rem; vertical-align: -1px; }
@media (prefers-color-scheme: dark) { body { background: #1b1b1b; color: #ddd; } pre { background: #262626; }
svg text { fill: #ddd; } svg .quiet { fill: #999; } }
"""


def page(decision: Decision, graph: str = "") -> str:
    """A whole HTML document."""
    title = html.escape(f"{graph or 'graph'} on {decision.chosen}")
    key = "".join(f'<span><i style="background:{colour}"></i>{name}</span>' for name, colour in COLOURS.items())
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>',
        f"<h1>{title}</h1><p>{html.escape(decision.reason)}</p>",
        "<h2>What each device would take</h2>", f'<p class="key">{key}</p>', bars(decision),
    ]  # fmt: skip
    chosen = decision.candidate(decision.chosen)
    if chosen.estimate is not None:
        parts += [f"<h2>Kernels on {html.escape(str(chosen.device))}</h2>", roofline(chosen)]
    parts += ["<h2>In words</h2>", f"<pre>{html.escape(as_text(decision, graph))}</pre>", "</body></html>"]
    return "\n".join(parts)


def bars(decision: Decision) -> str:
    """Predicted times, split, with the band as a whisker and measurements as a dot; on a logarithmic axis."""
    rows = [c for c in decision.candidates if c.estimate is not None]
    if not rows:
        return "<p>No predictions were needed.</p>"
    ends = [c.run_ns() * (1 + c.band) for c in rows]
    low = min(c.run_ns() * (1 - min(c.band, 0.9)) for c in rows) / 2
    high = max(ends) * 1.3
    left, right = 110, WIDTH - 90

    def x(ns: float) -> float:
        return left + (right - left) * (math.log10(max(ns, low)) - math.log10(low)) / (
            math.log10(high) - math.log10(low)
        )

    made = [_axis(x, low, high, len(rows) * (BAR + 10) + 8)]
    for number, c in enumerate(rows):
        made.append(_bar(c, c.device == decision.chosen, x, 6 + number * (BAR + 10), left))
    height = len(rows) * (BAR + 10) + 34
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="predicted times">{"".join(made)}</svg>'


def _bar(c: Candidate, chosen: bool, x: _Scale, top: float, left: float) -> str:
    assert c.estimate is not None
    compute, memory = split(c)
    total = max(c.estimate.run_ns, 1e-9)
    end = x(c.estimate.run_ns * c.ratio)
    parts = zip(COLOURS.values(), (compute, memory, c.estimate.launch_ns, c.estimate.copy_ns))
    made, at = [], float(left)
    for colour, ns in parts:
        width = (end - left) * ns / total
        made.append(f'<rect x="{at:.1f}" y="{top}" width="{max(width, 0):.1f}" height="{BAR}" fill="{colour}"/>')
        at += width
    low, high = (x(c.estimate.run_ns * c.ratio * factor) for factor in (1 - c.estimate.band, 1 + c.estimate.band))
    middle = top + BAR / 2
    made.append(f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#000" stroke-opacity=".55" stroke-width="2"/>')
    if c.measured_ns is not None:
        made.append(f'<circle cx="{x(c.measured_ns):.1f}" cy="{middle}" r="5" fill="#c33" stroke="#fff"/>')
    weight = ' font-weight="700"' if chosen else ""
    made.append(f'<text x="{left - 8}" y="{middle + 4}" text-anchor="end"{weight}>{html.escape(str(c.device))}</text>')
    made.append(f'<text x="{max(end, high) + 8:.1f}" y="{middle + 4}">{c.run_ns() / 1e6:.3g} ms</text>')
    return "".join(made)


def _axis(x: _Scale, low: float, high: float, bottom: float) -> str:
    made = []
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        place, ns = x(10.0**power), 10.0**power
        label = f"{ns / 1e9:g} s" if ns >= 1e9 else f"{ns / 1e6:g} ms" if ns >= 1e6 else f"{ns / 1e3:g} µs"
        made.append(f'<path d="M{place:.1f} 0V{bottom}" stroke="#999" stroke-opacity=".4"/>')
        made.append(f'<text class="quiet" x="{place:.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    return "".join(made)


def roofline(c: Candidate) -> str:
    """Kernels by operations a byte (across) and operations a ns (up); the roofs are the best that the kernels reach."""
    assert c.estimate is not None
    kernels = [k for k in c.estimate.kernels if k.flops > 0 and k.nbytes > 0 and k.ns > 0]
    if not kernels:
        return "<p>No kernel computes.</p>"
    points = [(k.flops / k.nbytes, k.flops / k.ns, k) for k in kernels]
    peak = max(k.flops / max(k.compute_ns, 1e-3) for k in kernels if k.compute_ns > 0.2 * k.ns) if kernels else 1.0
    stream = max((k.nbytes / k.memory_ns for k in kernels if k.memory_ns > 0), default=1.0)
    x = _Log([p[0] for p in points], 60, WIDTH - 20)
    y = _Log([*(p[1] for p in points), peak], 330, 20)
    longest = max(k.ns for k in kernels)
    made = [_roof(peak, stream, x, y)]
    for intensity, rate, kernel in points:
        radius = 3 + 12 * math.sqrt(kernel.ns / longest)
        colour = COLOURS["compute" if kernel.compute_ns >= kernel.memory_ns else "memory"]
        label = html.escape(
            f"{kernel.name} ({', '.join(kernel.sources[:2])}): {kernel.ns / 1e3:.1f} µs, {rate:.3g} Gop/s"
        )
        made.append(
            f'<circle cx="{x(intensity):.1f}" cy="{y(rate):.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity=".55">'
            f"<title>{label}</title></circle>"
        )
    made += _ticks(x, y)
    return f'<svg viewBox="0 0 {WIDTH} 380" role="img" aria-label="roofline">{"".join(made)}</svg>'


class _Log:
    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = math.log10(min(values)) - 0.3, math.log10(max(values)) + 0.3
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        part = (math.log10(max(value, 1e-12)) - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * min(max(part, 0.0), 1.0)


def _roof(peak: float, stream: float, x: _Log, y: _Log) -> str:
    ridge = peak / stream
    first = 10**x.low
    path = f"M{x(first):.1f} {y(first * stream):.1f}L{x(ridge):.1f} {y(peak):.1f}L{x(10**x.high):.1f} {y(peak):.1f}"
    return (
        f'<path d="{path}" fill="none" stroke="#888" stroke-width="1.5"/>'
        f'<text class="quiet" x="{WIDTH - 24}" y="{y(peak) - 6:.1f}" text-anchor="end">{peak:.3g} Gop/s</text>'
    )


def _ticks(x: _Log, y: _Log) -> list[str]:
    made = []
    for power in range(math.ceil(x.low), math.floor(x.high) + 1):
        made.append(f'<text class="quiet" x="{x(10.0**power):.1f}" y="350" text-anchor="middle">{10.0**power:g}</text>')
    for power in range(math.ceil(y.low), math.floor(y.high) + 1):
        made.append(f'<text class="quiet" x="52" y="{y(10.0**power) + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    made.append(f'<text class="quiet" x="{WIDTH / 2}" y="372" text-anchor="middle">operations a byte</text>')
    made.append('<text class="quiet" x="14" y="14">operations a ns</text>')
    return made
