"""Pages for users speak of what is there: variables, files, and the words of errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from models.decoder_reference import CONFIGS, weights, write_folder
from rlx import flags

ROOT = Path(__file__).parents[1]
WORDS = 3
PAGES = sorted((ROOT / "docs" / "backends").glob("*.md"))


def test_the_readme_builds_a_program_that_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "rlx.Graph" in code]
    names: dict[str, Any] = {"rlx": rlx}
    exec(compile(block, "README.md", "exec"), names)
    assert names["y"].shape == (2, 3) and np.allclose(names["y"], 4.0, atol=1e-3)


def test_the_page_on_jit_runs_and_its_links_exist(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "jit.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    page = tmp_path / "page.py"  # a file, so that errors can quote its lines
    page.write_text("\n".join(blocks), encoding="utf-8")
    exec(compile(page.read_text(encoding="utf-8"), str(page), "exec"), {"__name__": "page"})
    assert set(re.findall(r"RLX_[A-Z_]+", text)) <= flags.FLAGS.keys()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / "docs" / target).exists(), target


def test_the_page_on_decoders_runs_and_its_links_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small model of the same form."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    text = (ROOT / "docs" / "decoders.md").read_text(encoding="utf-8")
    folder = write_folder(tmp_path / "SmolLM2-135M-Instruct", CONFIGS["llama-tied"], weights(CONFIGS["llama-tied"]))
    words = {word: i for i, word in enumerate(["?", *(f"w{i}" for i in range(39))])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile("\n".join(blocks), "decoders.md", "exec"), {})
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / "docs" / target).exists(), target


def test_variables_and_links_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"RLX_[A-Z_]+", text)) <= flags.FLAGS.keys()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_variables_and_links_of_a_backends_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"RLX_[A-Z_]+", text)) <= flags.FLAGS.keys()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_backends_page_is_found_from_the_table(page: Path) -> None:
    assert f"](backends/{page.name})" in (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_messages_of_a_backends_page_are_of_the_code(page: Path) -> None:
    """Some words in a row of each: what stands between them is of the case."""
    section = page.read_text(encoding="utf-8").partition("## What it says")[2]
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "rlx").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # strings that go on in the next line
    for message in re.findall(r"^\| (`.*?`)[^`|]* \|", section, re.MULTILINE):
        for part in message.split("`, `"):
            runs = [run.split() for run in re.findall(r"[a-zA-Z]+(?: [a-zA-Z]+)*", part)]
            least = min(WORDS, max(map(len, runs)))
            rows = [" ".join(run[i : i + least]) for run in runs for i in range(len(run) - least + 1)]
            assert any(row in code for row in rows), part
