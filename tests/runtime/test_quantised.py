"""`precision="int8"` and `"f8"` from end to end: calibrations, what they must be, and which programs share what."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx import ops
from rlx.errors import InputError, OptionError
from rlx.ir.graph import Graph, Value
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.runtime import quantised
from rlx.runtime.compiled import CompiledGraph, load_compiled
from rlx.runtime.compiler import CODE
from rlx.runtime.session import Session
from support import binding_of, why_absent

DEVICES = [
    pytest.param(name, marks=pytest.mark.skipif(bool(why_absent(name)), reason=why_absent(name)))
    for name in ("cpu", "vulkan", "xla", "mlx")
]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weight(graph: Graph, name: str, *shape: int) -> Value:
    data = normal(*shape, seed=len(name)) / np.float32((np.prod(shape) / max(shape[0], shape[-1])) ** 0.5)
    return graph.param(name, shape, "f32", data=data)


def dense(seed: int) -> Graph:
    graph = Graph("dense")
    x = graph.input("x", ("n", 64))
    for number, width in enumerate((96, 80, 48)):
        x = ops.gelu(x @ weight(graph, f"{'w' * (number + 1 + seed)}", x.shape[1], width) + 0.1)
    graph.output(x, name="y")
    return graph


def windows(seed: int) -> Graph:
    graph = Graph("windows")
    sizes = {"dilations": (1, 1), "low": (1, 1), "high": (1, 1)}
    x = graph.input("x", ("n", 3, 20, 20))
    x = ops.relu(ops.conv(x, weight(graph, "w" * (1 + seed), 16, 3, 3, 3), strides=(2, 2), **sizes))
    y = ops.relu(ops.conv(x, weight(graph, "w" * (2 + seed), 16, 16, 3, 3), strides=(1, 1), **sizes))
    x = ops.relu(ops.conv(y, weight(graph, "w" * (3 + seed), 16, 16, 3, 3), strides=(1, 1), **sizes) + x)
    graph.output(ops.mean(x, axes=(2, 3)), name="y")
    return graph


def encoder(seed: int) -> Graph:
    graph = Graph("encoder")
    x = graph.input("x", (2, "n", 64))
    q, k, v = (x @ weight(graph, name * (1 + seed), 64, 64) for name in ("q", "kk", "vvv"))
    heads = [part.reshape(2, x.shape[1], 4, 16).transpose(0, 2, 1, 3) for part in (q, k, v)]
    mixed = ops.attention(*heads).transpose(0, 2, 1, 3).reshape(2, x.shape[1], 64)
    x = x + mixed @ weight(graph, "o" * (4 + seed), 64, 64)
    x = ops.layer_norm(x, graph.constant(np.ones(64, np.float32)))
    graph.output(
        x + ops.gelu(x @ weight(graph, "u" * (5 + seed), 64, 128)) @ weight(graph, "d" * (6 + seed), 128, 64), name="y"
    )
    return graph


NETS = {"dense": (dense, (7, 64)), "windows": (windows, (2, 3, 20, 20)), "encoder": (encoder, (2, 9, 64))}


def compiled(
    graph: Graph, device: str = "cpu", precision: Literal["int8", "f8"] = "int8", **options: Any
) -> CompiledGraph:
    return Session(device, precision=precision, **options).compile(graph)


# how near results come


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NETS)
def test_nets_are_near_what_they_mean(name: str, seed: int, calibrated: bool) -> None:
    make, shape = NETS[name]
    graph, x = make(seed), normal(*shape, seed=seed)
    exact = evaluate(graph, {"x": x}, graph.data, binding_of(graph, {"x": x}), doubles=True)[0]
    y = compiled(graph, calibration=examples(x, seed) if calibrated else None).run([x])[0]
    assert 1e-5 < np.abs(y - exact).max() / np.abs(exact).max() < 0.04
    assert (y * exact).sum() / np.linalg.norm(y) / np.linalg.norm(exact) > 0.999


def examples(x: Array, seed: int) -> list[Any]:
    return [{"x": x}, [normal(*x.shape, seed=seed + 10)]]


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["dense", "encoder"])
def test_nets_in_floats_of_8_bits_are_near_what_they_mean(name: str, seed: int, calibrated: bool) -> None:
    make, shape = NETS[name]
    graph, x = make(seed), normal(*shape, seed=seed)
    exact = evaluate(graph, {"x": x}, graph.data, binding_of(graph, {"x": x}), doubles=True)[0]
    y = compiled(graph, precision="f8", calibration=examples(x, seed) if calibrated else None).run([x])[0]
    assert 1e-3 < np.abs(y - exact).max() / np.abs(exact).max() < 0.12
    assert (y * exact).sum() / np.linalg.norm(y) / np.linalg.norm(exact) > 0.996


def test_convolutions_are_of_f32_beside_floats_of_8_bits() -> None:
    make, shape = NETS["windows"]
    x = normal(*shape)
    expected = Session("cpu").compile(make(0)).run([x])[0]
    np.testing.assert_array_equal(compiled(make(0), precision="f8", calibration=[[x]]).run([x])[0], expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("precision", ["int8", "f8"])
@pytest.mark.parametrize("name", NETS)
def test_every_device_gives_the_same_numbers(
    name: str, precision: Literal["int8", "f8"], calibrated: bool, device: str
) -> None:
    make, shape = NETS[name]
    x = normal(*shape)
    calibration = examples(x, 0) if calibrated else None
    results = [
        compiled(make(0), each, precision, calibration=calibration).run([x])[0] for each in ("reference", device)
    ]
    assert np.abs(results[0] - results[1]).max() <= 0.02 * np.abs(results[0]).max()  # a step where it meets a tie


def test_a_calibration_gives_the_same_bits_each_time() -> None:
    x = normal(7, 64)
    results = [compiled(dense(0), calibration=[[x], [2 * x]]).run([x])[0] for _ in range(2)]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("precision", "product"), [("int8", "integer_matmul"), ("f8", "float8_matmul")])
def test_products_of_one_operand_are_one_product(precision: Literal["int8", "f8"], product: str) -> None:
    kinds = [node.op.name for node in compiled(encoder(0), precision=precision).graph.nodes]
    assert kinds.count(product) == 4 and "attention" in kinds


def test_weights_take_a_quarter_of_the_memory() -> None:
    def weights(**options: Any) -> int:
        program = Session("cpu", **options).compile(dense(0))
        program.run([normal(7, 64)])
        return program.executable.weight_bytes

    assert weights(precision="int8") < 0.4 * weights()


def test_weights_can_be_swapped() -> None:
    program, x = compiled(dense(0)), normal(7, 64)
    before = program.run([x])[0]
    graph = dense(0)
    program.set_param("w", graph.data["w"] * np.float32(2))
    graph.data["w"] = graph.data["w"] * np.float32(2)
    after = program.run([x])[0]
    assert np.any(before != after)
    np.testing.assert_array_equal(after, compiled(graph).run([x])[0])


def test_random_numbers_of_a_calibration_are_the_same_each_time() -> None:
    def make() -> Graph:
        graph = Graph("noisy")
        x = graph.input("x", (4, 32))
        noise = ops.random_normal(graph.random_state(), shape=(4, 32))
        graph.output((x + noise) @ weight(graph, "w", 32, 32), name="y")
        return graph

    ranges = [quantised.ranges_of(make(), [[normal(4, 32)]]) for _ in range(2)]
    assert ranges[0] == ranges[1]


# what a calibration must be

HOSTILE: dict[str, tuple[Any, str]] = {
    "nothing": ([], r"\[precision\] expected the inputs of at least one run as calibration, got none"),
    "no list": ({"x": normal(3, 64)}, r"\[precision\] expected a list of inputs as calibration, .* got dict"),
    "no inputs": ([3], r"\[precision\] expected a mapping of names to arrays or a list .* as calibration 0, got int"),
    "an array": ([normal(3, 64)], r"\[precision\] expected a mapping of names to arrays or a list .*, got ndarray"),
    "ragged": ([[[[1, 2], [3]]]], r"\[precision\] expected an array as 0 of calibration 0, got list"),
    "another name": ([{"z": normal(3, 64)}], r"\[precision\] expected inputs of 'dense' as calibration 0, .*'z'"),
    "too many": ([[normal(3, 64)] * 2], r"\[precision\] expected inputs of 'dense' as calibration 0, .* got 2"),
    "another shape": (
        [[normal(3, 64)], [normal(3, 65)]], r"\[precision\] expected inputs of 'dense' as calibration 1, .*65",
    ),
    "another rank": ([[normal(64)]], r"\[precision\] expected inputs of 'dense' as calibration 0, .*f32\[n, 64\]"),
    "another dtype": ([[np.ones((3, 64))]], r"\[precision\] expected inputs of 'dense' as calibration 0, .*float64"),
    "objects": ([[np.array([[None] * 64])]], r"\[precision\] expected inputs of 'dense' as calibration 0, .*object"),
    "no numbers": ([[np.full((3, 64), np.nan, np.float32)]], r"\[precision\] expected finite numbers .*at node 'x'"),
    "infinite": ([[np.full((3, 64), np.inf, np.float32)]], r"\[precision\] expected finite numbers .*at node 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_calibrations_are_told(name: str) -> None:
    calibration, message = HOSTILE[name]
    with pytest.raises((InputError, OptionError), match=message):
        compiled(dense(0), calibration=calibration)


def test_a_calibration_is_of_int8() -> None:
    with pytest.raises(OptionError, match=r"\[precision\] expected precision='int8' or 'f8' with a calib.*, got 'f16'"):
        Session("cpu", precision="f16", calibration=[[normal(3, 64)]])


def test_a_calibration_that_was_written_to_is_told() -> None:
    """Programs are kept by what it was when it was given."""
    x = normal(3, 64)
    session = Session("cpu", precision="int8", calibration=[[x]])
    x *= 2
    with pytest.raises(InputError, match=r"\[precision\] expected the calibration as it was .* written to since"):
        session.compile(dense(0))


def test_weights_have_to_be_there() -> None:
    graph = dense(0)
    graph.data.clear()
    with pytest.raises(InputError, match=r"\[precision\] expected weights in the graph .* got none of 'w'"):
        compiled(graph, calibration=[[normal(3, 64)]])


@pytest.mark.parametrize("precision", ["int8", "f8"])
@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows_calibrate(rows: int, precision: Literal["int8", "f8"]) -> None:
    y = compiled(dense(0), precision=precision, calibration=[[normal(rows, 64)]]).run([normal(3, 64)])[0]
    assert y.shape == (3, 48) and np.isfinite(y).all()


# programs that are kept


def test_a_saved_program_keeps_its_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(7, 64)
    program = compiled(dense(0), calibration=[[x]])
    expected = program.run([x])[0]
    program.save(tmp_path / "net.rlxc")
    np.testing.assert_array_equal(load_compiled(tmp_path / "net.rlxc").run([x])[0], expected)
    from rlx.backends.cpu import CpuBackend

    monkeypatch.setattr(CpuBackend, "code_mismatch", lambda *given: "of another machine")
    made = load_compiled(tmp_path / "net.rlxc", recompile=True)
    np.testing.assert_array_equal(made.run([x])[0], expected)


def test_a_pickled_program_keeps_its_ranges() -> None:
    x = normal(7, 64)
    program = compiled(dense(0), calibration=[[x]])
    again = pickle.loads(pickle.dumps(program))
    np.testing.assert_array_equal(again.run([x])[0], program.run([x])[0])


def write(path: Path) -> Path:
    """y = relu(x · w) · v, with a dim that may be 1 where it broadcasts."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Add", ["b", "shift"], ["c"]), helper.make_node("MatMul", ["c", "v"], ["y"]),
    ]  # fmt: skip
    inputs = [("x", ["n", 64]), ("shift", ["m", 96])]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(normal(64, 96), "w"), numpy_helper.from_array(normal(96, 600, seed=1), "v")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


