"""Builds the source distribution, a wheel of it, and tries the wheel in empty environments.

    python -m tools.check_packages [--python python3.12,python3.13]

All that lies under `src/rlx` must be in it, and a graph must compile and run with nothing but what the package
requires: once on each interpreter with the newest versions of that, and once, on this one, with the least that
`pyproject.toml` admits.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PASSED_OVER = ("__pycache__", ".pyc")
TRIAL = """
import sys
from importlib.metadata import metadata, version
from pathlib import Path
import numpy as np
import rlx

here = Path(rlx.__file__).parent
expected = set(Path(sys.argv[1]).read_text().split())
found = {str(p.relative_to(here)) for p in here.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
assert found == expected, (sorted(expected - found), sorted(found - expected))
assert version("rlx") == rlx.__version__ and metadata("rlx")["License-Expression"] == "Apache-2.0"
graph = rlx.Graph("net")
x = graph.input("x", ("n", 4))
graph.output(rlx.softmax(x @ graph.param("w", (4, 3), data=np.eye(4, 3, dtype="f4")), -1), name="y")
wanted = None
for device in ("reference", "cpu"):
    (y,) = rlx.Session(device).compile(graph).run([np.ones((5, 4), "f4")])
    wanted = y if wanted is None else wanted
    assert np.allclose(y, wanted, atol=1e-6)
from rlx.ir import dtype
from rlx.ir.serial import save_graph
for each in dtype.ALL.values():
    if not each.is_complex:
        np.zeros(2, each.numpy).astype(dtype.bf16.numpy)  # which older packages of narrow dtypes do not know
save_graph(graph, "net.rlx")
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """What a command prints. Raises CalledProcessError, with what it said on stderr."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(folder: Path, interpreter: str) -> Path:
    """An empty environment; its interpreter."""
    run(interpreter, "-m", "venv", folder)
    return next(place for place in (folder / "bin" / "python", folder / "Scripts" / "python.exe") if place.exists())


def built(folder: Path) -> Path:
    """A wheel that is made of the source distribution, as an index gets them."""
    python = environment(folder / "builder", sys.executable)
    run(python, "-m", "pip", "install", "--quiet", "hatchling")
    run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (source,) = folder.glob("*.tar.gz")
    run("tar", "-xzf", source, "-C", folder)
    unpacked = folder / source.name.removesuffix(".tar.gz")
    run(python, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    print(f"{source.name}: {source.stat().st_size / 1e6:.2f} MB, {wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
    return wheel


def least() -> str:
    """Constraints for pip: the least version of each package that is required."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return "\n".join(line.replace(">=", "==") for line in project["dependencies"])


def tried(wheel: Path, interpreter: str, listing: Path, place: Path, constraints: Path | None = None) -> None:
    """Installs the wheel and runs the trial in a folder that is not the project's."""
    python = environment(place, interpreter)
    start = time.monotonic()
    bounds = ("--constraint", constraints) if constraints else ()
    run(python, "-m", "pip", "install", "--quiet", wheel, *bounds)
    seconds = time.monotonic() - start
    run(python, "-I", "-c", TRIAL, listing, cwd=place)
    command = python.parent / f"rlx{python.suffix}"
    assert run(command, "--version").startswith("rlx ") and "--device" in run(command, "run", "--help")
    assert "y" in run(command, "run", "net.rlx", "--device", "cpu", cwd=place)
    megabytes = sum(p.stat().st_size for p in place.rglob("*") if p.is_file()) / 1e6
    version = run(python, "-c", "import platform; print(platform.python_version())").strip()
    versions = "the least versions" if constraints else "the newest versions"
    print(f"works on Python {version} with {versions}: {megabytes:.0f} MB, installed in {seconds:.0f} s")


def main() -> None:
    """Builds and tries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreters, comma-separated")
    interpreters = parser.parse_args().python.split(",")
    source = ROOT / "src" / "rlx"
    files = [p for p in source.rglob("*") if p.is_file() and not any(part in str(p) for part in PASSED_OVER)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listing = folder / "files"
        listing.write_text("\n".join(str(p.relative_to(source)) for p in files))
        constraints = folder / "constraints"
        constraints.write_text(least())
        wheel = built(folder)
        for number, interpreter in enumerate(interpreters):
            tried(wheel, interpreter, listing, folder / f"newest-{number}")
        tried(wheel, sys.executable, listing, folder / "least", constraints)


if __name__ == "__main__":
    main()
