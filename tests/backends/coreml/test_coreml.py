"""What is special to Core ML: models in packages, sizes and weights in them, names, 32-bit integers, who runs them.
What all devices share is in tests/ops."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rlx
from backends.coreml.common import compiled, entry, here
from rlx import ops
from rlx.backends import coreml as backend
from rlx.backends.base import Options
from rlx.backends.coreml import executable, package
from rlx.backends.coreml.build import ports
from rlx.cli import main
from rlx.device import calibration, registry
from rlx.device.device import Device
from rlx.device.policy import DevicePolicy
from rlx.errors import CapabilityError, CompileError, DeviceUnavailable, InputError, UnsupportedOp
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.serial import save_graph
from rlx.ir.type import TensorType
from support import run_on

ANE = Device("ane")


def net() -> Graph:
    graph = Graph("net")
    x = graph.input("x", ("n", 4), "f32")
    graph.output(ops.softmax(x @ graph.param("w", (4, 4), "f32")), name="y")
    return graph


# packages


@here
@pytest.mark.parametrize("precision, product", [("f32", "fp32"), ("f16", "fp16")])
def test_a_package_says_what_was_asked_for(
    precision: str, product: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RLX_COREML_PRECISION", precision)
    program = compiled(net(), w=np.eye(4, dtype=np.float32))
    for _ in range(2):  # the second takes the place of the first
        program.save(tmp_path / "net.mlpackage", {"n": 3})
    assert [p.name for p in tmp_path.iterdir()] == ["net.mlpackage"]
    spec = backend.library.tools().models.utils.load_spec(str(tmp_path / "net.mlpackage"))
    contents = package.contents(spec)
    assert contents.inputs == {"x": entry("fp32[3,4]")} and contents.outputs == {"y": entry("fp32[3,4]")}
    assert (contents.ops["softmax"], contents.ops["cast"]) == (1, 0 if precision == "f32" else 2)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    expected = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(program.run([x])[0], expected, rtol=1e-6 if precision == "f32" else 2e-3)


@here
def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    program = compiled(net(), w=np.eye(4, dtype=np.float32))
    for sizes in (None, {}, {"n": 3, "m": 1}):
        with pytest.raises(InputError, match="sizes of the dims n"):
            program.save(tmp_path / "net.mlpackage", sizes)
    with pytest.raises(CompileError, match=r"ends in \.mlpackage"):
        program.save(tmp_path / "net.onnx", {"n": 3})
    (tmp_path / "mine.mlpackage").mkdir()
    with pytest.raises(FileExistsError, match="something else"):
        program.save(tmp_path / "mine.mlpackage", {"n": 3})
    with pytest.raises(InputError, match="params to be set"):
        rlx.Session("ane").compile(net()).save(tmp_path / "net.mlpackage", {"n": 3})
    assert [p.name for p in tmp_path.iterdir()] == ["mine.mlpackage"]


@here
def test_conversions_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "saved").mkdir()
    program = compiled(net(), w=np.eye(4, dtype=np.float32))
    for n in range(1, 4):
        program.run([np.ones((n, 4), np.float32)])
    program.save(tmp_path / "saved" / "net.mlpackage", {"n": 2})
    assert len([p for p in tmp_path.iterdir() if p.name.startswith("rlx-coreml-")]) == 3
    program.set_param("w", np.ones((4, 4), np.float32))  # other weights are other models
    gc.collect()
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]
    program.run([np.ones((1, 4), np.float32)])
    del program
    gc.collect()
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]


@here
def test_conversions_that_fail_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fails(*_: object) -> None:
        raise CompileError("no")

    monkeypatch.setattr(package, "check", fails)
    with pytest.raises(CompileError, match="no"):
        compiled(net(), w=np.eye(4, dtype=np.float32)).run([np.ones((1, 4), np.float32)])
    assert not list(tmp_path.iterdir())


def test_other_devices_have_no_packages(tmp_path: Path) -> None:
    program = rlx.Session("cpu").compile(net())
    with pytest.raises(InputError, match="expected no sizes"):
        program.save(tmp_path / "net", {"n": 3})
    with pytest.raises(CapabilityError, match="package"):
        program.executable.write_package(tmp_path / "net.mlpackage", {"n": 3})


@here
def test_the_command_converts_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = net()
    graph.data = {"w": np.eye(4, dtype=np.float32)}
    save_graph(graph, tmp_path / "net.rlx")
    line = ["convert", str(tmp_path / "net.rlx"), "-o", str(tmp_path / "net.mlpackage")]
    assert main(line) == 1 and "expected sizes of the dims n" in capsys.readouterr().err
    assert main([*line, "--dim", "n=2"]) == 0
    output = capsys.readouterr()
    assert "softmax" in output.out and "fp32[2, 4]" in output.out and "rlx:" not in output.err
    assert main([*line, "--dim", "n=2", "--device", "cpu"]) == 1
    assert "models of its own" in capsys.readouterr().err


@here
def test_names_are_those_of_core_ml() -> None:
    listed = [(name, TensorType.of((2,), "f32")) for name in ("x.1", "state", "x_1", "1st", "", "größe")]
    assert [p.name for p in ports(listed, set())] == ["x_1", "state_", "x_1_2", "_1st", "value", "gr__e"]
    graph = Graph()
    graph.output(**{"x.1": graph.input("x.1", (), "f32"), "state": graph.input("state", (2,), "bool")})
    program = compiled(graph)
    actual = program.run([np.float32(3), np.array([True, False])])
    assert actual[0].shape == () and actual[0] == 3 and actual[1].tolist() == [True, False]
    model = next(iter(program.executable._models.values()))
    assert [p.name for p in (*model.inputs, *model.outputs)] == ["x_1", "state_", "x_1_2", "state__2"]


@here
def test_masks_of_huge_numbers_are_no_infinities_in_f16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_COREML_PRECISION", "f16")
    graph = Graph()
    x, mask = graph.input("x", (2, 4)), graph.input("mask", (2, 4))
    graph.output(ops.softmax(x + (1.0 - mask) * float(np.finfo(np.float32).min)), name="y")
    graph.output(x * float("-inf"), name="infinite")
    mask_ = np.array([[1, 1, 0, 0], [0, 0, 0, 0]], np.float32)
    actual = compiled(graph).run([np.ones((2, 4), np.float32), mask_])
    assert actual[0].tolist() == [[0.5, 0.5, 0, 0], [0.25] * 4] and np.isneginf(actual[1]).all()


# weights, sizes, integers


@here
def test_other_weights_are_other_models() -> None:
    graph = Graph()
    graph.output(graph.input("x", ("n", 2), "f32") * graph.param("w", (2,), "f32"), name="y")
    program = compiled(graph, w=np.ones(2, np.float32))
    for n, factor in ((2, 1), (3, 1), (2, 5)):
        program.set_param("w", np.full(2, factor, np.float32))
        np.testing.assert_array_equal(program.run([np.ones((n, 2), np.float32)])[0], np.full((n, 2), factor))
    assert program.executable.compile_count == 3


@here
def test_integers_have_32_bits() -> None:
    graph = Graph()
    graph.output(graph.input("x", (2,), "i64") + graph.param("w", (2,), "i64"), name="y")
    program = compiled(graph, w=np.array([1, 2]))
    assert program.run([np.array([-(1 << 31), (1 << 31) - 3])])[0].tolist() == [-(1 << 31) + 1, (1 << 31) - 1]
    with pytest.raises(InputError, match=r"\[run\] expected integers in"):
        program.run([np.array([0, 1 << 31])])
    with pytest.raises(InputError, match="weights whose integers have 32 bits"):
        compiled(graph, w=np.array([1, 1 << 40])).run([np.array([0, 0])])
    with pytest.raises(UnsupportedOp, match="a constant needs more"):
        wide = Graph()
        wide.output(wide.input("x", (2,), "i64") + (1 << 40), name="y")
        compiled(wide)


@here
def test_arrays_without_elements_are_left_out_inside() -> None:
    graph = Graph()
    x = graph.input("x", ("n", 2), "f32")
    graph.output(joined=ops.concat(x[:0] * 2, x, axis=0), total=ops.reduce_sum(x[:0], axes=(0,)))
    actual = compiled(graph).run([np.ones((3, 2), np.float32)])
    assert actual[0].tolist() == np.ones((3, 2)).tolist() and actual[1].tolist() == [0, 0]
    with pytest.raises(UnsupportedOp, match="no arrays without elements"):
        compiled(graph).run([np.ones((0, 2), np.float32)])


# control


def stepped(length: int, reverse: bool) -> Graph:
    """A scan that carries a sum, and gives what it was before and whether it was above 2."""
    step = Graph("step")
    carried, element, factor = (step.input(name, (3,), "f32") for name in "cef")
    step.output(ops.add(carried, element * factor), carried, carried > 2.0)
    graph = Graph()
    inputs = graph.input("c", (3,)), graph.input("x", (length, 3)), graph.input("f", (3,))
    results = ops.scan(*inputs, carried=1, sequences=1, length=length, reverse=reverse, regions=(step,))
    graph.output(**{f"y{i}": value for i, value in enumerate(results)})
    return graph


@here
@pytest.mark.parametrize("length, op", [(5, ""), (70, "while_loop")])
@pytest.mark.parametrize("reverse", [False, True])
def test_long_scans_are_loops(length: int, op: str, reverse: bool) -> None:
    graph = stepped(length, reverse)
    random = np.random.default_rng(0)
    inputs = {v.name: random.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    actual, expected = (run_on(device, graph, inputs) for device in ("ane", "reference"))
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-5, atol=1e-6)
    program = compiled(graph)
    ops_ = package.contents(program.executable.model({}).model.get_spec()).ops
    assert ops_["while_loop"] == (1 if op else 0)


@here
def test_a_conditional_has_both_sides_in_it() -> None:
    graph = Graph()
    p, x = graph.input("p", (), "bool"), graph.input("x", ("n", 2))
    narrow = Graph("narrow")
    narrow.output(ops.reshape(narrow.input("a", ("n", 2)), shape=(4,)))
    plain = Graph("plain")
    plain.output(ops.broadcast_to(ops.reduce_sum(plain.input("a", ("n", 2)), axes=(0, 1)), shape=(4,)))
    graph.output(*ops.if_(p, x, regions=(narrow, plain)), name="y")
    program = compiled(graph)
    ones = np.ones((2, 2), np.float32)
    assert program.run([np.array(True), ones])[0].tolist() == [1] * 4
    assert program.run([np.array(False), ones])[0].tolist() == [4] * 4
    with pytest.raises(UnsupportedOp, match="both sides fit"):
        program.run([np.array(False), np.ones((3, 2), np.float32)])


# composites


def attends(mask: str | None = None, heads: int = 2, dtype: str = "f32", **attributes: Any) -> Graph:
    graph = Graph()
    q, k = graph.input("q", (1, 2, 5, 8), dtype), graph.input("k", (1, heads, 7, 8), dtype)
    more = [graph.input("mask", (5, 7), mask)] if mask else []
    graph.output(rlx.attention(q, k, k, *more, **attributes), name="y")
    return graph


def norm(axes: Sequence[int], scale: str) -> Graph:
    graph = Graph()
    x = graph.input("x", (2, 3, 4))
    w = graph.param("w", (4,)) if scale == "weight" else graph.input("w", (4,))
    graph.output(ops.layer_norm(x, w, axes=tuple(axes)), name="y")
    return graph


CLAIMED: list[tuple[Callable[[], Graph], str]] = [
    (attends, ""),
    (lambda: attends("bool"), ""),
    (lambda: attends("f32"), ""),
    (lambda: attends(heads=1), ""),
    (lambda: attends(scale=0.5), ""),
    (lambda: attends(causal=True, window=2), ""),
    (lambda: attends(empty="nan"), ""),
    (lambda: attends(softcap=5.0), "soft cap"),
    (lambda: attends(fill=-1e4), "forbidden scores of -10000"),
    (lambda: attends(dtype="bf16"), ""),
    (lambda: attends(dtype="f64"), "f64"),
    (lambda: norm((-1,), "weight"), ""),
    (lambda: norm((-1,), "input"), "no weight"),
    (lambda: norm((0,), "weight"), "not the last"),
]


@pytest.mark.parametrize("make, words", CLAIMED)
def test_what_mil_has_ops_for_and_why_not(make: Callable[[], Graph], words: str) -> None:
    reason = backend.CoremlBackend().claim(make().nodes[-1])
    assert reason == "" if not words else words in str(reason)


@here
@pytest.mark.parametrize("mask", [None, "bool", "f32"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"scale": 0.3},
        {"causal": True, "offset": 2},
        {"causal": True, "offset": -2},
        {"window": 2, "offset": -5, "empty": "nan"},
        {"window": 1 << 40, "offset": 1 << 40},
        {"causal": True, "offset": 2, "window": 2, "heads": 1},
    ],
    ids=str,
)
def test_masked_attention_is_the_references(mask: str | None, attributes: Any) -> None:
    """Rows 1 and 2 are without a key by bool masks and by added ones."""
    graph = attends(mask, **attributes)
    random = np.random.default_rng(0)
    inputs = {v.name: random.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    if mask is not None:
        admitted = random.integers(0, 2, (5, 7)).astype(np.bool_)
        admitted[1:3] = False
        inputs["mask"] = admitted if mask == "bool" else np.where(admitted, inputs["mask"], -np.inf).astype(np.float32)
    program = compiled(graph)
    contents = package.contents(program.executable.model({}).model.get_spec()).ops
    assert contents["scaled_dot_product_attention"] == 1 and not contents["softmax"]
    expected = run_on("reference", graph, inputs)["y"]
    np.testing.assert_allclose(program.run(inputs)[0], expected, rtol=1e-5, atol=1e-6)


@here
@pytest.mark.parametrize("policy", ["prefer-native", "force-common"])
def test_fused_and_decomposed_give_the_same(policy: Any) -> None:
    from rlx.backends.claims import Dispatch

    graph = attends("bool")
    random = np.random.default_rng(0)
    q, k = (random.standard_normal(v.shape).astype(np.float32) for v in graph.inputs[:2])
    mask = random.integers(0, 2, (5, 7)).astype(np.bool_)
    mask[2] = False
    executable = backend.CoremlBackend().compile(graph, Options(dispatch=Dispatch(policy)))
    expected = run_on("reference", graph, {"q": q, "k": k, "mask": mask})["y"]
    np.testing.assert_allclose(executable.bind({})([q, k, mask])[0], expected, rtol=1e-5, atol=1e-6)


# who runs it


@here
def test_elsewhere_models_are_saved_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_COREML_RUN", "device")
    monkeypatch.setattr("sys.platform", "linux")
    program = compiled(net(), w=np.eye(4, dtype=np.float32))
    with pytest.raises(DeviceUnavailable, match=r"\[run\] expected macOS, whose Core ML runs models"):
        program.run([np.ones((2, 4), np.float32)])
    with pytest.raises(DeviceUnavailable, match=r"\[calibrate\] expected macOS"):
        calibration.calibration(ANE)
    assert registry.probe("ane").devices == (backend.CONVERTER,)
    assert "runs none on this system" in DevicePolicy().why_refused(ANE)
    assert DevicePolicy(hint=ANE).why_refused(ANE) == ""
    assert rlx.Session("auto").compile(net()).device != "ane"


@here
def test_on_macos_core_ml_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for Core ML, which is given what coremltools' pages ask for."""
    predictions: list[dict[str, Any]] = []

    def loaded(path: str, compute_units: Any) -> Any:
        def predict(features: dict[str, Array]) -> dict[str, Array]:
            predictions.append({"path": path, "units": compute_units.name, **features})
            return {"y": features["x"].astype(np.float32) + 1, "more": 1 - features["p"]}

        return SimpleNamespace(predict=predict)

    monkeypatch.setenv("RLX_COREML_RUN", "device")
    monkeypatch.setattr(executable, "on_macos", lambda: True)
    graph = Graph()
    graph.output(y=graph.input("x", (2,), "f16") + 1.0, more=ops.logical_not(graph.input("p", (), "bool")))
    program = compiled(graph)
    program.executable.model({})
    monkeypatch.setattr(backend.library.tools().models, "MLModel", loaded)
    for _ in range(2):
        actual = program.run([np.ones(2, np.float16), np.array(True)])
    assert [a.dtype for a in actual] == [np.float16, np.bool_] and actual[0].tolist() == [2, 2] and not actual[1]
    assert (
        len(predictions) == 2
        and predictions[0]["units"] == "CPU_AND_GPU"
        and predictions[0]["path"].endswith(".mlpackage")
    )
    assert predictions[0]["p"].dtype == np.int32 and predictions[0]["p"].shape == (1,)


