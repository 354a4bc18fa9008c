"""Data whose dtype the caller says: bytes, numbers that are widened, tensors of dtypes that NumPy lacks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.errors import InputError
from rlx.ir import dtype as dtypes
from rlx.runtime.typed import widens

torch = pytest.importorskip("torch", reason="tensors are torch's")

VALUES = np.array([[0.5, -1.5, 2.0, 0.25], [1.0, -0.0, 448.0, 3.5]], np.float32)


def doubled(dtype: str, device: str = "cpu") -> rlx.CompiledGraph:
    graph = rlx.Graph("twice")
    x, w = graph.input("x", ("n", 4), dtype), graph.param("w", (2, 4), dtype)
    graph.output(x[:2] + w, name="y")
    graph.output(w, name="w_out")
    return rlx.Session(device).compile(graph)


@pytest.mark.parametrize("device", ["cpu", "reference", "vulkan"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8e4m3", "f32", "i8", "i64", "bool", "u32"])
def test_bytes_are_taken_as_what_they_are_said_to_be(dtype: str, device: str) -> None:
    numpy = dtypes.of(dtype).numpy
    data = (VALUES > 0).astype(numpy) if dtype == "bool" else np.abs(np.clip(VALUES, -8, 100)).astype(numpy)
    graph = rlx.Graph("same")
    graph.output(graph.input("x", ("n", 4), dtype), name="y")
    graph.output(graph.param("w", (2, 4), dtype), name="w_out")
    if device == "vulkan" and not rlx.supports_graph(device, graph):
        pytest.skip("no such dtype there")
    program = rlx.Session(device).compile(graph)
    program.set_param("w", data.tobytes(), dtype=dtype)
    for raw in (data.tobytes(), bytearray(data.tobytes()), memoryview(data.tobytes())):
        y, w = program.run([rlx.Typed(raw, dtype)])
        assert y.tobytes() == w.tobytes() == data.tobytes() and y.shape == (2, 4)
    (y, _) = program.run({"x": rlx.Typed(data.tobytes(), numpy, (2, 4))})
    assert y.shape == (2, 4)


@pytest.mark.parametrize("narrow", ["f16", "bf16", "f8e4m3", "f8e5m2"])
def test_floats_widen_on_request(narrow: str) -> None:
    data = VALUES.astype(dtypes.of(narrow).numpy)
    program = doubled("f32")
    with pytest.raises(InputError, match="never cast silently"):
        program.set_param("w", data)
    program.set_param("w", data, dtype=narrow)
    np.testing.assert_array_equal(program.params["w"], data.astype(np.float32))
    program.set_param("w", data.tobytes(), dtype=narrow)
    program.bind_handle("x", rlx.Typed(data, narrow))
    y, w = program.run()
    np.testing.assert_array_equal(w, data.astype(np.float32))
    np.testing.assert_array_equal(y, 2 * w)
    devices = rlx.GraphDevices(program.graph, rlx.DevicePolicy().only("cpu"))
    devices.set_param("w", rlx.Typed(data.tobytes(), narrow))
    np.testing.assert_array_equal(devices.run("cpu", [rlx.Typed(data, narrow)])[0], y)


def test_what_widens() -> None:
    lossy = ("f16", "bf16"), ("bf16", "f16"), ("f32", "f16"), ("i32", "f32"), ("i8", "u16"), ("f32", "f32")
    for narrow, wide in lossy:
        assert not widens(dtypes.of(narrow), dtypes.of(wide)), (narrow, wide)
    every = [d for d in dtypes.ALL.values() if d.bits >= 8 and not d.is_complex and d is not dtypes.bool_]
    pairs = [(a, b) for a in every for b in every if widens(a, b)]
    assert len(pairs) > 20
    for narrow, wide in pairs:
        if narrow.bits <= 16:
            bits = np.arange(1 << narrow.bits, dtype=f"u{narrow.bits // 8}").view(narrow.numpy)
            with np.errstate(invalid="ignore"):
                back = bits.astype(wide.numpy).astype(narrow.numpy)
            same = (back.view(f"u{narrow.bits // 8}") == bits.view(f"u{narrow.bits // 8}")) | (back != back)
            assert same.all(), (narrow, wide)


def test_elements_that_share_a_byte() -> None:
    graph = rlx.Graph("nibbles")
    graph.output(rlx.cast(graph.input("x", ("n",), "u4"), to=rlx.i32), name="u")
    graph.output(rlx.cast(graph.input("s", ("n",), "i4"), to=rlx.i32), name="i")
    program = rlx.Session("cpu").compile(graph)
    u, i = program.run([rlx.Typed(b"\x21\xf8", "u4"), rlx.Typed(b"\x21\xf8", "i4")])
    assert (u.tolist(), i.tolist()) == ([1, 2, 8, 15], [1, 2, -8, -1])


def test_what_does_not_fit_is_told() -> None:
    program = doubled("f32")
    cases = [
        (rlx.Typed(b"1234567", "f32"), "got 7 bytes of f32 for the shape"),
        (rlx.Typed(b"\0" * 32, "f33"), "with a dtype: expected a dtype, got 'f33'"),
        (rlx.Typed(VALUES, "f16"), "as data of f16, got float32"),
        (rlx.Typed(VALUES.astype(np.float64), "f64"), "got f64, which does not widen to it without loss"),
        (rlx.Typed(b"\0" * 64, "f32"), "got 64 bytes of f32"),
        (b"\0" * 32, r"of bytes rlx\.Typed\(…, dtype\)"),
    ]
    for value, pattern in cases:
        with pytest.raises(InputError, match=pattern):
            program.set_param("w", value)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bfloat16", "bf16"), ("float8_e4m3fn", "f8e4m3"), ("float8_e5m2", "f8e5m2"), ("float8_e4m3fnuz", "f8e4m3fnuz"),
     ("float8_e5m2fnuz", "f8e5m2fnuz")],
)  # fmt: skip
def test_tensors_of_narrow_floats(name: str, dtype: str) -> None:
    tensor = torch.from_numpy(np.clip(VALUES, -8, 100)).to(getattr(torch, name))
    expected = tensor.to(torch.float32).numpy()
    graph = rlx.Graph("cast")
    graph.output(rlx.cast(graph.input("x", ("n", "m"), dtype), to=rlx.f32), name="y")
    program = rlx.Session("cpu").compile(graph)
    np.testing.assert_array_equal(program.run([tensor])[0], expected)
    np.testing.assert_array_equal(program.run([tensor.t()])[0], expected.T)
    np.testing.assert_array_equal(program.run([tensor[:, ::2]])[0], expected[:, ::2])
    assert tensor.dtype == getattr(torch, name), "the tensor stays as it is"
    with pytest.raises(InputError, match=f"of {dtype}.*got float32"):
        program.run([expected])


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", "bf16"), ("float8_e4m3fn", "f8e4m3"), ("float16", "f16")])
def test_tensors_widen_on_request(name: str, dtype: str) -> None:
    """NumPy alone takes no tensor whose dtype it lacks."""
    tensor = torch.tensor([0.5, -2.0, 3.0]).to(getattr(torch, name))
    graph = rlx.Graph("scaled")
    graph.output(graph.input("x", (3,)) * graph.param("w", (3,)), name="y")
    program = rlx.Session("cpu").compile(graph)
    program.set_param("w", tensor, dtype)
    np.testing.assert_array_equal(program.run([np.ones(3, "f4")])[0], [0.5, -2, 3])
    program.set_param("w", np.ones(3, "f4"))
    np.testing.assert_array_equal(program.run([rlx.Typed(tensor, dtype)])[0], [0.5, -2, 3])
    with pytest.raises(InputError, match="as data of f16, got " if dtype != "f16" else "as data of bf16, got float16"):
        program.set_param("w", tensor, "f16" if dtype != "f16" else "bf16")
    with pytest.raises(InputError, match=r"DLPack cannot hand over: .*detach"):
        program.set_param("w", torch.ones(3, requires_grad=True), "f32")


def test_arrays_of_other_libraries() -> None:
    graph = rlx.Graph("cast")
    graph.output(rlx.cast(graph.input("x", ("n",), "bf16"), to=rlx.f32), name="y")
    program = rlx.Session("cpu").compile(graph)
    expected = np.array([0.5, -2.0, 3.0], np.float32)
    jax = pytest.importorskip("jax")
    np.testing.assert_array_equal(program.run([jax.numpy.asarray(expected, jax.numpy.bfloat16)])[0], expected)
    mlx = pytest.importorskip("mlx.core")
    np.testing.assert_array_equal(program.run([mlx.array(expected).astype(mlx.bfloat16)])[0], expected)
    np.testing.assert_array_equal(program.run([expected.astype(ml_dtypes.bfloat16)])[0], expected)
