"""Where the standard changed its mind between opsets, and inputs that other runtimes get or got wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from build import I64, F, model, one, run
from onnx import helper

import rlx

NAN = np.nan


def f(*values: Any) -> Any:
    return np.array(values, "f4")


def test_softmax_before_opset_13_runs_over_the_whole_right_part() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("f4")
    flat = np.exp(x.reshape(2, 12))
    expected = (flat / flat.sum(1, keepdims=True)).reshape(x.shape)
    np.testing.assert_allclose(one("Softmax", x, opset=11), expected, rtol=1e-5)
    np.testing.assert_allclose(one("Softmax", x, opset=12, axis=1), expected, rtol=1e-5)
    last = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(one("Softmax", x, opset=13), last, rtol=1e-5)


def test_pad_reflects_and_crops() -> None:
    x = np.array([[1, 1.2], [2.3, 3.4], [4.5, 5.7]], "f4")
    expected = [[1, 1.2, 1, 1.2], [2.3, 3.4, 2.3, 3.4], [4.5, 5.7, 4.5, 5.7]]
    np.testing.assert_allclose(one("Pad", x, np.array([0, 2, 0, 0]), fixed=[1], mode="reflect"), expected)
    image = np.ones((1, 1, 4, 4), "f4")
    padded = one("Pad", image, np.array([0, 0, 4, 1, 0, 0, -4, -1]), fixed=[1])
    assert padded.shape == (1, 1, 4, 4) and not padded.any()


@pytest.mark.parametrize("mode, expected", [("edge", [0, 0, 0, 1, 2, 2]), ("wrap", [1, 2, 0, 1, 2, 0])])
def test_pad_modes(mode: str, expected: list[float]) -> None:
    assert one("Pad", f(0, 1, 2), np.array([2, 1]), fixed=[1], mode=mode, opset=19).tolist() == expected


def test_clip_takes_the_maximum_where_ends_cross_and_keeps_nan() -> None:
    assert one("Clip", f(-2, 0, 6), f(2).reshape(()), f(1).reshape(())).tolist() == [1, 1, 1]
    assert one("Clip", f(-2, 3e38), f(0).reshape(()), None).tolist() == [0, np.float32(3e38)]
    assert np.isnan(one("Clip", f(NAN), f(0).reshape(()), f(1).reshape(()))[0])
    assert one("Clip", f(-2, 0, 6), opset=10, min=-1.0).tolist() == [-1, 0, 6]


def test_integer_division_and_remainders() -> None:
    a, b = np.array([8, -8, 7, -7]), np.array([-3, 3, -2, 2])
    assert one("Div", a, b).tolist() == [-2, -2, -3, -3]
    assert one("Mod", np.array([-7, 7]), np.array([3, -3])).tolist() == [2, -2]
    assert one("Mod", np.array([-7, 7]), np.array([3, -3]), fmod=1).tolist() == [-1, 1]


def test_extrema_hand_nan_on() -> None:
    assert np.isnan(one("ReduceMax", f(NAN, NAN, NAN, 42)))
    np.testing.assert_array_equal(one("Min", f([NAN], [1], [20]), f(10)), f([NAN], [1], [10]))


def test_log_sum_exp_of_big_numbers() -> None:
    x = f([100, 88, 50], [200, -10, 1])
    actual = one("ReduceLogSumExp", x, np.array([1]), fixed=[1], keepdims=0)
    np.testing.assert_allclose(actual, [100.0000061, 200.0], rtol=1e-6)


def test_layer_norm_of_big_numbers_close_together() -> None:
    x = f([40000, 40001, 40002, 40003], [80000, 80001, 80002, 80003])
    expected = [[-1.3416354, -0.4472118, 0.4472118, 1.3416354]] * 2
    np.testing.assert_allclose(one("LayerNormalization", x, f(1, 1, 1, 1), epsilon=1e-5), expected, rtol=1e-5)
    assert not one("LayerNormalization", np.full((1, 256), 1234, "f4"), np.ones(256, "f4")).any()


def test_gathers_with_negative_indices() -> None:
    assert one("Gather", np.array([1, 2, 3, 4, 5]), np.array([-1, -3, 0])).tolist() == [5, 3, 1]
    x = np.arange(12).reshape(3, 4)
    assert one("GatherND", x, np.array([[-1, -1], [0, -2]])).tolist() == [11, 2]
    assert one("OneHot", np.array([-1]), np.array(5), f(0, 1), fixed=[1]).tolist() == [[0, 0, 0, 0, 1]]


@pytest.mark.parametrize(
    "start, end, step, expected",
    [
        (9, 0, -3, [9, 6, 3]),
        (-1, -(1 << 31), -1, list(range(9, -1, -1))),
        (-1, (1 << 31) - 1, -1, []),
        (0, (1 << 63) - 1, 4, [0, 4, 8]),
        (20, 30, 1, []),
        (-20, 2, 1, [0, 1]),
    ],
)
def test_slices_backwards_and_past_the_ends(start: int, end: int, step: int, expected: list[int]) -> None:
    ends = [np.array([v]) for v in (start, end, 0, step)]
    assert one("Slice", np.arange(10), *ends, fixed=[1, 2, 3, 4]).tolist() == expected


def test_running_sums() -> None:
    x = f([1, 2, 3, 4])
    assert one("CumSum", x, np.array(1), fixed=[1], exclusive=1).tolist() == [[0, 1, 3, 6]]
    assert one("CumSum", x, np.array(1), fixed=[1], exclusive=1, reverse=1).tolist() == [[9, 7, 4, 0]]
    actual = one("CumSum", f(1, NAN, np.inf), np.array(0), fixed=[1])
    np.testing.assert_array_equal(actual, f(1, NAN, NAN))


def test_reductions_of_nothing() -> None:
    assert one("ReduceSum", np.zeros((0, 0), "f4"), np.array([0]), fixed=[1]).shape == (1, 0)
    assert one("ReduceSum", np.zeros((1, 0), "f4"), np.array([1]), fixed=[1], keepdims=0).tolist() == [0]
    x = f([1, 2])
    assert one("ReduceSum", x, noop_with_empty_axes=1).tolist() == x.tolist()
    with pytest.raises(rlx.ModelError):
        one("ReduceSum", np.float32(1), np.array([5]), fixed=[1])
    assert one("MatMul", np.zeros((2, 0), "f4"), np.zeros((0, 3), "f4")).tolist() == [[0] * 3] * 2


def test_argmax_takes_the_first_nan() -> None:
    assert one("ArgMax", f(3, NAN, 1, 5), axis=0, keepdims=0) == 1


def test_float_to_integer_saturates() -> None:
    assert one("Cast", f(300, NAN, np.inf, -np.inf, -1.9), to=3).tolist() == [127, 0, 127, -128, -1]


def test_attention_of_a_row_that_sees_nothing_is_zero() -> None:
    q = np.ones((1, 1, 2, 4), "f4")
    mask = np.array([[True, True], [False, False]])
    actual = one("Attention", q, q, q, mask, opset=23)
    assert actual[0, 0, 0].tolist() == [1] * 4 and actual[0, 0, 1].tolist() == [0] * 4


def test_shape_arithmetic_becomes_dims() -> None:
    """Reshape to [batch · seq, -1] by Shape, Gather, Mul, Concat leaves nothing but a reshape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"]),
        helper.make_node("Gather", ["s", "one"], ["n"]),
        helper.make_node("Mul", ["b", "n"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "zeros"], ["r1"]),
        helper.make_node("Concat", ["r1", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["y"]),
    ]
    fixed = {"zero": np.int64(0), "one": np.int64(1), "zeros": np.array([0]), "rest": np.array([-1])}
    proto = model(nodes, {"x": (F, ["batch", "seq", 4])}, {"y": F}, fixed)
    loaded_model = rlx.load(proto.SerializeToString(), device="reference")
    assert [n.op.name for n in loaded_model.graph.nodes] == ["input", "reshape"]
    assert str(loaded_model.graph.outputs["y"].shape) == "(batch*seq, 4)"
    assert loaded_model(np.zeros((2, 3, 4), "f4"))["y"].shape == (6, 4)


