"""Builds the wheel and the source distribution, installs each into an empty environment, and tries it there.

    python -m tools.check_packages [--python python3.12,python3.13]

Without `--python` the interpreter that runs this is used. All that lies under `src/rlx` must be in both, and a graph
must compile and run with nothing but what the package requires.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
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
from rlx.ir.serial import save_graph
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


def built(folder: Path) -> list[Path]:
    """The source distribution, and a wheel that is made of it, as an index gets them."""
    python = environment(folder / "builder", sys.executable)
    run(python, "-m", "pip", "install", "--quiet", "hatchling")
    run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (source,) = folder.glob("*.tar.gz")
    run("tar", "-xzf", source, "-C", folder)
    run(
        python,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        folder,
        cwd=folder / source.name.removesuffix(".tar.gz"),
    )
    return [*folder.glob("*.whl"), source]


def tried(package: Path, interpreter: str, folder: Path, listing: Path) -> None:
    """Installs a package and runs the trial in a folder that is not the project's."""
    place = Path(tempfile.mkdtemp(dir=folder)) / "environment"
    python = environment(place, interpreter)
    start = time.monotonic()
    run(python, "-m", "pip", "install", "--quiet", package)
    seconds = time.monotonic() - start
    run(python, "-I", "-c", TRIAL, listing, cwd=place)
    command = python.parent / f"rlx{python.suffix}"
    assert run(command, "--version").startswith("rlx ")
    assert "y" in run(command, "run", "net.rlx", "--device", "cpu", cwd=place)
    megabytes = sum(p.stat().st_size for p in place.rglob("*") if p.is_file()) / 1e6
    version = run(python, "-c", "import platform; print(platform.python_version())").strip()
    print(
        f"{package.name} ({package.stat().st_size / 1e6:.2f} MB) works on Python {version}: {megabytes:.0f} MB", end=""
    )
    print(f" with all that it requires, installed in {seconds:.0f} s")


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
        wheel, archive = built(folder)
        for interpreter in interpreters:
            tried(wheel, interpreter, folder, listing)
        tried(archive, interpreters[0], folder, listing)


if __name__ == "__main__":
    main()
