"""Arrays on devices: what runs take and give there, what they are to other libraries, and which bytes move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.memory import DeviceArray
from rlx.backends.op_by_op import WeightsAsArguments
from rlx.codegen.scalar import emulation
from rlx.errors import InputError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from support import skip_absent

DEVICES = ["reference", "cpu", "vulkan", "xla", "mlx"]
LIBRARIES = ["xla", "mlx"]


@pytest.fixture(autouse=True)
def present(request: pytest.FixtureRequest) -> None:
    skip_absent(request)


def chain() -> Graph:
    graph = Graph("chain")
    x, y = graph.input("x", ("n", 3)), graph.input("y", (3,))
    graph.output(x + y, name="sum")
    graph.output(x * 2.0, name="twice")
    return graph


ONES = np.ones(3, "f4")


@pytest.mark.parametrize("device", DEVICES)
def test_results_stay_on_the_device_and_go_in_again(device: str) -> None:
    program = rlx.Session(device).compile(chain())
    value, twice = program.run([np.zeros((2, 3), "f4"), ONES], outputs="device")
    for _ in range(3):
        value, twice = program.run([value, ONES], outputs="device")
    assert isinstance(value, DeviceArray) and isinstance(twice, DeviceArray)
    assert (value.shape, value.dtype, value.ndim, value.size, value.nbytes) == ((2, 3), np.float32, 2, 6, 24)
    assert np.asarray(value).tolist() == [[4] * 3] * 2
    assert np.asarray(twice, "i4").tolist() == [[6] * 3] * 2
    assert np.asarray(program.run({"x": value, "y": ONES})[1]).tolist() == [[8] * 3] * 2
    assert value.read((1,)).tolist() == [4] * 3 and value.read((-1 % 2, 2)) == 4
    assert "float32[2, 3]" in repr(value)
    assert program.read_output_row("sum", (-1, 0), [value, ONES]) == 5


@pytest.mark.parametrize("device", DEVICES)
def test_they_speak_dlpack(device: str) -> None:
    program = rlx.Session(device).compile(chain())
    value, _ = program.run([np.zeros((2, 3), "f4"), ONES], outputs="device")
    assert value.__dlpack_device__()[0] == 1
    assert np.from_dlpack(value).tolist() == [[1] * 3] * 2
    torch = pytest.importorskip("torch")
    tensor = torch.from_dlpack(value)
    assert program.run([tensor, ONES])[0].tolist() == [[2] * 3] * 2
    other = rlx.Session("cpu").compile(chain())
    assert other.run([value, ONES])[0].tolist() == [[2] * 3] * 2, "from whatever device it is on"


@pytest.mark.parametrize("device", DEVICES)
def test_they_become_handles_as_copies(device: str) -> None:
    program = rlx.Session(device).compile(chain())
    value, _ = program.run([np.zeros((2, 3), "f4"), ONES], outputs="device")
    program.bind_handle("x", value)
    program.set_feeds({"sum": "x"})
    for _ in range(3):
        fed, _ = program.run([ONES], outputs="device")
    assert np.asarray(fed).tolist() == program.read_handle("x").tolist() == [[4] * 3] * 2
    assert np.asarray(value).tolist() == [[1] * 3] * 2
    state = Graph("state")
    state_value = state.state("kept", (2, 3))
    state.set_next(state_value, rlx.update_slice(state_value, state.input("row", (1, 3)), state.constant(0)))
    state.output(rlx.reduce_sum(state_value, axes=(0, 1)), name="before")
    holder = rlx.Session(device).compile(state)
    holder.bind_handle("kept", value)
    holder.run([np.full((1, 3), 5, "f4")])
    assert holder.read_handle("kept").tolist() == [[5] * 3, [1] * 3]
    assert np.asarray(value).tolist() == [[1] * 3] * 2, "the state was a copy"


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_fit_is_refused(device: str) -> None:
    program = rlx.Session(device).compile(chain())
    value, _ = program.run([np.zeros((2, 3), "f4"), ONES], outputs="device")
    with pytest.raises(InputError, match="expected input 'y' of"):
        program.run([value, value])
    cast = Graph("cast")
    cast.output(cast.input("x", (2, 3)).cast("i32"), name="y")
    (whole,) = rlx.Session(device).compile(cast).run([np.zeros((2, 3), "f4")], outputs="device")
    with pytest.raises(InputError, match=r"expected input 'x' of f32\[n, 3\]"):
        program.run([whole, ONES])
    with pytest.raises(InputError, match="expected input 'x' of"):
        program.bind_handle("x", whole)


def test_an_output_that_is_called_device_is_that_output() -> None:
    graph = Graph("named")
    graph.output(graph.input("x", (2,)) * 2.0, name="device")
    program = rlx.Session("cpu").compile(graph)
    (result,) = program.run([np.ones(2, "f4")], outputs="device")
    assert isinstance(result, np.ndarray)


@pytest.mark.parametrize("device", LIBRARIES)
def test_a_fed_run_moves_inputs_and_wanted_outputs(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where arrays go to the library, and where they come from it."""
    from rlx.backends.mlx import executable as mlx
    from rlx.backends.xla import executable as xla

    traffic = {"up": 0, "down": 0}

    def up(array: Array) -> Array:
        traffic["up"] += array.nbytes
        return stored(array)

    def down(value: Any, dtype: Any) -> Array:
        result = plain_from_stored(value, dtype)
        traffic["down"] += result.nbytes
        return result

    graph = Graph("fed")
    past, x = graph.input("past", (512, 64)), graph.input("x", (64,))
    cache = graph.state("cache", (512, 64))
    graph.set_next(cache, rlx.update_slice(cache, x.reshape(1, 64), graph.constant(3)))
    graph.output(past * 0.5 + x, name="present")
    graph.output(rlx.reduce_sum(past, axes=(0,)), name="sum")
    program = rlx.Session(device).compile(graph)
    program.bind_handle("past", np.zeros((512, 64), "f4"))
    program.set_feeds({"present": "past"})
    program.run([np.ones(64, "f4")], outputs=["sum"])
    if device == "xla":
        stored, plain_from_stored = emulation.to_stored, emulation.from_stored
        monkeypatch.setattr(xla.emulation, "to_stored", up)
        monkeypatch.setattr(xla.emulation, "from_stored", down)
    else:
        stored, plain_from_stored = mlx.put, mlx.take
        monkeypatch.setattr(mlx, "put", up)
        monkeypatch.setattr(mlx, "take", down)
    for total in (1.0, 1.5):
        assert program.run([np.ones(64, "f4")], outputs=["sum"])[0].tolist() == [total * 512] * 64
    assert traffic == {"up": 2 * 256, "down": 2 * 256}
    assert program.read_handle("cache")[2:5, 0].tolist() == [0, 1, 0]