@here
def test_folding_says_what_it_has_no_values_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op whose function is taken away: which have none depends on the version of coremltools, and torch beside."""

    def untold(op: Any) -> None:
        raise NotImplementedError

    graph = Graph()
    graph.output(ops.erf(graph.input("x", (4,))), name="y")
    compiled_graph = compiled(graph)
    compiled_graph.run([np.ones(4, np.float32)])
    program = compiled_graph.executable.model({}).model._mil_program
    (op,) = [op for op in program.functions["main"].operations if op.op_type == "erf"]
    monkeypatch.setattr(type(op), "value_inference", untold)
    with pytest.raises(UnsupportedOp, match="ops that coremltools has values for, got erf"):
        compiled_graph.run([np.ones(4, np.float32)])


@pytest.mark.parametrize(
    "installed, system, version, machine, devices, reason",
    [
        (False, "linux", "", "x86_64", (), "pip install 'rlx[coreml]'"),
        (True, "linux", "", "x86_64", (backend.CONVERTER,), ""),
        (True, "darwin", "14.7", "arm64", (), "macOS 15 or newer, got 14.7"),
        (True, "darwin", "15.0", "arm64", ("Apple Neural Engine",), ""),
        (True, "darwin", "26.1", "x86_64", ("Core ML",), ""),
    ],
)
def test_what_a_probe_finds(
    installed: bool, system: str, version: str, machine: str, devices: tuple[str, ...], reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.mac_ver", lambda: (version, ("", "", ""), machine))
    monkeypatch.setattr("platform.machine", lambda: machine)
    probe = backend.CoremlBackend().probe()
    assert probe.devices == devices and reason in probe.reason
