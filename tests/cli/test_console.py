"""What commands print: tables as wide as the terminal, progress, reports of the machine, help, and completion."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import rlx
from rlx.cli import console, main, sizes
from rlx.ir.graph import Graph
from rlx.ir.serial import save_graph


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Terminals are of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    yield
    console.widen(False)


def printed_on(screen: io.StringIO, *table: Any, **options: Any) -> list[str]:
    """The lines of a table on this stdout."""
    with contextlib.redirect_stdout(screen):
        console.out().print(console.table(*table, **options))
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in screen.getvalue().splitlines()]


NAME = "encoder.layers.0.self_attention.query_key_value.projection.weight"
ROWS = [(NAME, f"f32[{NAME}]", 123456.75, "expected a device of this machine, got one that is nowhere to be seen")]
COLUMNS = ("name", "type", "ms", "why")


def test_names_are_cut_at_their_end_and_numbers_never() -> None:
    shown = printed_on(Terminal(), "title", COLUMNS, ROWS, right=(2,), wrap=(3,))
    assert max(map(len, shown)) <= 80
    assert shown[0] == "title" and "123456.75" in shown[2]
    assert re.match(r"encoder\.\S+…  f32\[\S+…", shown[2])
    words = " ".join(line.strip().split("  ")[-1] for line in shown[2:]).split()
    assert words == ROWS[0][3].split(), "sentences go on at whole words"


def test_wide_tables_and_files_have_whole_names() -> None:
    console.widen(True)
    (_, row) = printed_on(Terminal(), "", COLUMNS, ROWS, right=(2,))
    assert NAME in row and ROWS[0][3] in row
    console.widen(False)
    lines = printed_on(io.StringIO(), "", COLUMNS, [*ROWS, ("short", "", 1, "")], right=(2,))
    assert NAME in lines[1] and all(line == line.rstrip() for line in lines)


def test_brackets_in_names_are_no_markup() -> None:
    assert printed_on(Terminal(), "", ("a",), [("[bold]x[/bold]",)])[1].strip() == "[bold]x[/bold]"


def long_names(path: Path) -> None:
    """A model whose names do not fit a line."""
    graph = Graph()
    x, w = graph.input(NAME.replace("weight", "input"), ("batch", 64)), graph.param(NAME, (64, 64))
    graph.data[NAME] = np.ones((64, 64), np.float32)
    for i in range(3):
        x = rlx.tanh(x @ w)
        x.node.source = f"/{NAME.replace('.', '/')}/{i}/Tanh"
    graph.output(x, name=NAME.replace("weight", "output"))
    save_graph(graph, path)


@pytest.mark.parametrize(
    "argv", [("run",), ("inspect",), ("profile", "--runs", "1"), ("profile", "--runs", "1", "--against-prediction"),
             ("check",), ("explain", "--devices", "cpu"), ("explain",), ("devices",), ("env",), ("cache",)],
    ids=" ".join,
)  # fmt: skip
def test_no_line_of_a_command_is_wider_than_the_terminal(tmp_path: Path, argv: tuple[str, ...]) -> None:
    long_names(tmp_path / "m.rlx")
    screen, remarks = Terminal(), Terminal()
    device = () if argv[0] in ("inspect", "explain") else ("--device", "cpu")
    of_model = () if argv[0] in ("devices", "env", "cache") else (str(tmp_path / "m.rlx"), *device)
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(remarks):
        assert main([*argv, *of_model]) == 0
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in screen.getvalue().splitlines()]
    assert lines and max(map(len, lines)) <= 80, max(lines, key=len)
    told = [line for line in remarks.getvalue().splitlines() if len(line) > 80]
    assert all(len(line.split()) == 1 for line in told), "only a word that is longer than a line goes beyond it"


def test_a_refusal_breaks_at_words_in_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own lines stay; where it goes to a file or a pipe, so do long ones."""
    declared = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    nodes = [
        helper.make_node("Twist", ["x"], [f"v{i}"], name=f"/encoder/layer.{i}/Twist", domain="d") for i in range(2)
    ]
    nodes.append(helper.make_node("Add", ["v0", "v1"], ["y"]))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    made = helper.make_model(helper.make_graph(nodes, "g", declared[:1], declared[1:]), opset_imports=opsets)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    screen, pipe = Terminal(), io.StringIO()
    for stream in (screen, pipe):
        with contextlib.redirect_stderr(stream):
            assert main(["run", str(tmp_path / "m.onnx")]) == 1
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 and screen.getvalue().split() == pipe.getvalue().split()
    assert sum(line.startswith("  node '/encoder/") for line in lines) == 2
    assert len(lines) > pipe.getvalue().count("\n") == 3


def test_what_takes_long_is_said_once_where_no_terminal_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PATIENCE_S", 0.01)
    with console.progress("thinking"):
        time.sleep(0.3)
    assert capsys.readouterr().err == "thinking …\n"
    monkeypatch.setattr(console, "PATIENCE_S", 60.0)
    with console.progress("thinking"):
        pass
    assert capsys.readouterr().err == ""


