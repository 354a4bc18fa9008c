"""Writes docs/backends.md: what each device of this machine takes and gets right of the op cases and small real nets.

    PYTHONPATH=src:. python -m benchmarks.backend_table [--devices cpu,mlx] [--output docs/backends.md]

The figures are the test suite's own: `pytest --device NAME` in a process for each device, and its report read.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import rlx.ops  # noqa: F401  it fills the registry of ops
from rlx.device import registry
from rlx.errors import RlxError
from rlx.ir.op import REGISTRY

ROOT = Path(__file__).parents[1]
CASES = "tests/ops/test_reference.py::test_op_matches_reference"
NETS = "tests/models/test_nets.py::test_small_nets_on_other_devices"
PACKAGES = ("rlx", "numpy", "llvmlite", "wgpu", "jax", "jaxlib", "mlx", "coremltools", "onnxruntime")
COMPUTES_NOTHING = "computes nothing"
SECOND_NAMES = {"gpu"}
"""Whichever of other devices is the best."""
LIMIT_S = 3600


@dataclass
class Tally:
    """How many of some tests a device took, and how many of these were right."""

    total: int = 0
    taken: int = 0
    right: int = 0

    def add(self, taken: bool, right: bool) -> None:
        self.total, self.taken, self.right = self.total + 1, self.taken + taken, self.right + right

    def __str__(self) -> str:
        return f"{self.right} / {self.taken} / {self.total}"


@dataclass
class Outcome:
    """What the suite said of a device.

    families   op cases by the file of `ops/` that their op stands in
    nets       real nets, and what was wrong with those that were not right
    refused    reasons, and how many cases have them
    wrong      cases that differ, and why
    failure    why there is no report, if there is none
    """

    device: str
    cases: Tally = field(default_factory=Tally)
    families: dict[str, Tally] = field(default_factory=dict)
    nets: Tally = field(default_factory=Tally)
    net_reasons: dict[str, str] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)
    failure: str = ""


def judged(test: xml.Element) -> tuple[bool, bool, str]:
    """Whether a test was taken, whether it was right, and why not."""
    for child in test:
        text = " ".join(line.strip() for line in (child.get("message") or child.text or "").strip().split("\n")[:2])
        if child.tag == "skipped" and child.get("type") == "pytest.xfail":
            return True, False, text
        if child.tag == "skipped":
            return COMPUTES_NOTHING in text, False, text
        if child.tag in ("failure", "error"):
            return True, False, text
    return True, True, ""


def read_report(device: str, path: Path) -> Outcome:
    """The outcome that a report of pytest tells of."""
    outcome = Outcome(device)
    for test in xml.parse(path).iter("testcase"):
        name = str(test.get("name")).partition("[")[2].removesuffix("]")
        taken, right, why = judged(test)
        if "test_nets" in str(test.get("classname")):
            net = name.replace(device, "", 1).strip("-")
            if "is not installed" in why:
                continue
            outcome.nets.add(taken, right)
            if not right:
                outcome.net_reasons[net] = why
            continue
        case = name.removeprefix(f"{device}-")
        op = REGISTRY[case.partition("-")[0]]
        family = op.__module__.rpartition(".")[2]
        outcome.cases.add(taken, right)
        outcome.families.setdefault(family, Tally()).add(taken, right)
        if not taken:
            outcome.refused[why.rpartition(": ")[2]] += 1
        elif not right and COMPUTES_NOTHING not in why:
            outcome.wrong[case] = why
    return outcome


def run(device: str, folder: Path) -> Outcome:
    """Runs the suite on a device in a process of its own, or reads the report of an earlier run in this folder."""
    report = folder / f"{device}.xml"
    command = [sys.executable, "-m", "pytest", CASES, NETS, "--device", device, f"--junitxml={report}"]
    if not report.is_file():
        try:
            completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return Outcome(device, failure=f"it took over {LIMIT_S} s")
        if not report.is_file():
            return Outcome(device, failure=(completed.stderr or completed.stdout).strip().rpartition("\n")[2])
    return read_report(device, report)


def identity(device: str) -> str:
    """The product, its driver and versions, in a line."""
    try:
        backend, ordinal = registry.backend(device)
        facts = dict(backend.identity(ordinal))
    except RlxError as error:
        return str(error)
    return "; ".join(v if k == "device" else f"{k} {v}" for k, v in facts.items() if k != "features")


def version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"no {package}"


def found_elsewhere(kind: str) -> str:
    """What the newest results of another machine say of the cases on a device that is not here, and where they are."""
    row = rf"^\| `tests/ops/test_reference\.py --device {kind}`, (.+?) \| (.+?) \|$"
    for path in sorted((ROOT / "benchmarks" / "results").glob(f"{kind}-*.md"), reverse=True):
        found = re.search(row, path.read_text("utf-8"), re.MULTILINE)
        if found:
            when = path.stem.removeprefix(f"{kind}-")
            return f". On another machine ([{when}](../benchmarks/results/{path.name})): of {found[1]} {found[2]}"
    return ""


def linked() -> list[str]:
    """Links to the pages of backends, as this page lies beside their folder."""
    return [f"[{path.stem}](backends/{path.name})" for path in sorted((ROOT / "docs" / "backends").glob("*.md"))]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)]


def page(outcomes: Sequence[Outcome], absent: Sequence[tuple[str, str]], passed_over: Sequence[str] = ()) -> str:
    """The whole file. `passed_over` are devices that are here, and were not asked for."""
    parts = [
        "# What each device gets right", "",
        "Written by `python -m benchmarks.backend_table`; do not edit. Every device ran the cases of `tests/ops` and",
        "the small real nets of `benchmarks/zoo.py` that are installed, in a process of its own, and was compared with",
        "NumPy and onnxruntime.",
        "`tests/skips.py` lists the differences that tests allow.", "",
        f"Requirements, limits and messages of each: {', '.join(linked())}.", "",
        f"Python {platform.python_version()} on {platform.platform()}; {', '.join(map(version, PACKAGES))}.", "",
        "Figures are *right / supported / all*. `null` compiles and predicts; it computes nothing. `ane` converts:",
        "outside macOS NumPy computes the results of its models, see [backends/coreml.md](backends/coreml.md).", "",
        *table(
            ("device", "what it is", "op cases", "nets"),
            [(o.device, identity(o.device), o.failure or o.cases, o.nets) for o in outcomes],
        ), "",
    ]  # fmt: skip
    if passed_over:
        parts += [f"Here, and not run for this page: {', '.join(passed_over)}.", ""]
    if absent:
        parts += [
            "Not on this machine:",
            "",
            *(f"- {device}: {why}{found_elsewhere(device)}" for device, why in absent),
            "",
        ]
    ran = [o for o in outcomes if not o.failure]
    families = sorted({family for o in ran for family in o.families})
    rows = [(f, *(o.families.get(f, Tally()) for o in ran)) for f in families]
    parts += ["## By family of ops", "", *table(("family", *(o.device for o in ran)), rows), ""]
    parts += ["## What is not supported, and what is wrong", ""]
    for o in ran:
        lines = [f"- refused, {count} cases: {reason}" for reason, count in sorted(o.refused.items())]
        lines += [f"- differs: `{case}`: {why}" for case, why in o.wrong.items()]
        lines += [f"- net {net}: {why}" for net, why in o.net_reasons.items() if COMPUTES_NOTHING not in why]
        if lines:
            parts += [f"### {o.device}", "", *lines, ""]
    return "\n".join(parts).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", default="", help="comma list; all that are here if none are named")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "backends.md")
    parser.add_argument(
        "--reports", type=Path, help="folder to keep pytest's reports in; those there are not run again"
    )
    arguments = parser.parse_args()
    every = [name for name in registry.names() if name not in SECOND_NAMES]
    kinds = [name for name in arguments.devices.split(",") if name] or every
    passed_over = [kind for kind in every if kind not in kinds and registry.is_available(kind)]
    absent = [(kind, registry.why_unavailable(kind)) for kind in kinds if not registry.is_available(kind)]
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        for kind in kinds:
            if not registry.is_available(kind):
                continue
            outcomes.append(run(kind, (arguments.reports or Path(temporary)).absolute()))
            print(f"{kind}: cases {outcomes[-1].cases}, nets {outcomes[-1].nets} {outcomes[-1].failure}", flush=True)
    arguments.output.write_text(page(outcomes, absent, passed_over), encoding="utf-8")


if __name__ == "__main__":
    main()
