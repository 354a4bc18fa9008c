"""What `rlx` hands out: its own names and nothing that happens to be imported somewhere."""

from __future__ import annotations

import keyword
from pathlib import Path

import pytest

import rlx
from rlx.errors import RlxError
from rlx.ir.op import REGISTRY

SOURCE = Path(rlx.__file__).parent


def test_every_public_name_is_there() -> None:
    for name in dir(rlx):
        assert getattr(rlx, name) is not None
    assert {name + "_" * keyword.iskeyword(name) for name in REGISTRY} <= set(dir(rlx))
    assert {"Graph", "load", "Session", "f32", "gelu", "where", "non_max_suppression", "ShapeError"} <= set(dir(rlx))


@pytest.mark.parametrize("name", ["Callable", "partial", "Any", "annotations", "REGISTRY", "BUILDERS", "call", "np"])
def test_what_modules_import_is_no_name_of_rlx(name: str) -> None:
    assert name not in dir(rlx)
    with pytest.raises(AttributeError, match=f"rlx has no '{name}'"):
        getattr(rlx, name)


def test_a_wrong_name_is_told_what_it_may_mean() -> None:
    with pytest.raises(AttributeError, match=r"rlx has no 'sofmax'; did you mean .*'softmax'"):
        _ = rlx.sofmax
    with pytest.raises(AttributeError, match=r"rlx\.ops has no op 'relu7'; did you mean .*'relu'"):
        _ = rlx.ops.relu7
    with pytest.raises(AttributeError, match=r"rlx has no 'qqqqqqqq'$"):
        _ = rlx.qqqqqqqq


def test_errors_and_trailing_underscores() -> None:
    assert issubclass(rlx.InputError, RlxError)
    assert rlx.if_ is not None and rlx.while_ is not None


def test_questions_about_devices() -> None:
    cpu = rlx.Device("cpu")
    assert cpu in rlx.available_devices()
    assert rlx.why_unavailable("cpu") == "" and "install ROCm 6" in rlx.why_unavailable("rocm")
    graph = rlx.Graph("net")
    graph.output(rlx.matmul(graph.input("x", ("n", 4), "f64"), graph.param("w", (4, 4), "f64")), name="y")
    assert rlx.supports_graph("cpu", graph) and not rlx.supports_graph("rocm", graph)
    assert rlx.first_unsupported_op("cpu", graph) is None
    refused = rlx.first_unsupported_op("vulkan", graph)
    assert refused is not None and refused.op == "matmul" and "f64" in refused.reason
    assert rlx.dispatch_report(graph, "cpu").compiles
    legalised, report = rlx.legalize(graph, "cpu", rlx.Options(dispatch=rlx.Dispatch("force-common")))
    assert [node.op.name for node in legalised.nodes if node.inputs] == ["dot_general"] and report.compiles
    with pytest.raises(rlx.UnsupportedOp, match="f64"):
        rlx.legalize(graph, "vulkan")


def test_the_fastest_device_with_and_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = rlx.Graph("net")
    graph.output(graph.input("x", ("n", 4)) + 1.0, name="y")
    only = rlx.DevicePolicy().only("cpu")
    assert rlx.fastest_device(graph, policy=only) == rlx.Device("cpu")
    assert rlx.fastest_device(policy=only) == rlx.Device("cpu")
    assert rlx.fastest_device().kind not in ("xla", "reference", "null"), "these help, and are no devices"
    monkeypatch.setenv("RLX_DEVICES", "reference")
    assert rlx.fastest_device() == rlx.Device("reference")
    monkeypatch.setenv("RLX_DEVICES", "rocm")
    with pytest.raises(rlx.DeviceUnavailable, match="that the policy admits, got none; available here: cpu"):
        rlx.fastest_device()


def test_no_module_hides_a_function() -> None:
    """A module that was imported is an attribute of its package, before any function of that name."""
    for folder in (SOURCE, SOURCE / "ops"):
        modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
        assert not modules & rlx.ops.names()