@pytest.mark.parametrize("n", [0, 1, 4, 7])
def test_symbolic_integer_division_is_exact(n: int) -> None:
    """(n - 3) / 2 towards zero, seen as a tensor."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Sub", ["s", "three"], ["d"]),
        helper.make_node("Div", ["d", "two"], ["q"]),
        helper.make_node("Div", ["d", "minus_two"], ["p"]),
        helper.make_node("Concat", ["q", "p"], ["y"], axis=0),
    ]
    fixed = {"three": np.array([3]), "two": np.array([2]), "minus_two": np.array([-2])}
    proto = model(nodes, {"x": (F, ["n"])}, {"y": I64}, fixed)
    (actual,) = run(proto, np.zeros(n, "f4"))
    assert actual.tolist() == [int((n - 3) / 2), int((n - 3) / -2)]


def test_where_on_shapes_is_decided() -> None:
    """The older torch exporter writes expand(-1) as Where(Equal(shape, -1), …): no dim is -1."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Equal", ["s", "minus"], ["is"]),
        helper.make_node("Where", ["is", "ones", "s"], ["to"]),
        helper.make_node("Expand", ["c", "to"], ["y"]),
    ]
    fixed = {"minus": np.array([-1, -1]), "ones": np.array([1, 1]), "c": np.float32(3)}
    proto = model(nodes, {"x": (F, ["a", "b"])}, {"y": F}, fixed)
    assert run(proto, np.zeros((2, 3), "f4"))[0].tolist() == [[3] * 3] * 2