@pytest.mark.parametrize("device", LIBRARIES)
def test_one_weight_is_one_weights_bytes(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("weights")
    y = graph.input("x", (4, 16))
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    for i in range(4):
        arrays |= {f"w{i}": rng.normal(size=(16, 16)).astype("f4") / 8, f"b{i}": rng.normal(size=16).astype("f4")}
        w = graph.param(f"w{i}", (16, 16))
        y = y @ (rlx.transpose(w * 2.0, permutation=(1, 0)) if i % 2 else w) + graph.param(f"b{i}", (16,))
    graph.output(y, name="y")
    program, expected = (rlx.Session(kind).compile(graph) for kind in (device, "reference"))
    for each in (program, expected):
        each.set_params(arrays)
    inputs = [rng.normal(size=(4, 16)).astype("f4")]
    np.testing.assert_allclose(program.run(inputs)[0], expected.run(inputs)[0], rtol=1e-4, atol=1e-4)
    uploaded: list[str] = []
    kind = type(program.executable)
    assert issubclass(kind, WeightsAsArguments)
    plain = kind.upload

    def upload(self: Any, params: dict[str, Array]) -> Any:
        uploaded.extend(params)
        return plain(self, params)

    monkeypatch.setattr(kind, "upload", upload)
    other = program.clone()
    np.testing.assert_array_equal(other.run(inputs)[0], program.run(inputs)[0])
    assert not uploaded, "clones share weights"
    compiled = other.compile_count
    for name in ("w0", "w1", "b3"):
        new = {name: rng.normal(size=arrays[name].shape).astype("f4") / 8}
        before = other.run(inputs)[0]
        program.set_params(new)
        expected.set_params(new)
        np.testing.assert_allclose(program.run(inputs)[0], expected.run(inputs)[0], rtol=1e-4, atol=1e-4)
        assert uploaded == [name]
        uploaded.clear()
        np.testing.assert_array_equal(other.run(inputs)[0], before)
    if device == "xla":
        assert other.compile_count == compiled, "clones share what was compiled"
