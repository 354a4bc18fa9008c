"""The explanation as one page that needs nothing else: `page.html`, a template, with the decision's data as JSON."""

from __future__ import annotations

import datetime
import html
import json
import math
import platform
from importlib import resources
from string import Template
from typing import Any

from rlx.device.choice import Decision
from rlx.device.explain import as_dict


def page(decision: Decision, graph: str = "") -> str:
    """A whole HTML document: times of devices as bars on one scale, a table of kernels, and where it was made."""
    data = as_dict(decision, graph or "the graph") | {"machine": _machine(decision)}
    if math.isinf(decision.expected_runs):
        data["expected_runs"] = None  # JSON has no infinity
    # nothing in a name can end the element that holds it
    text = json.dumps(data, default=str, allow_nan=False).replace("<", "\\u003c")
    title = html.escape(f"{graph or 'the graph'} on {decision.chosen}")
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return Template(template).substitute(title=title, data=text)


def _machine(decision: Decision) -> dict[str, Any]:
    """What the page tells of its origin."""
    import rlx

    devices = {str(c.device): c.name for c in decision.candidates if c.estimate is not None or c.sample is not None}
    return {
        "made": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "rlx": rlx.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(),
        **devices,
    }
