"""Pages for newcomers run: blocks of Python in order, and the commands between them."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlx import flags
from rlx.cli import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"tutorial.md": "", "from-onnxruntime.md": "onnxruntime", "from-torch.md": "torch", "from-jax.md": "jax"}
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if PAGES[page] and find_spec(PAGES[page]) is None:
        pytest.skip(f"{PAGES[page]} is not installed")
    if PAGES[page] == "torch":
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    names: dict[str, Any] = {"__name__": "page"}
    for number, (language, text) in enumerate(BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))):
        if language == "python":
            file = tmp_path / f"block_{number}.py"  # errors of traces quote lines of files
            file.write_text(text, encoding="utf-8")
            exec(compile(text, str(file), "exec"), names)
            continue
        for line in text.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "rlx"
            assert main(arguments) == 0, line


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_and_variables_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"\bRLX_[A-Z_]+", text)) <= flags.FLAGS.keys()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
