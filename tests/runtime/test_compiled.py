"""What a caller may hand to a compiled graph, what is refused and in which words, and that a refusal breaks nothing."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.executable import Bound, Executable
from rlx.errors import DeviceUnavailable, GraphError, InputError
from rlx.runtime.bind_cache import BindCache
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.program import Program


def mlp() -> rlx.Graph:
    graph = rlx.Graph("mlp")
    x, w, b = graph.input("x", ("batch", 4)), graph.param("w", (4, 3)), graph.param("b", (3,))
    graph.output(x @ w + b, name="y")
    return graph


def compiled_mlp() -> tuple[CompiledGraph, Any, Any]:
    compiled = rlx.Session("reference").compile(mlp())
    w, b = np.arange(12, dtype="f4").reshape(4, 3), np.ones(3, "f4")
    compiled.set_params({"w": w, "b": b})
    return compiled, w, b


X = np.arange(8, dtype="f4").reshape(2, 4)


def test_runs_by_name_by_position_and_as_a_function() -> None:
    compiled, w, b = compiled_mlp()
    expected = X @ w + b
    np.testing.assert_allclose(compiled.run({"x": X})[0], expected)
    np.testing.assert_allclose(compiled.run([X])[0], expected)
    np.testing.assert_allclose(compiled(x=X)["y"], expected)
    np.testing.assert_allclose(compiled(X)["y"], expected)
    np.testing.assert_allclose(compiled.run({"x": X}, outputs=["y", "y"])[1], expected)


def test_any_batch_runs_without_a_compile() -> None:
    compiled, w, b = compiled_mlp()
    for batch in (0, 1, 5, 2, 5):
        x = np.ones((batch, 4), "f4")
        np.testing.assert_allclose(compiled.run([x])[0], x @ w + b)
    assert compiled.compile_count == 1


@pytest.mark.parametrize(
    "inputs, words",
    [
        ({"x": X.astype("f8")}, ["'x'", "f32[batch, 4]", "float64[2, 4]", "astype"]),
        ({"x": X[0]}, ["'x'", "rank 2", "rank 1"]),
        ({"x": np.ones((2, 5), "f4")}, ["'x'", "f32[batch, 4]", "axis 1 is 5"]),
        ({}, ["missing 'x'"]),
        ({"x": X, "z": X}, ["unknown 'z'"]),
        ({"z": X}, ["missing 'x'", "unknown 'z'"]),
        ([X, X], ["1 inputs", "got 2"]),
        ({"x": [[1.0] * 4]}, ["'x'", "got list", "np.asarray"]),
        ({"x": None}, ["'x'", "got NoneType"]),
        ({"x": np.ma.masked_array(X)}, ["masked"]),
        ("x", ["mapping", "str"]),
    ],
    ids=lambda v: None,
)
def test_refuses_what_does_not_fit_and_works_on(inputs: Any, words: list[str]) -> None:
    compiled, w, b = compiled_mlp()
    with pytest.raises(InputError) as caught:
        compiled.run(inputs)
    for word in words:
        assert word in str(caught.value)
    np.testing.assert_allclose(compiled.run({"x": X})[0], X @ w + b)


def test_layouts_and_byte_orders_are_copied_not_refused() -> None:
    compiled, w, b = compiled_mlp()
    raw = np.zeros(33, np.uint8)[1:].view("f4").reshape(2, 4)
    raw[:] = X
    read_only = X.copy()
    read_only.flags.writeable = False
    for x in (X.T.copy().T, np.repeat(X, 2, 1)[:, ::2], X[::-1][::-1], X.astype(">f4"), raw, read_only):
        np.testing.assert_allclose(compiled.run([x])[0], X @ w + b)


def test_takes_dlpack() -> None:
    class Speaks:
        def __dlpack__(self, **options: Any) -> Any:
            return X.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return X.__dlpack_device__()

    class Fails(Speaks):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("not for you")

    compiled, w, b = compiled_mlp()
    np.testing.assert_allclose(compiled.run([Speaks()])[0], X @ w + b)
    with pytest.raises(InputError, match="not for you"):
        compiled.run([Fails()])


def test_params_all_or_nothing() -> None:
    compiled, w, b = compiled_mlp()
    for wrong in (
        {"w": w * 2, "b": np.ones(4, "f4")},
        {"w": w * 2, "b": np.ones(3)},
        {"w": w * 2, "c": b},
        {"w": w * 2, "b": None},
    ):
        with pytest.raises(InputError):
            compiled.set_params(wrong)
        np.testing.assert_allclose(compiled.run([X])[0], X @ w + b)
    compiled.set_param("w", w[::-1])
    np.testing.assert_allclose(compiled.run([X])[0], X @ w[::-1] + b)


def test_missing_params_are_named() -> None:
    compiled = rlx.Session("reference").compile(mlp())
    with pytest.raises(InputError, match=r"\['b', 'w'\]"):
        compiled.run([X])


def test_data_of_the_graph_is_taken() -> None:
    graph = rlx.Graph()
    graph.output(graph.input("x", (2,)) * graph.param("w", (2,), data=np.array([2, 3], "f4")), name="y")
    assert rlx.Session("reference").compile(graph).run([np.ones(2, "f4")])[0].tolist() == [2, 3]


def test_contradictory_dims_name_both_inputs() -> None:
    graph = rlx.Graph()
    a, b = graph.input("ids", ("batch", "seq")), graph.input("mask", ("batch", "seq"))
    graph.output(a * b, name="y")
    compiled = rlx.Session("reference").compile(graph)
    with pytest.raises(InputError) as caught:
        compiled.run([np.ones((2, 3), "f4"), np.ones((2, 4), "f4")])
    message = str(caught.value)
    assert "'seq'" in message and "3 in input 'ids' axis 1" in message and "4 in input 'mask' axis 1" in message


def test_equalities_and_bounds_name_their_inputs() -> None:
    graph = rlx.Graph()
    graph.output(graph.input("a", ("n",)) + graph.input("b", ("m",)), name="y")
    graph.bounds["n"] = (1, 4)
    compiled = rlx.Session("reference").compile(graph)
    assert compiled.run([np.ones(3, "f4"), np.ones(3, "f4")])[0].tolist() == [2, 2, 2]
    with pytest.raises(InputError, match="n = 3 by input 'a' axis 0, m = 2 by input 'b' axis 0"):
        compiled.run([np.ones(3, "f4"), np.ones(2, "f4")])
    with pytest.raises(InputError, match="'n' in \\[1, 4\\], got 5"):
        compiled.run([np.ones(5, "f4"), np.ones(5, "f4")])


def test_dims_that_are_polynomials_are_solved() -> None:
    graph = rlx.Graph()
    graph.output(graph.input("x", ("2*n+1",)) + 1.0, name="y")
    compiled = rlx.Session("reference").compile(graph)
    assert compiled.run([np.zeros(5, "f4")])[0].shape == (5,)
    with pytest.raises(InputError, match="'n'"):
        compiled.run([np.zeros(4, "f4")])


def test_params_bring_dims() -> None:
    graph = rlx.Graph()
    graph.output(ops.matmul(graph.input("x", (2, "k")), graph.param("w", ("k", "n"))), name="y")
    compiled = rlx.Session("reference").compile(graph)
    for k, n in ((3, 4), (3, 5), (2, 1)):
        compiled.set_param("w", np.ones((k, n), "f4"))
        assert compiled.run([np.ones((2, k), "f4")])[0].tolist() == [[k] * n] * 2
    with pytest.raises(InputError, match="5 in input 'x' axis 1 and 2 in param 'w' axis 0"):
        compiled.run([np.ones((2, 5), "f4")])


class Fake(Bound):
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __call__(self, inputs: Any) -> Any:
        return []


def test_plans_are_bounded_in_number_and_bytes() -> None:
    plans = BindCache(max_count=3, max_bytes=100)
    for size in range(5):
        plans.put(((size,),), Fake(10))
    assert len(plans) == 3 and plans.get(((0,),)) is None
    assert plans.get(((2,),)) is not None
    plans.put(((9,),), Fake(85))
    assert plans.get(((2,),)) is not None and plans.get(((3,),)) is None, "the least recently used goes first"
    plans.put(((8,),), Fake(500))
    assert len(plans) == 1, "what runs is kept even if it is too big"


def test_many_threads_many_shapes() -> None:
    compiled, w, b = compiled_mlp()
    failures: list[str] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(50):
            x = random.standard_normal((int(random.integers(1, 9)), 4)).astype("f4")
            if not np.allclose(compiled.run([x])[0], x @ w + b, atol=1e-5):
                failures.append(str(x.shape))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class BreaksOnce(Executable):
    calls = 0

    def set_params(self, params: Any) -> None:
        pass

    def bind(self, binding: Any) -> Bound:
        outer = self

        class Once(Bound):
            def __call__(self, inputs: Any) -> Any:
                outer.calls += 1
                if outer.calls == 1:
                    raise MemoryError
                return [inputs[0]]

        return Once()


def test_a_program_that_fails_leaves_the_graph_usable() -> None:
    graph = rlx.Graph()
    graph.output(graph.input("x", (2,)), name="y")
    compiled = CompiledGraph(Program(graph, "fake", BreaksOnce()))
    with pytest.raises(MemoryError):
        compiled.run([np.ones(2, "f4")])
    assert compiled.run([np.ones(2, "f4")])[0].tolist() == [1, 1]


def test_unknown_devices_say_what_there_is() -> None:
    with pytest.raises(DeviceUnavailable, match=r"'warp'.*reference"):
        rlx.Session("warp")
    with pytest.raises(DeviceUnavailable, match="ordinal"):
        rlx.Session("reference:7")
    with pytest.raises(DeviceUnavailable, match=r"rocm: .*install ROCm 6.*available here"):
        rlx.Session("rocm")


def test_a_graph_without_outputs_is_refused() -> None:
    with pytest.raises(GraphError, match="outputs"):
        rlx.Session("reference").compile(rlx.Graph())


def test_describe_and_repr() -> None:
    compiled, _, _ = compiled_mlp()
    description = compiled.describe()
    assert (
        description["device"] == "reference"
        and description["param_bytes"] == 60
        and description["inputs"] == {"x": "f32[batch, 4]"}
    )
    assert "f32[batch, 3]" in repr(compiled)


def test_weights_may_lie_at_any_address() -> None:
    compiled, w, b = compiled_mlp()
    raw = np.zeros(w.nbytes + 1, np.uint8)[1:].view("f4").reshape(w.shape)
    raw[:] = w * 3
    assert not raw.flags.aligned
    compiled.set_param("w", raw)
    np.testing.assert_allclose(compiled.run([X])[0], X @ (w * 3) + b)


def test_inputs_may_have_any_name() -> None:
    graph = rlx.Graph()
    graph.output(graph.input("self", (2,)) + graph.input("positional", (2,)), name="y")
    compiled = rlx.Session("reference").compile(graph)
    one = np.ones(2, "f4")
    assert compiled(self=one, positional=one)["y"].tolist() == [2, 2]
    with pytest.raises(InputError, match="once"):
        compiled(one, self=one)
