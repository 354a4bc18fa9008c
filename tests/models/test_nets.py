"""Every real model against onnxruntime: at all its sizes, from one compile, on random numbers."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import skips
from benchmarks.zoo import Net, nets
from real_models import assert_close, assert_same_answers, opened, path_of, peer, supported
from rlx.errors import UnsupportedOp
from support import commit_number, why_absent

NETS = list(nets().values())
EXACT = [net for net in NETS if not net.decoded]
SMALL = [net for net in EXACT if net.small]
TWINS = [net for net in SMALL if net.name.startswith("eeg-spindle")]
"""Nets of the same nodes with other numbers of channels: other devices have one, the other at the next commit."""
TURN = TWINS[commit_number() % len(TWINS)]


@pytest.mark.parametrize("net", EXACT, ids=lambda net: net.name)
def test_equal_to_onnxruntime_at_every_size_from_one_compile(net: Net) -> None:
    model, session = opened(net), peer(net)
    for size in net.sizes:
        assert_same_answers(model, session, net.inputs(size))
    assert model.compiled.compile_count == 1


@pytest.mark.parametrize("net", [net for net in NETS if net.decoded], ids=lambda net: net.name)
def test_int8_nets_decide_as_onnxruntime(net: Net) -> None:
    """Steps of quantisation may fall to the other side: most of the results are equal, none is far off."""
    model, session = opened(net), peer(net)
    for size in net.sizes:
        for actual, expected in zip(model.run(net.inputs(size)), session.run(None, net.inputs(size))):
            scale = float(np.abs(expected).max())
            difference = np.abs(actual - expected) / scale
            assert difference.max() < 0.05 and np.median(difference) < 0.005


@pytest.mark.parametrize("net", [net for net in SMALL if net not in TWINS or net is TURN], ids=lambda net: net.name)
@pytest.mark.devices("reference", "vulkan", "mlx", "ane")
def test_small_nets_on_other_devices(net: Net, device: str) -> None:
    model, session = opened(net, device), peer(net)
    with supported(net, device):  # some see only at their sizes what they do not take
        assert_same_answers(model, session, net.inputs())
    assert net.name not in skips.of(device).nets, "tests/skips.py lists what is refused no longer"


def test_nets_of_the_table_are_nets() -> None:
    for device, rules in skips.RULES.items():
        assert set(rules.nets) <= {net.name for net in SMALL}, device


def test_a_net_that_is_refused_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the table says so."""
    net = SMALL[0]
    with pytest.raises(UnsupportedOp), supported(net, "cpu"):
        raise UnsupportedOp("[conv] expected, got, at node 'x'")
    monkeypatch.setitem(skips.RULES, "cpu", skips.Rules(nets={net.name: "it is only a test"}))
    with pytest.raises(pytest.skip.Exception, match="only a test"), supported(net, "cpu"):
        raise UnsupportedOp("[conv] expected, got, at node 'x'")


def test_results_do_not_depend_on_what_ran_before() -> None:
    """Plans of other sizes share the arena: a size gives the same bits after others as before them."""
    net = nets()["ocr-direction"]
    model = opened(net)
    first = model.run(net.inputs())
    for size in net.sizes[1:]:
        model.run(net.inputs(size))
    np.testing.assert_array_equal(first[0], model.run(net.inputs())[0])


def test_threads_give_the_same_answers() -> None:
    net = nets()["ocr-recogniser"]
    assert_close(opened(net, threads=2).run(net.inputs()), opened(net, threads=1).run(net.inputs()))


@pytest.mark.parametrize("name", ["ocr-direction", "eeg-seizure-b"])
def test_subnormal_weights_are_flushed(name: str) -> None:
    """A copy of a net, its weights scaled into subnormal numbers: it runs, and as if they were zero."""
    net = nets()[name]
    onnx = pytest.importorskip("onnx")
    path_of(net)
    tiny, zero = (_scaled(onnx, net, factor) for factor in (1e-38, 0.0))
    inputs = net.inputs()
    actual = rlx.load(tiny, device="cpu").run(inputs)
    expected = rlx.load(zero, device="cpu").run(inputs)
    for a, b in zip(actual, expected):
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(a, b)


def _scaled(onnx: object, net: Net, factor: float) -> bytes:
    """The model with its float weights of two and more axes times a factor; those stay that no float32 scales."""
    from onnx import TensorProto, load, numpy_helper

    model = load(str(path_of(net)))
    constants = [a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"]
    for tensor in (*model.graph.initializer, *constants):
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) > 1:
            array = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))
    data: bytes = model.SerializeToString()
    return data


def test_a_chain_goes_on_past_devices_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user sets it: CUDA before Vulkan before the processor, on a machine without CUDA."""
    if why_absent("vulkan"):
        pytest.skip(f"vulkan: {why_absent('vulkan')}")
    if not why_absent("cuda"):
        pytest.skip("cuda is here")
    net = nets()["ocr-direction"]
    path, inputs = path_of(net), net.inputs()
    monkeypatch.setenv("RLX_DEVICE_CHAIN", "cuda,vulkan,cpu")
    monkeypatch.setenv("RLX_DEVICES", "cuda,vulkan,cpu")  # no others are measured
    model = rlx.load(path)
    results = model.run(inputs)
    assert model.device == "vulkan"
    assert list(model.compiled.attempts) == ["cuda"] and "no NVIDIA driver" in model.compiled.attempts["cuda"]
    explanation = " ".join(str(model.explain()).split())
    assert "runs on vulkan: the first of the chain cuda, vulkan, cpu that takes the graph; cuda: " in explanation
    monkeypatch.delenv("RLX_DEVICE_CHAIN")
    monkeypatch.delenv("RLX_DEVICES")
    assert_close(results, rlx.load(path, device="cpu").run(inputs))
