"""Dims: arithmetic agrees with that of integers, text reads back, bounds hold."""

from __future__ import annotations

import gc
import json
import pickle
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dim_table
from rlx.ir.dim import Dim

NAMES = ("a", "b", "seq")
LEAVES = st.one_of(st.integers(-6, 9), st.sampled_from(NAMES).map(dims.symbol))
BINARY = {
    "add": dims.add,
    "sub": lambda x, y: dims.add(x, dims.mul(y, -1)),
    "mul": dims.mul,
    "min": dims.minimum,
    "max": dims.maximum,
}
WHOLE = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "min": min, "max": max}


@st.composite
def expressions(draw: st.DrawFn) -> tuple[Dim, object]:
    """A dim, and a function of a binding that works it out with plain integers."""
    dim = draw(LEAVES)
    how: object = lambda env, dim=dim: env[str(dim)] if not isinstance(dim, int) else dim  # noqa: E731
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            name, other = draw(st.sampled_from(sorted(BINARY))), draw(LEAVES)
            dim = BINARY[name](dim, other)
            how = lambda env, f=how, n=name, o=other: WHOLE[n](f(env), dims.evaluate(o, env))  # noqa: E731
        else:
            divisor = draw(st.integers(1, 5))
            quotient = draw(st.booleans())
            dim = dims.floordiv(dim, divisor) if quotient else dims.mod(dim, divisor)
            how = lambda env, f=how, d=divisor, q=quotient: f(env) // d if q else f(env) % d  # noqa: E731
    return dim, how


BINDINGS = st.fixed_dictionaries({name: st.integers(0, 12) for name in NAMES})


@settings(max_examples=300, deadline=None)
@given(drawn=expressions(), env=BINDINGS)
def test_arithmetic_is_that_of_integers(drawn: tuple[Dim, object], env: dict[str, int]) -> None:
    dim, how = drawn
    assert dims.evaluate(dim, env) == how(env)  # type: ignore[operator]


@settings(max_examples=300, deadline=None)
@given(drawn=expressions(), env=BINDINGS)
def test_text_and_bounds(drawn: tuple[Dim, object], env: dict[str, int]) -> None:
    dim, _ = drawn
    assert dims.parse(str(dim)) == dim
    assert pickle.loads(pickle.dumps(dim)) == dim
    value = dims.evaluate(dim, env)
    low, high = dims.bounds(dim, dict.fromkeys(NAMES, (0, 12)))
    assert low <= value and (high is None or value <= high)
    assert dims.evaluate(dims.substitute(dim, {"a": 3}), {**env, "a": 99}) == dims.evaluate(dim, {**env, "a": 3})


def test_equal_polynomials_are_one() -> None:
    a, b = dims.symbol("a"), dims.symbol("b")
    assert (a + b) * (a + b) == a * a + 2 * a * b + b * b
    assert (2 * a * b + 4 * a) // (2 * a) == b + 2
    assert dims.exact_div(a * b, b) == a
    assert dims.exact_div(a + 1, 2) is None
    assert a - a == 0 and isinstance(a - a, int)


@pytest.mark.parametrize("text", ["a.b", "1 < 2", "__import__('os')", "a ** 2", "[1]", "a if b else c", "(" * 3000, ""])
def test_only_arithmetic_is_read(text: str) -> None:
    with pytest.raises(rlx.ShapeError):
        dims.parse(text)


def test_products_do_not_explode() -> None:
    factor = "(" + "+".join(f"x{i}" for i in range(40)) + ")"
    with pytest.raises(rlx.ShapeError, match="at most 4096 terms"):
        dims.parse("*".join([factor] * 15))


def test_threads_read_dims_at_once() -> None:
    """CPython's own parser mixes up how deep threads are if memory is collected meanwhile."""
    errors: list[BaseException] = []

    class Noisy:
        def __del__(self) -> None:
            sum(range(50))

    def read(number: int) -> None:
        try:
            for i in range(1500):
                noisy = Noisy()
                noisy.itself = noisy  # type: ignore[attr-defined]  # a circle, which the collector finds
                assert str(dims.parse(f"(a{number}+{i})*(b+2)+min(a,b)"))
        except BaseException as error:
            errors.append(error)

    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(10)
    try:
        threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)
    assert not errors


@pytest.mark.parametrize("text", [
    "", "1 2", "a b", "a+", "*a", "(a", "a)", "min(a)", "min(a,b,c)", "a**2", "a/2", "1.5", "a.b", "f(a,b)", "-",
    "min(", "((((a", "a,b", "(" * 3000 + "a",
])  # fmt: skip
def test_what_is_no_dim_is_refused(text: str) -> None:
    with pytest.raises(ShapeError):
        dims.parse(text)