def test_a_search_for_sizes_is_said_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every command that makes up inputs searches, before it reads, compiles or runs anything."""
    long_names(tmp_path / "m.rlx")
    found = sizes._Search.found

    def slowly(search: sizes._Search) -> sizes.Sizes:
        time.sleep(0.5)
        return found(search)

    monkeypatch.setattr(console, "PATIENCE_S", 0.2)
    monkeypatch.setattr(sizes._Search, "found", slowly)
    for command in ("run", "inspect", "check", "profile", "explain"):
        assert main([command, str(tmp_path / "m.rlx")]) == 0
        assert "looking for sizes …\n" in capsys.readouterr().err, command


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console, "PATIENCE_S", 0.01)
    with console.progress("thinking", 2) as step:
        time.sleep(0.3)
        step()
    assert "thinking" in screen.getvalue() and "thinking …" not in screen.getvalue()


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_env_tells_what_a_report_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RLX_NUM_THREADS", "3")
    (tmp_path / "x.rlxc").write_bytes(b"123")
    code, out, _ = run(capsys, "env", "--json")
    told = json.loads(out)
    assert code == 0 and told["rlx"] == rlx.__version__ and told["packages"]["numpy"] == np.__version__
    assert told["cpu"]["threads"] == 3 and told["cpu"]["isa"] and told["cpu"]["cores"] >= told["cpu"]["usable"]
    assert told["flags"]["RLX_NUM_THREADS"] == "3"
    assert told["cache"]["folder"] == str(tmp_path) and told["cache"]["bytes"] == 3
    devices = {d["device"]: d for d in told["devices"]}
    assert devices["cpu"]["available"] and not devices["rocm"]["available"] and devices["rocm"]["reason"]
    code, out, _ = run(capsys, "env")
    assert code == 0 and all(word in out for word in ("numpy", "cores", "RLX_NUM_THREADS", "rocm", str(tmp_path)))


def test_versions_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "-V") == run(capsys, "--version") == (0, f"rlx {rlx.__version__}\n", "")
    code, out, _ = run(capsys, "run", "--help")
    words = " ".join(re.sub("[│]", " ", out).split())
    assert code == 0 and re.search(r"Here: [^.]*\bcpu\b[^.]*\breference\b[^.]*\.", words)
    assert "--show-completion" in run(capsys, "--help")[1]


@pytest.mark.parametrize(
    "argv, near",
    [
        (["inspekt", "x"], "inspect"),
        (["run", "m.rlx", "--devise", "cpu"], "--device"),
        (["run", "m.rlx", "--device", "refrence"], "reference"),
        (["run", "m.rlx", "--dim", "heigth=3"], "height"),
        (["run", "m.rlx", "-i", "picturs=random"], "picture"),
        (["inspect", "m.rlx", "--dim", "heigth=3"], "height"),
        (["bench", "m.rlx", "--vs", "onxruntime"], "onnxruntime"),
        (["bench", "m.rlx", "--devices", "refrence"], "reference"),
        *[
            ([command, "m.rlx", "--precision", slip], near)
            for command in ("run", "bench", "profile", "explain", "check")
            for slip, near in (("f61", "f16"), ("float16", "f16"), ("bf-16", "bf16"))
        ],
    ],
)
def test_a_slip_is_told_what_it_may_mean(
    capsys: pytest.CaptureFixture[str], argv: list[str], near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = Graph()
    graph.output(graph.input("picture", ("height",)), name="y")
    save_graph(graph, tmp_path / "m.rlx")
    code, out, err = run(capsys, *argv)
    assert code in (1, 2) and not out
    words = " ".join(err.replace("│", " ").split())
    assert re.search(r"did you mean|possible options", words, re.I) and near in words


def completed(tmp_path: Path, typed: str) -> set[str]:
    """What bash is offered for a line."""
    environment = {
        **os.environ, "_RLX_COMPLETE": "complete_bash", "COMP_WORDS": f"rlx {typed}",
        "COMP_CWORD": str(len(typed.split(" "))), "PYTHONPATH": str(Path(rlx.__file__).parents[1]),
    }  # fmt: skip
    code = "import sys; from rlx.cli import main; sys.exit(main())"
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    return set(printed.stdout.split())


@pytest.mark.parametrize(
    "typed, offered",
    [
        ("ins", {"inspect"}),
        ("run --device refer", {"reference"}),
        ("bench --vs onnxruntime,torch.", {"onnxruntime,torch.compile"}),
        ("check --precision b", {"bf16"}),
    ],
)
def test_shells_complete_commands_devices_and_peers(tmp_path: Path, typed: str, offered: set[str]) -> None:
    assert completed(tmp_path, typed) == offered


def test_bench_says_on_what_it_ran(tmp_path: Path) -> None:
    """In a process of its own: it keeps itself on one core."""
    graph = Graph()
    graph.output(rlx.exp(graph.input("x", (4,))), name="y")
    save_graph(graph, tmp_path / "m.rlx")
    argv = [sys.executable, "-m", "rlx", "bench", str(tmp_path / "m.rlx"), "--seconds", "0.1", "--threads", "1"]

    def printed(*more: str) -> str:
        return subprocess.run([*argv, *more], capture_output=True, check=True, text=True).stdout

    told: dict[str, Any] = json.loads(printed("--device", "cpu", "--json"))
    assert told["device"] == "cpu" and told["threads"] == 1 and told["isa"]
    assert told["timings"][0]["about"]["version"] == rlx.__version__
    text = printed("--device", "reference", "--vs", "onnxruntime")
    assert "on reference, 1 thread" in text
    assert [line for line in text.splitlines() if line.startswith("onnxruntime did not run: ")]
