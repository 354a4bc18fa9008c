"""What is special to MLX: plans by size, weights, threads, its user's defaults, loops, claims, errors. What all devices
share is in tests/ops."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends import mlx as backend
from rlx.backends.base import Options
from rlx.backends.claims import Dispatch
from rlx.backends.mlx.executable import translated
from rlx.errors import CompileError, OutOfMemory
from rlx.ir import dtype as dtypes
from rlx.ir.compare import epsilon
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from support import assert_close_on, run_on, why_absent

here = pytest.mark.skipif(bool(why_absent("mlx")), reason=why_absent("mlx"))


def net() -> Graph:
    graph = Graph("net")
    graph.output(rlx.relu(graph.input("x", ("n", 4), "f32") @ graph.param("w", (4, 4), "f32")), name="y")
    return graph


@here
def test_results_may_be_written_to_and_weights_are_copies() -> None:
    graph = Graph()
    graph.output(graph.param("w", (3,), "f32"), graph.input("x", (3,), "f32"))
    compiled = rlx.Session("mlx").compile(graph)
    given, x = np.ones(3, np.float32), np.zeros(3, np.float32)
    compiled.set_param("w", given)
    w, y = compiled.run([x])
    w += 1
    y += 1
    again = compiled.run([x])
    assert [a.tolist() for a in again] == [[1, 1, 1], [0, 0, 0]] and x.tolist() == [0, 0, 0]


@here
def test_many_threads_share_a_program() -> None:
    compiled = rlx.Session("mlx").compile(net())
    compiled.set_param("w", np.eye(4, dtype=np.float32) * 2)

    def run(i: int) -> bool:
        x = np.full((i % 3 + 1, 4), i, np.float32)
        return all(np.array_equal(compiled.run([x])[0], x * 2) for _ in range(20))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(run, range(24)))


@here
def test_the_users_defaults_stay_and_his_arrays_can_be_used() -> None:
    import mlx.core as mx

    device, stream = mx.default_device(), mx.default_stream(mx.default_device())
    mine = mx.ones((3,)) + 1  # not computed yet
    graph = Graph()
    graph.output(graph.input("x", (3,), "i64") * 2**40, graph.input("y", (3,), "f64") / 3.0)
    made = rlx.Session("mlx").compile(graph).run([np.arange(3), np.arange(3.0)])
    assert [a.dtype for a in made] == [np.int64, np.float64] and made[0][2] == 2**41
    assert (mx.default_device(), mx.default_stream(mx.default_device())) == (device, stream)
    assert mx.array([1.0]).dtype == mx.float32 and mine.tolist() == [2, 2, 2]


@here
@pytest.mark.parametrize("trips", [0, 1, 7, 200])
def test_loops_run_on_the_host(trips: int) -> None:
    graph = Graph("recurrent")
    sizes = {"x": (trips, 2, 3), "w": (1, 4, 3), "r": (1, 4, 4), "b": (1, 8), "h": (1, 2, 4)}
    random = np.random.default_rng(0)
    values = [graph.input(name, shape, "f32") for name, shape in sizes.items()]
    graph.output(rlx.rnn(*values)[0])
    inputs = [random.standard_normal(s).astype(np.float32) for s in sizes.values()]
    got, want = (rlx.Session(d).compile(graph).run(inputs)[0] for d in ("mlx", "reference"))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def attends(dtype: str = "f32", mask: str | None = None, **attributes: Any) -> Graph:
    graph = Graph()
    q, k = graph.input("q", (1, 2, 5, 8), dtype), graph.input("k", (1, 1, 7, 8), dtype)
    more = [graph.input("mask", (5, 7), mask)] if mask else []
    graph.output(rlx.attention(q, k, k, *more, **attributes), name="y")
    return graph


def rotates() -> Graph:
    graph = Graph()
    graph.output(
        rlx.ops.rotary_embedding(*(graph.input(n, s) for n, s in (("x", (1, 2, 5, 8)), ("c", (5, 4)), ("s", (5, 4)))))
    )
    return graph


CLAIMED: list[tuple[Callable[[], Graph], str]] = [
    (attends, ""),
    (lambda: attends(mask="bool"), ""),
    (lambda: attends(mask="f32"), ""),
    (lambda: attends(causal=True), ""),
    (lambda: attends(window=2), ""),
    (lambda: attends(empty="nan"), ""),
    (lambda: attends(softcap=5.0), "soft cap"),
    (lambda: attends(fill=-1e4), "forbidden scores of -10000"),
    (lambda: attends("f64"), "f64"),
    (rotates, "tables of cosines"),
]


@pytest.mark.parametrize("make, words", CLAIMED)
def test_what_mlx_fuses_and_why_not(make: Callable[[], Graph], words: str) -> None:
    node = make().nodes[-1]
    said = backend.MlxBackend().claim(node)
    assert said == "" if not words else words in str(said)


@here
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("mask", [None, "bool", "added"])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"causal": True},
        {"causal": True, "offset": 2},  # queries and keys end together
        {"causal": True, "offset": -2},
        {"causal": True, "offset": 2, "window": 2},
        {"window": 2, "offset": -5},
        {"window": 1 << 40, "offset": 1 << 40},
        {"causal": True, "offset": -9},
    ],
    ids=str,
)
@pytest.mark.parametrize("empty", ["zero", "nan"])
def test_masked_attention_is_the_references(dtype: str, mask: str | None, attributes: Any, empty: str) -> None:
    """Rows 1 and 2 are without a key by bool masks and by added ones."""
    graph = attends(dtype, mask if mask != "added" else dtype, empty=empty, **attributes)
    random = np.random.default_rng(0)
    inputs = {v.name: random.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    if mask == "bool":
        inputs["mask"] = random.integers(0, 2, (5, 7)).astype(np.bool_)
        inputs["mask"][1:3] = False
    elif mask:
        inputs["mask"][1:3] = -np.inf
        inputs["mask"][3, ::2] = -np.inf
    node = graph.nodes[-1]
    assert backend.MlxBackend().claim(node) == ""
    got, want = (run_on(device, graph, inputs)["y"] for device in ("mlx", "reference"))
    assert_close_on("mlx", got, want, node.op.tolerance)


@here
@pytest.mark.parametrize("policy", ["prefer-native", "force-common"])
def test_fused_and_decomposed_give_the_same(policy: Any) -> None:
    graph = attends(mask="bool")
    random = np.random.default_rng(0)
    q, k = (random.standard_normal(v.shape).astype(np.float32) for v in graph.inputs[:2])
    mask = random.integers(0, 2, (5, 7)).astype(np.bool_)
    mask[2] = False
    executable = backend.MlxBackend().compile(graph, Options(dispatch=Dispatch(policy)))
    executable.set_params({})
    want = run_on("reference", graph, {"q": q, "k": k, "mask": mask})["y"]
    np.testing.assert_allclose(executable.bind({})([q, k, mask])[0], want, rtol=1e-5, atol=1e-6)


def packs(bits: int, block: int, depth: int, dtype: str = "f32", zeros: bool = True) -> Graph:
    """A product with a weight [5, depth] of few bits."""
    graph = Graph()
    blocks = -(-depth // block)
    w = graph.param("w", (5, blocks * block * bits // 8), "u8")
    parameters = [graph.param(n, (5, blocks), dtype) for n in ("scale", "zero")[: 1 + zeros]]
    x = graph.input("x", ("n", depth), dtype)
    graph.output(rlx.ops.packed_matmul(x, w, *parameters, depth=depth, bits=bits, block=block), name="y")
    return graph


def dequantises(kind: str, axis: int, block: int, of: str = "f32", turned: bool = False) -> Graph:
    """A product with a dequantised weight whose rows of 256 run along an axis."""
    shape = (256, 6) if axis == 0 else (6, 256)
    parameter = tuple(n // (block if a == axis else 1) for a, n in enumerate(shape)) if block else (6,)
    graph = Graph()
    w = graph.param("w", shape, kind)
    scale, zero = graph.param("scale", parameter, of), graph.param("zero", parameter, kind)
    weight = rlx.ops.dequantize(w, scale, zero, dtype=of, axis=axis if block else 1 - axis, block=block)
    graph.output(graph.input("x", (3, 256), of) @ (weight.transpose() if axis == 1 else weight), name="y")
    return graph


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: packs(4, 32, 96), ""),
        (lambda: packs(2, 256, 300, "f16"), ""),
        (lambda: packs(4, 16, 96), "blocks of 16"),
        (lambda: packs(4, 48, 96), "blocks of 48"),
        (lambda: packs(8, 64, 96, "f64"), "f64"),
    ],
)
def test_what_mlx_takes_of_packed_products(make: Callable[[], Graph], words: str) -> None:
    said = backend.MlxBackend().claim(make().nodes[-1])
    assert said == "" if not words else words in str(said)


def weights_of(graph: Graph) -> dict[str, Array]:
    random = np.random.default_rng(0)
    made: dict[str, Array] = {}
    for value in graph.params:
        shape, kind = [int(n) for n in value.shape], value.dtype
        if kind.is_float:
            low, high = (0.001, 0.01) if value.name == "scale" else (0, 15)
            made[value.name] = random.uniform(low, high, shape).astype(kind.numpy)
        else:
            least, most = (-(1 << kind.bits - 1), 1 << kind.bits - 1) if kind.kind == "int" else (0, 1 << kind.bits)
            made[value.name] = random.integers(least, most, shape).astype(kind.numpy)
    return made


PACKED = [
    *(packs(b, g, d, t, z) for b, g, d, t, z in (
        (4, 32, 96, "f32", True), (4, 32, 80, "f16", True), (4, 64, 128, "bf16", False), (2, 256, 300, "f32", True),
        (8, 128, 128, "f32", False), (8, 512, 512, "f16", True),
    )),
    *(dequantises(k, a, b, t) for k, a, b, t in (
        ("u4", 0, 32, "f32"), ("i4", 1, 64, "f32"), ("i8", 0, 0, "f32"), ("u8", 1, 128, "f16"), ("i8", 1, 0, "bf16"),
        ("u2", 0, 256, "f32"),
    )),
]  # fmt: skip


@here
@pytest.mark.parametrize("graph", PACKED, ids=lambda g: "-".join(str(v.type) for v in (*g.inputs, *g.params)))
def test_packed_products_go_to_mlxs_own(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """What weights alone decide is worked out when they are set: a run is the product, and casts of x."""
    calls: list[dict[str, Any]] = []
    plain = backend.executable.mx.quantized_matmul
    monkeypatch.setattr(backend.executable.mx, "quantized_matmul", lambda *a, **k: calls.append(k) or plain(*a, **k))
    random = np.random.default_rng(1)
    inputs = {v.name: random.standard_normal((3, v.shape[1])).astype(v.dtype.numpy) for v in graph.inputs}
    results = []
    for device in ("mlx", "reference"):
        made = rlx.Session(device).compile(graph)
        made.set_params(weights_of(graph))
        results.append(made.run(inputs)[0])
        if device == "mlx":
            left = {node.op.name for node in made.executable.graph.nodes}
            assert left <= {"input", "param", "packed_matmul", "cast", "pad"}, left
    assert len(calls) == 1 and calls[0]["group_size"] in (32, 64, 128)
    # weights stay f32 where the definition rounds them to the dtype of x
    rounded = epsilon(dtypes.of(results[1].dtype)) / epsilon(dtypes.f32)
    wide = rlx.ops.linalg.Matmul.tolerance
    assert_close_on("mlx", *results, replace(wide, ulps=max(wide.ulps, 2 * rounded)))


@here
@pytest.mark.parametrize(
    "graph",
    [packs(4, 16, 96), dequantises("u4", 0, 16), dequantises("u8", 0, 32, "f64")],
    ids=["small-blocks", "small-dequantised-blocks", "f64"],
)
def test_other_packed_products_are_decomposed(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.executable.mx, "quantized_matmul", None)
    inputs = {v.name: np.ones((3, int(v.shape[1])), v.dtype.numpy) for v in graph.inputs}
    results = []
    for device in ("mlx", "reference"):
        made = rlx.Session(device).compile(graph)
        made.set_params(weights_of(graph))
        results.append(made.run(inputs)[0])
    assert_close_on("mlx", *results, rlx.ops.linalg.Matmul.tolerance)


@here
@pytest.mark.parametrize("depth", [300, 5000])
def test_products_of_bytes_are_exact(depth: int) -> None:
    random = np.random.default_rng(0)
    x = random.integers(128, 256, (3, depth)).astype(np.uint8)
    y = np.full((depth, 2), -128, np.int8)
    graph = Graph()
    left, right = graph.input("x", x.shape, "u8"), graph.input("y", y.shape, "i8")
    axes = {"lhs_contract": (1,), "rhs_contract": (0,)}
    graph.output(rlx.ops.dot_general(left, right, **axes, sum_dtype="i32"), name="y")
    wanted = x.astype(np.int32) @ y.astype(np.int32)
    np.testing.assert_array_equal(run_on("mlx", graph, {"x": x, "y": y})["y"], wanted)


@here
def test_mlx_compiles_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlx.core as mx

    calls: list[object] = []
    plain = mx.compile
    monkeypatch.setattr(backend.executable.mx, "compile", lambda f: calls.append(f) or plain(f))
    x: Array = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    for asked, times in (("auto", 0), ("0", 0), ("1", 1)):
        monkeypatch.setenv("RLX_MLX_COMPILE", asked)
        graph = Graph()
        value = graph.input("x", (3, 4))
        graph.output(value.transpose(1, 0).reshape(12), name="y")  # nothing that asks for a C++ compiler
        got = run_on("mlx", graph, {"x": x})["y"]
        np.testing.assert_array_equal(got, x.T.reshape(-1))
        assert len(calls) == times or not backend.MlxBackend().on_processor()


@pytest.mark.parametrize(
    "error, wanted",
    [
        (RuntimeError("[metal::malloc] Attempting to allocate 8 bytes which is greater than …"), OutOfMemory),
        (MemoryError("std::bad_alloc"), OutOfMemory),
        (ValueError("[conv] Can only handle groups != 1 in 1D or 2D convolutions."), CompileError),
        (rlx.ShapeError("expected 2, got 3"), rlx.ShapeError),
    ],
)
def test_errors_are_rlxs(error: Exception, wanted: type[Exception]) -> None:
    with pytest.raises(wanted), translated():
        raise error


@pytest.mark.parametrize(
    "files, system, devices, reason",
    [
        (None, "linux", (), "not installed"),
        ((), "linux", (), "without its library"),
        (("mlx/lib/libmlx.so",), "linux", (backend.PROCESSOR,), ""),
        (("mlx/lib/libmlx.so", "mlx_cuda_13-1.dist-info/x"), "linux", ("NVIDIA GPU", backend.PROCESSOR), ""),
        (("mlx/lib/libmlx.dylib", "mlx/lib/mlx.metallib"), "darwin", ("Apple GPU", backend.PROCESSOR), ""),
    ],
)
def test_what_a_probe_finds(
    files: tuple[str, ...] | None, system: str, devices: tuple[str, ...], reason: str,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    for name in files or ():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    spec = ModuleSpec("mlx", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "mlx")]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if files is None else spec)
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    found = backend.MlxBackend().probe()
    assert found.devices == devices and reason in found.reason
    assert devices or "pip install 'rlx[mlx]'" in found.reason


def test_looking_for_mlx_imports_nothing_of_it() -> None:
    program = (
        "import sys, rlx; from rlx.device import registry; registry.probe('mlx'); print('mlx.core' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


def test_complex_numbers_and_narrow_weights() -> None:
    graph = Graph("dtypes")
    x, w = graph.input("x", (3,), "c64"), graph.param("w", (3,), "f8e4m3")
    graph.output(x / (x + 1), x.cast("f32") * w.cast("f32"), w * w)
    weights = np.array([0.5, -3, 448], graph.params[0].dtype.numpy)
    x_ = np.array([1 + 2j, -1, -1j], np.complex64)
    results = []
    for device in ("mlx", "reference"):
        made = rlx.Session(device).compile(graph)
        made.set_param("w", weights)
        results.append(made.run([x_]))
    for got, wanted in zip(*results):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(np.array(got, np.complex64), np.array(wanted, np.complex64), rtol=1e-6)
