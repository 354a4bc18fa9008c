"""Functions that are traced: what they compute, when they are traced again, and what they are told."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.ir.literal import Array

RNG = np.random.default_rng(7)
WEIGHTS = RNG.normal(size=(5, 300)).astype(np.float32)
TABLE = np.arange(6, dtype=np.float32)


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def jitted(function: Callable[..., Any], **options: Any) -> Any:
    return rlx.jit(function, device="reference", **options)


def close(actual: Any, expected: Any) -> None:
    assert np.shape(actual) == np.shape(expected)
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


# functions of x [n, 5] and y [m, 5] that mean the same of arrays and of values
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "operators": lambda x, y: -(x * 2 + 1) / 3.0 - abs(x) ** 2,
    "product": lambda x, y: x @ y.T,
    "closed over": lambda x, y: x @ WEIGHTS,
    "a table": lambda x, y: TABLE[:5] * x + TABLE[5],
    "reductions": lambda x, y: x.sum(0) + y.mean(axis=0, keepdims=True) + x.max(0),
    "numpy": lambda x, y: np.concatenate([np.exp(x), np.tanh(y)], axis=0),
    "where": lambda x, y: np.where(x > 0, x, np.float32(0)),
    "slices": lambda x, y: (x[1:, ::2], x[..., None][:, -1], x[:2] + 1),
    "transposed": lambda x, y: (x.T, x.reshape(-1), x.reshape(x.shape[0], 5, 1), y.swapaxes(0, 1)),
    "comparison": lambda x, y: ((x > 0) & (x < 1), x == x, x != 0),
    "nested": lambda x, y: {"a": [x, (y + 1,)], "b": None},
    "dims as numbers": lambda x, y: x / x.shape[0] + y.shape[0] * 2,
    "dims as floats": lambda x, y: x * np.float32(x.shape[0] ** 0.5),
    "an if on dims": lambda x, y: x + 1 if x.shape[0] > y.shape[0] else x - 1,
    "equal dims": lambda x, y: x + y if x.shape[0] == y.shape[0] else x,
    "a range": lambda x, y: sum((x[i] for i in range(min(x.shape[0], 2))), np.float32(0)),
    "an array of dims": lambda x, y: x + np.zeros(x.shape, np.float32),
    "centred": lambda x, y: (x - x.mean(0)) / (x.std(0) + 1),
    "gathered": lambda x, y: x[np.array([0, -1, 0])],
    "one only": lambda x, y: x.squeeze() if x.shape[0] == 1 else x,
}
sizes = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FUNCTIONS)), sizes)
def test_a_function_is_what_it_is_of_arrays(name: str, calls: list[tuple[int, int]]) -> None:
    function = FUNCTIONS[name]
    traced = jitted(function)
    for n, m in [*calls, *calls]:
        x, y = normal(n, 5), normal(m, 5)
        expected, actual = function(x, y), traced(x, y)
        if isinstance(expected, dict):
            assert list(actual) == ["a", "b"] and actual["b"] is None and isinstance(actual["a"][1], tuple)
            expected, actual = (expected["a"][0], *expected["a"][1]), (actual["a"][0], *actual["a"][1])
        if not isinstance(expected, tuple):
            expected, actual = (expected,), (actual,)
        assert len(expected) == len(actual)
        for left, right in zip(actual, expected):
            close(left, right)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_program_is_compiled_once_for_all_sizes(device: str) -> None:
    calls = []

    @rlx.jit(device=device)
    def softmax(x: Any, scale: Any) -> Any:
        calls.append(x.shape)
        e = np.exp(x * scale - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    for n in (3, 7, 2, 30, 8):
        x = normal(n, 5)
        e = np.exp(x * 0.5 - x.max(-1, keepdims=True))
        close(softmax(x, 0.5), e / e.sum(-1, keepdims=True))
    assert [list(map(str, shape)) for shape in calls] == [["3", "5"], ["x_0", "5"]]
    info = softmax.cache_info()
    assert info.traces == 2 and info.reason == "axis 0 of 'x' came with 7 after 3"
    assert info.programs == ("(x: f32[x_0, 5], scale: f64[]) → (f32[x_0, 5])",)
    assert softmax.lower(normal(4, 5), 0.5).compile().compile_count == 1


def test_equal_axes_share_a_dim_until_they_differ() -> None:
    traced = jitted(lambda x, y: (x.sum(0), y.sum(0)))
    for n in (3, 4, 5):
        traced(normal(n, 2), normal(n, 2))
    assert traced.cache_info().programs[-1].startswith("(x: f32[x_0, 2], y: f32[x_0, 2])")
    left, right = normal(6, 2), normal(7, 2)
    for result, argument in zip(traced(left, right), (left, right)):
        close(result, argument.sum(0))
    info = traced.cache_info()
    assert info.traces == 3 and "were equal so far, and are not now" in info.reason
    assert info.programs == ("(x: f32[x_0, 2], y: f32[y_0, 2]) → (f32[2], f32[2])",)
    traced(normal(9, 2), normal(4, 2))
    assert traced.cache_info().traces == 3


def test_a_size_of_one_is_a_program_of_its_own() -> None:
    traced = jitted(lambda x, y: x + y)
    for n, m in ((1, 4), (3, 3), (5, 5), (1, 6), (7, 1), (2, 2)):
        x, y = normal(n, 2), normal(m, 2)
        close(traced(x, y), x + y)
    with pytest.raises(rlx.InputError):
        traced(normal(3, 2), normal(4, 2))


def test_what_a_function_asked_of_dims_holds_for_all_of_its_calls() -> None:
    asked = []

    def function(x: Any) -> Any:
        asked.append(str(x.shape[0]))
        return x * 2 if x.shape[0] > 4 else x

    traced = jitted(function)
    for n in (2, 3, 4, 8, 9, 3, 20):
        x = normal(n)
        close(traced(x), function(x))
    named = [name for name in asked if not name.isdigit()]
    assert named == ["x_0", "x_0"]  # one for each answer
    assert traced.cache_info().reason.startswith("no longer so: x_0 > 4 is False, asked at")


def test_static_arguments_are_part_of_the_program() -> None:
    traced = jitted(lambda x, power, flag=False: x**power if flag else -x, static=("flag", 1))
    x = normal(3) + 9
    close(traced(x, 2, True), x**2)
    close(traced(x, 3, flag=True), x**3)
    close(traced(x, 2), -x)
    close(traced(x, 2, False), -x)
    assert traced.cache_info().traces == 4
    close(traced(x, 2, True), x**2)
    assert traced.cache_info().traces == 4
    assert rlx.jit(lambda x, n: x + n, static="n", device="reference")(x, 1).dtype == np.float32
    one = jitted(lambda x, n: (x * n, isinstance(n, bool)), static="n")
    assert not one(x, 1)[1] and one(x, True)[1]  # 1 == True, and they are two


def test_numbers_take_the_dtype_of_what_they_meet() -> None:
    traced = jitted(lambda x, n: (x * n, n + 1, n * 0.5))
    for dtype in (np.float32, np.float64, np.float16):
        x = np.ones(3, dtype)
        for number in (2.0, 0.1, 3):
            product, more, half = traced(x, number)
            assert product.dtype == dtype
            np.testing.assert_array_equal(product, x * number)
            assert more == number + 1 and half == number * 0.5 and half.dtype == np.float64
    with pytest.raises(rlx.InputError, match=r"an int of 64 bits as n, got"):
        traced(np.ones(3, np.float32), 1 << 70)


class Pair(NamedTuple):
    left: Any
    right: Any


def test_arguments_and_results_are_nested() -> None:
    traced = jitted(lambda pair, options, *more, last: Pair(pair.left + options["w"][0], [more[0], last]))
    x, w = normal(3), normal(3)
    result = traced(Pair(x, None), {"w": [w], "unused": ()}, x, last=w)
    assert isinstance(result, Pair) and isinstance(result.right, list)
    close(result.left, x + w)
    close(result.right[1], w)
    assert jitted(lambda x: None)(x) is None
    assert jitted(lambda x: {"number": 3, "array": TABLE})(x)["array"].shape == (6,)
    (same, again) = jitted(lambda x: (x, x))(x)
    close(same, x)
    close(again, x)


def test_large_arrays_are_weights_and_small_ones_constants() -> None:
    traced = jitted(lambda x: x @ WEIGHTS + WEIGHTS[0].sum() + TABLE[0])
    lowered = traced.lower(normal(2, 5))
    assert [value.type.shape for value in lowered.graph.params] == [(5, 300)]
    assert next(iter(lowered.graph.data.values())) is WEIGHTS
    assert "graph" in lowered.text() and "matmul" in str(lowered)
    x = normal(2, 5)
    close(lowered.compile()(x)["out"], x @ WEIGHTS + WEIGHTS[0].sum())
    close(traced(x), x @ WEIGHTS + WEIGHTS[0].sum())
    assert traced.cache_info().traces == 1


def test_functions_of_functions_are_one_program() -> None:
    inner = jitted(lambda x: np.exp(x))
    outer = jitted(lambda x: inner(x) + inner(x * 2))
    x = normal(4)
    close(outer(x), np.exp(x) + np.exp(x * 2))
    assert inner.cache_info().traces == 0 and outer.cache_info().traces == 1
    graph = rlx.Graph()
    graph.output(y=inner(graph.input("x", (4,))))
    assert [node.op.name for node in graph.nodes] == ["input", "exp"]


def test_a_function_that_calls_itself_without_end_is_told() -> None:
    @rlx.jit(device="reference")
    def forever(x: Any) -> Any:
        return forever(x + 1)

    with pytest.raises(rlx.TracerError, match=r"'forever' to end, got calls of itself"):
        forever(normal(2))

    @rlx.jit(device="reference", static="n")
    def power(x: Any, n: int) -> Any:
        return x if n == 1 else x * power(x, n - 1)

    x = normal(3)
    close(power(x, 4), x**4)


def test_values_do_not_leave_their_trace() -> None:
    kept = []

    @rlx.jit(device="reference")
    def leaking(x: Any) -> Any:
        kept.append(x)
        return kept[0] + 1

    leaking(normal(2))
    with pytest.raises(rlx.TracerError, match=r"got a value of 'leaking' of a trace that has ended, at .*kept\[0\]"):
        leaking(normal(2, 2))


ASKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "if": (lambda x: 1 if x > 0 else 2, r"rlx\.cond\(…\) for an if"),
    "float": (float, r"x\.astype\('f64'\)"),
    "loop": (lambda x: list(x), r"rlx\.scan\(…\) for a loop"),
    "numpy": (np.asarray, r"a NumPy array"),
    "assignment": (lambda x: x.__setitem__(slice(0, 1), 0), r"rlx\.update_slice"),
}


@pytest.mark.parametrize("name", ASKS)
def test_what_only_a_run_knows_names_the_line(name: str) -> None:
    ask, message = ASKS[name]
    with pytest.raises(rlx.TracerError, match=rf"{message}.*test_jit\.py:\d+"):
        jitted(ask)(normal(3))
    # a call that fails leaves nothing behind
    close(jitted(lambda x: x + 1)(TABLE), TABLE + 1)


def test_wrong_arguments_are_told_by_name() -> None:
    traced = jitted(lambda x, mode="a": x)
    with pytest.raises(rlx.InputError, match=r"got str as mode: static=\('mode',\) makes"):
        traced(normal(2), "b")
    with pytest.raises(rlx.DTypeError, match=r", as x\b"):
        traced(np.array([object()]))
    with pytest.raises(rlx.OptionError, match=r"among \['x', 'mode'\], got 'mod'; did you mean 'mode'"):
        rlx.jit(lambda x, mode: x, static="mod")
    with pytest.raises(rlx.InputError, match=r"a static argument that hashes, got list as 'mode'"):
        jitted(lambda x, mode: x, static="mode")(normal(2), [1])
    with pytest.raises(rlx.DeviceUnavailable):
        rlx.jit(lambda x: x, device="nowhere")
    with pytest.raises(rlx.ArgumentError, match=r"'function' to be a function, got 3"):
        rlx.jit(3)
    with pytest.raises(TypeError, match="unexpected"):
        traced(normal(2), nothing=normal(2))


def test_methods_have_programs_of_their_own() -> None:
    class Layer:
        def __init__(self, scale: float) -> None:
            self.w = normal(4, 100) * np.float32(scale)

        @rlx.jit(device="reference", static=("negated",))
        def __call__(self, x: Any, negated: bool = False) -> Any:
            return -(x @ self.w) if negated else x @ self.w

        @rlx.jit(device="reference")
        def doubled(self, x: Any) -> Any:
            return self(x) * 2

    first, second = Layer(1), Layer(2)
    x = normal(2, 4)
    close(first(x), x @ first.w)
    close(second(x, True), -(x @ second.w))
    close(first.doubled(x), (x @ first.w) * 2)
    assert first.doubled is first.doubled
    assert "w" in pickle.loads(pickle.dumps(copy.deepcopy(first).__dict__))


@rlx.jit(device="reference")
def at_module_level(x: Any) -> Any:
    """Adds one."""
    return x + 1


def test_it_is_a_function_like_others() -> None:
    assert at_module_level.__name__ == "at_module_level" and at_module_level.__doc__ == "Adds one."
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    assert repr(at_module_level).startswith("<jit 'at_module_level' on reference")
    at_module_level.cache_clear()
    close(at_module_level(TABLE), TABLE + 1)
    assert len(at_module_level.cache_info().programs) == 1


def test_random_numbers_follow_a_seed() -> None:
    traced = jitted(lambda x: x + rlx.random_normal(x.graph.random_state(), shape=x.shape, dtype="f32"))
    x = normal(64)
    assert not np.array_equal(traced(x), traced(x))
    traced.seed(3)
    first = traced(x)
    traced.seed(3)
    np.testing.assert_array_equal(traced(x), first)


def test_threads_trace_once() -> None:
    count = []
    start = threading.Barrier(4)

    @rlx.jit(device="reference")
    def traced(x: Any) -> Any:
        count.append(1)
        return x * 2

    results: list[Any] = []

    def call() -> None:
        start.wait()
        for n in range(2, 30):
            x = np.full(n, n, np.float32)
            results.append(np.array_equal(traced(x), x * 2))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 * 28 and all(results) and len(count) <= 3


def test_a_logger_tells_of_traces(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEBUG", "1")
    with caplog.at_level(logging.INFO, "rlx.jit"):
        at_module_level.cache_clear()
        at_module_level(normal(3))
        at_module_level(normal(4))
    assert any("axis 0 of 'x' came with 4 after 3" in r.message for r in caplog.records if r.name == "rlx.jit")


def test_tensors_of_torch_come_back_as_such() -> None:
    torch = pytest.importorskip("torch")
    traced = jitted(lambda x, n: (x * 2 + n, x.astype("bf16")))
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    for _ in range(2):
        doubled, narrow = traced(x, 1.0)
        assert torch.equal(doubled, x * 2 + 1) and narrow.dtype == torch.bfloat16 and torch.equal(narrow.float(), x)
    close(traced(x.numpy(), 1.0)[0], x.numpy() * 2 + 1)
    with pytest.raises(rlx.InputError, match=r"x, got Tensor, which DLPack cannot hand over"):
        traced(torch.ones(3, requires_grad=True), 1.0)


def test_arrays_of_jax_come_back_as_such() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(6.0).reshape(2, 3)
    result = jitted(lambda x: x.sum(0))(x)
    assert isinstance(result, jax.Array)
    close(np.asarray(result), np.asarray(x).sum(0))


def test_nothing_of_it_is_loaded_before_it_is_used() -> None:
    script = "import rlx, sys; rlx.Graph().input('x', (3,)); print([m for m in sys.modules if 'rlx.tracing' in m])"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"