@pytest.mark.parametrize("extreme", [dims.minimum, dims.maximum])
def test_the_extreme_of_many_dims_nests_no_deeper_than_those_that_differ(extreme: Callable[[Dim, Dim], Dim]) -> None:
    """As of the scratch memory of the kernels of a deep model, which repeats from layer to layer."""
    few = [dims.mul(dims.symbol(name), 64) for name in NAMES]
    total: Dim = few[0]
    for dim in few * 100:
        total = extreme(total, dim)
    assert total == extreme(extreme(few[0], few[1]), few[2])
    assert extreme(few[1], total) == total == extreme(total, total)


def test_nested_functions_are_refused_before_they_are_too_deep() -> None:
    dim = dims.symbol("n")
    with pytest.raises(ShapeError, match="at most 100 functions"):
        for _ in range(1000):
            dim = dims.maximum(dims.floordiv(dims.add(dim, -1), 2), 0)
    assert dims.evaluate(dim, {"n": 1 << 40}) >= 0 and str(dim)


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.sampled_from([*NAMES, "2*a+1", "b//2"]), min_size=1, max_size=4),
    env=BINDINGS,
    size=st.integers(0, 12),
    bits=st.integers(0, 15),
)
def test_broadcast_is_the_other_one_where_one_is_1(parts: list[str], env: dict[str, int], size: int, bits: int) -> None:
    """Whatever the order and nesting; at sizes that broadcast it is the one that is not 1."""
    of = [dims.parse(part) for part in parts]
    dim: Dim = 1
    for part in of:
        dim = dims.broadcast(part, dim)
    again = of[0]
    for part in of[1:]:
        again = dims.broadcast(again, part)
    assert dim == again == dims.broadcast(dim, of[-1]) == dims.parse(str(dim))
    values = {name: size if bits >> i & 1 else 1 for i, name in enumerate(NAMES)}
    plain = [part for part in parts if part in NAMES]
    only = dims.of(1)
    for part in plain:
        only = dims.broadcast(only, dims.symbol(part))
    known = {values[part] for part in plain}
    assert dims.evaluate(only, values) == next(iter(known - {1}), 1)
    low, high = dims.bounds(dim, dict.fromkeys(NAMES, (0, 12)))
    assert high is not None and low <= dims.evaluate(dim, env) <= high


def test_broadcast_of_known_dims() -> None:
    n, m = dims.symbol("n"), dims.symbol("m")
    both = dims.broadcast(n, m)
    assert str(both) == "broadcast(m, n)" and dims.broadcast(both, 4) == 4 and dims.broadcast(1, both) == both
    assert dims.substitute(both, {"n": 1}) == m and dims.substitute(both * 2 + 1, {"n": 3}) == 7
    assert dims.taken_as_equal(dims.maximum(both - 1, n)) == dims.maximum(m - 1, n)
    with pytest.raises(ShapeError, match="expected dims that broadcast, got 3 against 4"):
        dims.broadcast(dims.substitute(both, {"n": 3}), 4)


def test_dims_meet_values_and_numbers_of_numpy() -> None:
    graph = rlx.Graph()
    x = graph.input("x", ("n", 4))
    n = x.shape[0]
    graph.output(y=x * n / n + n)
    assert str(np.int64(3) * n) == str(n * np.int64(3)) == "3*n" and str(5 - n) == "-1*n+5"
    (y,) = rlx.Session("reference").compile(graph).run([np.ones((3, 4), np.float32)])
    np.testing.assert_array_equal(y, np.full((3, 4), 4, np.float32))


def test_a_dim_is_not_compared_by_its_name() -> None:
    n = dims.symbol("n")
    for ask in (lambda: n < 3, lambda: n > 3, lambda: n >= n, lambda: max(n, 4)):
        with pytest.raises(rlx.TracerError, match=r"got a comparison of it with .* at .*test_dim\.py:\d+"):
            ask()
    with pytest.raises(TypeError):
        _ = n * 0.5


@given(st.lists(expressions(), max_size=5))
def test_tables_of_dims_read_back(drawn: list[tuple[Dim, object]]) -> None:
    wanted = [dim for dim, _ in drawn]
    nodes, texts = json.loads(json.dumps(dim_table.written(wanted)))
    known = dim_table.read(nodes, texts)
    assert known == {str(dim): dim for dim in wanted if not isinstance(dim, int)}
    assert [str(dim) for dim in known.values()] == list(known)


def test_what_is_no_table_of_dims_is_refused() -> None:
    for nodes in ([["floordiv", [0], 2]], [[]], [3], [[[1, [5]]]]):
        with pytest.raises(ShapeError, match="table"):
            dim_table.read(nodes, {"x": 0})