X = {"x": normal(5, 64), "shift": normal(5, 96, seed=2)}
WIDER = {name: 4 * array for name, array in X.items()}


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    CODE.clear()
    yield
    for thread in threading.enumerate():
        if thread.name == "rlx-weights":
            thread.join()


def load(path: Path, **options: Any) -> rlx.Model:
    return rlx.load(path, device="cpu", compile="before", **options)


@pytest.mark.usefixtures("cached")
def test_starts_from_the_cache_are_of_their_own_calibration(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx")
    modes: list[dict[str, Any]] = [
        {}, {"precision": "int8"}, {"precision": "int8", "calibration": [X]},
        {"precision": "int8", "calibration": [WIDER]}, {"precision": "f8"}, {"precision": "f8", "calibration": [X]},
        {"precision": "int8", "calibration": [X, WIDER]},
    ]  # fmt: skip
    first = []
    for mode in modes:
        model = load(path, **mode)
        assert model._imported is not None  # no other mode's record is taken
        first.append(model(**X)["y"])
    CODE.clear()
    for mode, expected in zip(modes, first):
        again = load(path, **mode)
        np.testing.assert_array_equal(again(**X)["y"], expected)
        assert again._imported is None  # it starts from what was kept
        many = {"x": X["x"], "shift": X["shift"][:1]}  # a program of its own, made from the graph that is read now
        other = load(path, **mode, cache=False)(**many)["y"]
        np.testing.assert_allclose(again(**many)["y"], other, rtol=1e-5, atol=1e-4)
    assert all(np.any(a != b) for i, a in enumerate(first[:6]) for b in first[:i])
    np.testing.assert_array_equal(first[3], first[6])  # whose ranges are the same


def test_calibrations_by_name_and_in_order_are_the_same() -> None:
    path_free = [dict(X), [X["x"], X["shift"]]]
    graph = Graph("net")
    x, shift = graph.input("x", (5, 64)), graph.input("shift", (5, 96))
    graph.output((x @ weight(graph, "w", 64, 96) + shift) @ weight(graph, "ww", 96, 20), name="y")
    ranges = [quantised.ranges_of(graph, [inputs]) for inputs in path_free]
    assert ranges[0] == ranges[1] and len(ranges[0]) == 2


def test_digests_tell_calibrations_apart() -> None:
    several = ([X], [WIDER], [X, WIDER], [WIDER, X], [[X["x"], X["shift"]]], [{"x": X["x"]}])
    assert len({quantised.digest_of(each) for each in several}) == len(several)


def test_a_chain_of_devices_runs_the_same_integers() -> None:
    x = normal(7, 64)
    alone = compiled(dense(0), "reference", calibration=[[x]]).run([x])[0]
    chain = compiled(dense(0), ["reference", "cpu"], calibration=[[x]]).run([x])[0]
    np.testing.assert_array_equal(alone, chain)


def test_functions_are_quantised() -> None:
    w = normal(64, 32)
    function = rlx.jit(lambda x: x @ w, precision="int8")
    x = normal(5, 64)
    error = np.abs(np.asarray(function(x)) - x @ w).max() / np.abs(x @ w).max()
    assert 1e-4 < error < 0.03