def test_a_function_that_is_called_without_an_input_of_its_own() -> None:
    """The body hands the absent input on to a node of its own, which leaves it out, too."""
    body = [helper.make_node("Clip", ["x", "lo", "hi"], ["y"])]
    limit = helper.make_function("own", "lim", ["x", "lo", "hi"], ["y"], body, [helper.make_opsetid("", 18)])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    inner = [helper.make_node("lim", ["x", "low", "high"], ["y"], domain="own")]
    twice = helper.make_function("own", "twice", ["x", "low", "high"], ["y"], inner, opsets)
    x = np.array([-3, 0.5, 3], np.float32)
    for name, inputs, expected in (
        ("lim", ["x", "", "one"], [-3, 0.5, 1]),
        ("lim", ["x", "one"], [1, 1, 3]),
        ("twice", ["x", "", "one"], [-3, 0.5, 1]),
        ("twice", ["x"], [-3, 0.5, 3]),
    ):
        call = helper.make_node(name, inputs, ["y"], domain="own")
        proto = model(
            [call], {"x": (F, (3,))}, {"y": F}, {"one": np.float32(1)}, functions=[limit, twice], domains=["own"]
        )
        assert run(proto, x)[0].tolist() == expected


def test_index_vectors_of_a_length_that_the_run_tells() -> None:
    node = helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=1)
    proto = model([node], {"x": (F, ("b", "n")), "i": (I64, ("c", "k"))}, {"y": F})
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert run(proto, x, np.array([[2], [-3]]))[0].tolist() == [2, 3]
    with pytest.raises(rlx.RlxError, match=r"2|k"):
        run(proto, x, np.array([[0, 1], [1, 2]]))


def test_a_norm_over_an_open_dim_with_a_scale_of_known_size() -> None:
    node = helper.make_node("LayerNormalization", ["x", "s"], ["y"])
    proto = model([node], {"x": (F, ("b", "n"))}, {"y": F}, {"s": np.arange(4, dtype=np.float32)})
    x = np.array([[1, 2, 3, 4]], np.float32)
    centred = x - x.mean()
    expected = centred / np.sqrt((centred**2).mean() + 1e-5) * np.arange(4)
    np.testing.assert_allclose(run(proto, x)[0], expected, rtol=1e-5)
    np.testing.assert_allclose(rlx.load(proto.SerializeToString(), device="cpu").run([x])[0], expected, rtol=1e-5)
    with pytest.raises(rlx.RlxError, match="5"):
        run(proto, np.zeros((1, 5), np.float32))
