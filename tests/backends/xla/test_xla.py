"""What is special to XLA: control flow, sizes, 64 bits, weights. What all devices share is in tests/ops."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.ir.graph import Graph, call
from rlx.ir.literal import Array

pytest.importorskip("jax", reason="jax is not installed: pip install 'rlx[xla]'")


def test_the_users_jax_keeps_its_switches() -> None:
    import jax
    import jax.numpy as jnp

    graph = Graph("wide")
    graph.output(graph.input("x", (3,), "i64") * 2**40, graph.input("y", (3,), "f64") / 3.0)
    made = rlx.Session("xla").compile(graph).run([np.arange(3), np.arange(3.0)])
    assert [a.dtype for a in made] == [np.int64, np.float64]
    assert made[0][2] == 2**41
    assert not jax.config.jax_enable_x64
    assert jnp.arange(3).dtype == np.int32


def test_results_may_be_written_to() -> None:
    (y,) = rlx.Session("xla").compile(_identity()).run([np.zeros(3, np.float32)])
    y += 1
    assert y.tolist() == [1, 1, 1]


def _identity() -> Graph:
    graph = Graph("identity")
    graph.output(graph.input("x", (3,), "f32") * 1.0)
    return graph


def loop(trips: int) -> tuple[Graph, Array]:
    graph = Graph("recurrent")
    sizes = {"x": (trips, 2, 3), "w": (1, 4, 3), "r": (1, 4, 4), "b": (1, 8), "h": (1, 2, 4)}
    random = np.random.default_rng(0)
    values = [graph.input(name, shape, "f32") for name, shape in sizes.items()]
    graph.output(rlx.rnn(*values)[0])
    return graph, [random.standard_normal(s).astype(np.float32) for s in sizes.values()]


def test_loops_run_in_xla() -> None:
    graph, inputs = loop(7)
    got, want = (rlx.Session(d).compile(graph).run(inputs)[0] for d in ("xla", "reference"))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_importing_rlx_imports_no_jax() -> None:
    import subprocess

    program = "import sys, rlx; from rlx.device import registry; registry.probe('xla'); print('jax' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


def test_a_side_that_does_not_fit_is_an_error_only_if_it_is_asked_for() -> None:
    """XLA traces both sides of a conditional: one that cannot be traced at these sizes is left out, and told of."""
    graph = Graph("sides")
    x, test = graph.input("x", ("n", 4), "f32"), graph.input("test", (), "bool")
    yes, no = Graph("yes"), Graph("no")
    for side in (yes, no):
        inner = side.input("x", ("n", 4), "f32")
        whole = inner.reshape((8,)) if side is yes else rlx.neg(inner).reshape((4, "n"))
        side.output(rlx.reduce_sum(whole, axes=tuple(range(whole.rank))))
    made = call("if", test, x, regions=(yes, no))
    graph.output(made[0] if isinstance(made, tuple) else made, name="y")
    program = rlx.Session("xla").compile(graph)
    two, three = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
    assert [float(program.run([two, np.array(t)])[0]) for t in (True, False)] == [8.0, -8.0]
    assert float(program.run([three, np.array(False)])[0]) == -12.0
    with pytest.raises(rlx.ShapeError, match="8"):
        program.run([three, np.array(True)])
    assert float(program.run([three, np.array(False)])[0]) == -12.0


def test_complex_numbers_of_both_widths() -> None:
    graph = Graph("complex")
    x, y = graph.input("x", (3,), "c64"), graph.input("y", (3,), "c128")
    graph.output(x * x, y / (y + 1), x.cast("c128") + y, x.cast("f32"), x.cast("bool"))
    arrays = [np.array([1 + 2j, 0, -1j], np.complex64), np.array([1j, 2 - 1j, 3], np.complex128)]
    for dtype, (got, wanted) in zip(
        ("c64", "c128", "c128", "f32", "bool"),
        zip(rlx.Session("xla").compile(graph).run(arrays), rlx.Session("reference").compile(graph).run(arrays)),
    ):
        assert got.dtype == wanted.dtype, dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_narrow_weights_stay_narrow() -> None:
    from rlx.backends.base import Options
    from rlx.device import registry

    graph = Graph("eight")
    x, w = graph.input("x", (2, 256), "f32"), graph.param("w", (256, 128), "f8e4m3")
    graph.output(x @ w.cast("f32"))
    made = registry.backend("xla")[0].compile(graph, Options())
    weights = np.ones((256, 128), graph.params[0].dtype.numpy)
    made.set_params({"w": weights})
    assert made.weights()["w"].nbytes == weights.nbytes  # type: ignore[attr-defined]
    assert made.bind({})([np.ones((2, 256), np.float32)])[0].tolist() == [[256.0] * 128] * 2


def resized(dtype: str, mode: str, height: int, width: int) -> Graph:
    graph = Graph()
    x = graph.input("x", (1, 2, 15, 23), dtype)
    how = {"axes": (2, 3), "sizes": (height, width), "up": (height, width), "down": (15, 23), "mode": mode}
    graph.output(rlx.ops.resize(x, **how), name="y")
    return graph


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("dtype", ["u8", "i32"])
@pytest.mark.parametrize("height, width", [(21, 31), (9, 40), (45, 11)])
def test_sums_that_become_integers_are_rounded_as_written(mode: str, dtype: str, height: int, width: int) -> None:
    """One colour stays that colour: a sum joined with a product would fall short of it here and there."""
    graph = resized(dtype, mode, height, width)
    kind = graph.inputs[0].dtype.numpy
    random = np.random.default_rng(0)
    for x in (np.full((1, 2, 15, 23), 77), random.integers(0, 255, (1, 2, 15, 23))):
        got, want = (rlx.Session(d).compile(graph).run([x.astype(kind)])[0] for d in ("xla", "reference"))
        np.testing.assert_array_equal(got, want)


def test_other_sums_are_xlas() -> None:
    from rlx.backends.xla.exact_rounding import truncated_sums
    from rlx.device.registry import backend

    found = []
    for dtype in ("f32", "u8"):
        made, _ = backend("xla")
        ready = made.legalise(resized(dtype, "linear", 21, 31), Options())
        found.append(sum(node.op.name == "mul" and id(node) in truncated_sums(ready) for node in ready.nodes))
    assert found == [0, 4]
