"""Nonzero, compress, unique and non-maximum suppression against NumPy, many sizes from one program."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.claims import Dispatch, Policy
from rlx.backends.cpu import CpuBackend
from rlx.backends.executable import Executable
from rlx.device import registry
from rlx.ir.verify import verify
from rlx.ops.nms import SuppressOverlaps
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.stages import compile_graph

EXTENTS = st.tuples(st.integers(0, 40), st.integers(0, 40)) | st.tuples(st.integers(0, 3), st.integers(0, 2000))
Array = np.ndarray[Any, Any]


def compiled(graph: rlx.Graph, device: str) -> CompiledGraph:
    verify(graph)
    probe = registry.probe(device)
    if not probe.devices:
        pytest.skip(f"{device}: {probe.reason}")
    return rlx.Session(device).compile(graph)


@cache
def nonzero_program(device: str, dtype: str) -> CompiledGraph:
    graph = rlx.Graph("nonzero")
    x = graph.input("x", ("a", "b"), dtype)
    graph.output(ops.nonzero(x), name="places")
    graph.output(ops.masked_select(x, ops.ne(x, 0) if dtype != "bool" else x), name="chosen")
    return compiled(graph, device)


def sample(draw: Any, shape: tuple[int, ...], dtype: str) -> Array:
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    density = draw(st.sampled_from((0.0, 0.02, 0.5, 1.0)))
    numbers = random.integers(1, 100, shape) * np.where(random.random(shape) < 0.5, -1, 1)
    numbers = np.where(random.random(shape) < density, numbers, 0)
    array = numbers.astype("f4" if dtype == "f32" else dtype.replace("i32", "i4"))
    if dtype == "f32" and array.size:
        flat = array.reshape(-1)
        flat[random.integers(0, array.size)] = draw(st.sampled_from((np.nan, np.inf, -0.0, 1.0)))
    return array


@pytest.mark.devices("cpu", "reference")
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_nonzero_is_numpys(device: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(("f32", "i32", "bool")))
    x = sample(data.draw, data.draw(EXTENTS), dtype)
    result = nonzero_program(device, dtype)(x=x)
    np.testing.assert_array_equal(result["places"], np.array(np.nonzero(x)))
    np.testing.assert_array_equal(result["chosen"], x[x != 0])


@cache
def compress_program(device: str, axis: int | None) -> CompiledGraph:
    graph = rlx.Graph("compress")
    x, condition = graph.input("x", ("a", "b", 3)), graph.input("condition", ("c",), "bool")
    graph.output(ops.compress(x, condition, axis), name="y")
    return compiled(graph, device)


@pytest.mark.devices("cpu", "reference")
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_compress_is_numpys(device: str, data: st.DataObject) -> None:
    axis = data.draw(st.sampled_from((None, 0, 1, -1)))
    x = np.random.default_rng(0).normal(size=(*data.draw(EXTENTS), 3)).astype("f4")
    most = x.size if axis is None else x.shape[axis]
    condition = sample(data.draw, (data.draw(st.integers(0, most)),), "bool")
    result = compress_program(device, axis)(x=x, condition=condition)["y"]
    np.testing.assert_array_equal(result, np.compress(condition, x, axis))


@cache
def unique_program(device: str, axis: int | None, ordered: bool) -> CompiledGraph:
    graph = rlx.Graph("unique")
    x = graph.input("x", ("a", "b"))
    for i, value in enumerate(ops.unique(x, axis, ordered)):
        graph.output(value, name=f"y{i}")
    return compiled(graph, device)


@pytest.mark.devices("cpu", "reference")
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_unique_is_numpys(device: str, data: st.DataObject) -> None:
    axis = data.draw(st.sampled_from((None, 0, 1)))
    ordered = data.draw(st.booleans())
    shape = data.draw(st.tuples(st.integers(0 if axis is None else 1, 30), st.integers(0 if axis is None else 1, 4)))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    x = random.integers(-2, 3, shape).astype("f4")
    if axis is None:  # NumPy lets NaN be itself here only
        x[random.random(shape) < 0.2] = data.draw(st.sampled_from((np.nan, np.inf, -0.0)))
    values, first, inverse, counts = unique_program(device, axis, ordered).run([x])
    expected = np.unique(x, True, True, True, axis)
    turn = np.arange(len(expected[1])) if ordered else np.argsort(expected[1])
    np.testing.assert_array_equal(values, np.take(x.reshape(-1) if axis is None else x, expected[1][turn], axis or 0))
    np.testing.assert_array_equal(first, expected[1][turn])
    np.testing.assert_array_equal(turn[inverse], expected[2].reshape(-1))
    np.testing.assert_array_equal(counts, expected[3][turn])


def suppressed(boxes: Array, scores: Array, most: int, overlap: float, threshold: float, centered: bool) -> Array:
    """The plain algorithm, box by box."""
    if centered:
        x, y, w, h = np.moveaxis(boxes, -1, 0)
        boxes = np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    rows = []
    for batch in range(scores.shape[0]):
        for kind in range(scores.shape[1]):
            boxes_kept: list[int] = []
            for at in np.argsort(-scores[batch, kind], kind="stable"):
                fine = len(boxes_kept) < most and scores[batch, kind, at] > threshold
                if fine and not any(covers(boxes[batch, k], boxes[batch, at], overlap) for k in boxes_kept):
                    boxes_kept.append(int(at))
            rows += [(batch, kind, at) for at in boxes_kept]
    return np.array(rows, np.int64).reshape(-1, 3)


def covers(a: Array, b: Array, overlap: float) -> bool:
    low, high = np.minimum(a[:2], a[2:]), np.maximum(a[:2], a[2:])
    other_low, other_high = np.minimum(b[:2], b[2:]), np.maximum(b[:2], b[2:])
    common = np.prod(np.maximum(np.minimum(high, other_high) - np.maximum(low, other_low), np.float32(0)))
    union = np.prod(high - low) + np.prod(other_high - other_low) - common
    return bool(common > 0 and union > 0 and common / union > np.float32(overlap))


@cache
def suppression_program(device: str, centered: bool) -> CompiledGraph:
    graph = rlx.Graph("suppression")
    boxes, scores = graph.input("boxes", ("b", "n", 4)), graph.input("scores", ("b", "c", "n"))
    most, overlap = graph.input("most", (), "i64"), graph.input("overlap", ())
    threshold = graph.input("threshold", ())
    graph.output(ops.non_max_suppression(boxes, scores, most, overlap, threshold, centered), name="y")
    return compiled(graph, device)


@pytest.mark.devices("cpu", "reference")
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_suppression_is_the_plain_algorithm(device: str, data: st.DataObject) -> None:
    batch, classes, n = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 25)))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    boxes = random.integers(0, 12, (batch, n, 4)).astype("f4")
    scores = (random.integers(0, 6, (batch, classes, n)) / 8).astype("f4")  # with ties
    most = data.draw(st.sampled_from((0, 1, 3, 1 << 40)))
    overlap, threshold = data.draw(st.sampled_from((0.0, 0.25, 0.5, 1.0))), data.draw(st.sampled_from((-1, 0.2, 9)))
    centered = data.draw(st.booleans())
    result = suppression_program(device, centered).run(
        [boxes, scores, np.array(most), np.array(overlap, "f4"), np.array(threshold, "f4")]
    )[0]
    np.testing.assert_array_equal(result, suppressed(boxes, scores, most, overlap, threshold, centered))


HOSTILE = np.array([0, -0.0, np.nan, np.inf, -np.inf, 1e-40, 3e38, -3e38, 5, 5, 2], np.float32)
"""Numbers that boxes and scores of broken nets have."""


POLICIES: tuple[Policy, ...] = ("prefer-native", "force-common")


def hostile_boxes(seed: int, n: int) -> tuple[Array, Array]:
    """Boxes [2, n, 4] that meet often, and scores [2, 3, n] with ties; of both a third is hostile."""
    random = np.random.default_rng(seed)
    boxes, scores = random.integers(0, 12, (2, n, 4)).astype("f4"), (random.integers(0, 9, (2, 3, n)) / 8).astype("f4")
    for of in (boxes, scores):
        wild = random.random(of.shape) < 1 / 3
        of[wild] = random.choice(HOSTILE, wild.sum())
    boxes[1, ::3, 2:] = boxes[1, ::3, :2]  # no area
    return boxes, scores


@cache
def hostile_program(policy: Policy, most: int | None, threshold: float | None, centered: bool) -> Executable:
    graph = rlx.Graph("hostile")
    boxes, scores = graph.input("boxes", ("b", "n", 4)), graph.input("scores", ("b", 3, "n"))
    graph.output(ops.non_max_suppression(boxes, scores, most, 0.3, threshold, centered), name="y")
    verify(graph)
    executable = compile_graph(graph, CpuBackend(), Options(dispatch=Dispatch(policy), cache=False), 0)
    executable.set_params({})
    return executable


@pytest.mark.parametrize("centered", [False, True], ids=["corners", "middle"])
@pytest.mark.parametrize("threshold", [None, 0.25], ids=["all", "chosen"])
@pytest.mark.parametrize("most", [None, 4])
def test_the_kernel_keeps_what_the_definition_keeps(most: int | None, threshold: float | None, centered: bool) -> None:
    """Whatever boxes and scores are, for any number of boxes."""
    for seed, n in enumerate((0, 1, 2, 16, 17, 63, 64, 65, 200)):
        boxes, scores = hostile_boxes(seed, n)
        kept = [
            hostile_program(policy, most, threshold, centered).bind({"b": 2, "n": n})([boxes, scores])[0]
            for policy in POLICIES
        ]
        np.testing.assert_array_equal(*kept)
        limit = n if most is None else most
        op = SuppressOverlaps(limit, n, centered)
        numbers = [np.array(limit), np.float32(0.3), *([] if threshold is None else [np.float32(threshold)])]
        picked, counts = op.reference(boxes, scores, *numbers)
        rows = [(*at, box) for at in np.ndindex(counts.shape) for box in picked[at][: counts[at]]]
        np.testing.assert_array_equal(kept[0], np.array(rows, np.int64).reshape(-1, 3))


def test_a_kernel_need_not_know_how_many_candidates_there_are() -> None:
    """One dim is measured on a device with a kernel of its own, two where the definition runs."""
    stages = [len(hostile_program(p, 4, 0.25, False).describe()["stages"]) for p in POLICIES]
    assert stages == [2, 3]


@pytest.mark.parametrize("result", [0, 1])
def test_one_result_of_suppression_may_go_unused(result: int) -> None:
    graph = rlx.Graph()
    boxes, scores = graph.input("boxes", (2, 20, 4)), graph.input("scores", (2, 3, 20))
    most, overlap = graph.constant(5, "i64"), graph.constant(0.3, "f32")
    kept = ops.suppress_overlaps(boxes, scores, most, overlap, limit=5, candidates=20)
    graph.output(kept[result], name="y")
    arrays = hostile_boxes(7, 20)
    expected = SuppressOverlaps(5, 20).reference(*arrays, np.array(5), np.float32(0.3))[result]
    np.testing.assert_array_equal(compiled(graph, "cpu").run(arrays)[0], expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_suppression_is_the_same_on_any_number_of_threads(threads: int) -> None:
    graph = rlx.Graph()
    boxes, scores = graph.input("boxes", (1, 500, 4)), graph.input("scores", (1, 30, 500))
    graph.output(ops.non_max_suppression(boxes, scores, 50, 0.5, 0.1), name="y")
    random = np.random.default_rng(0)
    arrays = random.integers(0, 12, (1, 500, 4)).astype("f4"), random.random((1, 30, 500), np.float32)
    kept = rlx.Session("cpu", threads=threads).compile(graph).run(arrays)[0]
    np.testing.assert_array_equal(kept, suppressed(*arrays, 50, 0.5, 0.1, False))


def test_what_suppression_refuses() -> None:
    graph = rlx.Graph()
    boxes, scores, most = graph.input("b", (1, 5, 4)), graph.input("s", (1, 2, 5)), graph.input("m", (), "i64")
    overlap, wrong = graph.input("o", ()), {"limit": 5, "candidates": 5}
    with pytest.raises(rlx.ShapeError, match=r"\[suppress_overlaps\] expected candidates of at most 5, got 6"):
        ops.suppress_overlaps(boxes, scores, most, overlap, limit=5, candidates=6)
    with pytest.raises(rlx.ShapeError, match=r"expected boxes \[batch, n, 4\] and scores \[batch, classes, n\]"):
        ops.suppress_overlaps(boxes[:, :, :3], scores, most, overlap, **wrong)
    with pytest.raises(rlx.ShapeError, match="expected scores of the boxes"):
        ops.suppress_overlaps(boxes, scores[:, :, :4], most, overlap, **wrong)
    with pytest.raises(rlx.DTypeError, match="expected operands of one dtype"):
        ops.suppress_overlaps(boxes, scores, most, overlap.cast("f16"), **wrong)
    with pytest.raises(rlx.DTypeError, match="expected most to be of kind int or uint"):
        ops.suppress_overlaps(boxes, scores, overlap, overlap, **wrong)


@pytest.mark.devices("cpu", "reference", "vulkan", "xla", "mlx", "ane")
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_an_axis_without_elements_has_no_extremum(device: str, name: str) -> None:
    """The same error everywhere: of a size that inputs tell before the run, of one that the run tells within it."""
    graph = rlx.Graph()
    x = graph.input("x", ("n", 3))
    graph.output(getattr(ops, name)(x * 2.0, axis=0), name="y")
    program = compiled(graph, device)
    assert program.run([np.ones((2, 3), np.float32)])[0].tolist() == [0, 0, 0]
    with pytest.raises(rlx.InputError, match=rf"\[run\] ({name}: )?expected an axis with elements, got"):
        program.run([np.ones((0, 3), np.float32)])
    with pytest.raises(rlx.ShapeError, match=rf"\[{name}\] expected an axis with elements"):
        getattr(ops, name)(x[:, :0], axis=1)


@pytest.mark.devices("cpu", "reference", "vulkan", "xla", "mlx")
def test_nor_has_one_whose_extent_a_run_tells(device: str) -> None:
    graph = rlx.Graph()
    x = graph.input("x", ("n",))
    chosen = ops.masked_select(x, x > 0.0)
    graph.output(ops.argmax(chosen, axis=0), name="y")
    program = compiled(graph, device)
    assert program.run([np.array([-1, 2, 3], np.float32)])[0] == 1
    with pytest.raises((rlx.InputError, rlx.ShapeError), match="expected an axis with elements, got"):
        program.run([np.array([-1, -2, -3], np.float32)])


@pytest.mark.devices("cpu", "reference", "vulkan", "xla", "mlx")
def test_sides_that_are_not_taken_need_no_elements(device: str) -> None:
    graph, sighted, blind = rlx.Graph(), rlx.Graph("seen"), rlx.Graph("blind")
    p, x = graph.input("p", (), "bool"), graph.input("x", ("n",))
    sighted.output(ops.argmax(sighted.input("a", ("n",)), axis=0))
    blind.input("a", ("n",))
    blind.output(blind.constant(-1, "i64"))
    graph.output(*ops.if_(p, x, regions=(sighted, blind)), name="y")
    program = compiled(graph, device)
    none = np.zeros(0, np.float32)
    assert program.run([np.array(False), none])[0] == -1
    assert program.run([np.array(True), np.array([1, 3, 2], np.float32)])[0] == 1
    with pytest.raises((rlx.InputError, rlx.ShapeError), match="expected an axis with elements, got"):
        program.run([np.array(True), none])
