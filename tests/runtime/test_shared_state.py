"""A graph on several devices has one state, which goes where the runs are, and stays what it was when a run fails."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.cli.run import run_model
from rlx.device import device, registry, support
from rlx.errors import (
    CapabilityError,
    DeviceLost,
    DeviceUnavailable,
    FallbackError,
    InputError,
    OptionError,
    RunTimeout,
    StateLost,
)
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.serial import save_graph
from support import skip_absent

HEADS, LENGTH, WIDTH, STEPS = 2, 16, 4, 8
OTHERS = ["cpu", "vulkan", "xla", "mlx"]


@pytest.fixture(autouse=True)
def present(request: pytest.FixtureRequest) -> None:
    skip_absent(request)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The backends `breaking`, which fails at its `step`, `remote`, which may be lost, `lost`, which is, and `noops`,
    which supports nothing."""
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    for name in ("Breaking", "Remote", "Lost", "NoOps"):
        monkeypatch.setitem(registry.BUILT_IN, name.lower(), f"fakes:{name}")
        monkeypatch.setitem(device._TOKENS, name.lower(), name.lower())
    registry.refresh()
    support.forget()
    kinds = {name: type(registry.load(name)) for name in ("breaking", "remote")}
    monkeypatch.setattr(kinds["breaking"], "step", "")
    monkeypatch.setattr(kinds["breaking"], "error", RuntimeError("the device was lost"))
    monkeypatch.setattr(kinds["remote"], "lost", False)
    yield kinds
    registry.refresh()
    support.forget()


def decoder() -> Graph:
    """Attention of one token over the positions so far, which a counter of its own tells; noise is drawn for each."""
    graph = rlx.Graph("decoder")
    q, k, v = (graph.input(name, (HEADS, 1, WIDTH)) for name in "qkv")
    scale = graph.input("scale", ())
    keys, values = (graph.state(name, (HEADS, LENGTH, WIDTH)) for name in ("keys", "values"))
    count = graph.state("count", (), "i64")
    all_keys = rlx.update_slice(keys, k, count, axis=1)
    all_values = rlx.update_slice(values, v, count, axis=1)
    for state, following in ((keys, all_keys), (values, all_values), (count, count + 1)):
        graph.set_next(state, following)
    seen = rlx.iota(graph, shape=(LENGTH,), axis=0, dtype="i64") < count + 1
    scores = rlx.select(seen, rlx.reduce_sum(q * all_keys, axes=(2,)), -1e9)
    out = rlx.reduce_sum(rlx.softmax(scores, axis=1).reshape(HEADS, LENGTH, 1) * all_values, axes=(1,))
    graph.output(out * scale, name="out")
    graph.output(scale + 1, name="louder")
    graph.output(rlx.random_uniform(graph.random_state(), shape=(3,)), name="noise")
    return graph


def devices(*names: str, graph: Graph | None = None) -> rlx.GraphDevices:
    made = rlx.GraphDevices(graph or decoder(), rlx.DevicePolicy().only(*names))
    made.seed(7)
    if graph is None:
        made.bind_handle("scale", np.float32(1))
        made.set_feeds({"louder": "scale"})
    return made


def token(step: int) -> dict[str, Array]:
    random = np.random.default_rng(step)
    return {name: random.standard_normal((HEADS, 1, WIDTH), np.float32) for name in "qkv"}


def uninterrupted() -> list[list[Array]]:
    alone = devices("reference")
    return [alone.run("reference", token(step)) for step in range(STEPS)]


def assert_same(actual: list[Array], expected: list[Array]) -> None:
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", OTHERS)
def test_a_decoder_goes_on_where_it_was_whichever_device_runs(device: str) -> None:
    """Keys, values and the counter, the fed scale, and the random numbers."""
    expected = uninterrupted()
    shared = devices(device, "reference")
    order = [device, device, "reference", device, "reference", "reference", device, device]
    for step, name in enumerate(order):
        assert_same(shared.run(name, token(step)), expected[step])
    assert shared.read_handle("count") == STEPS and shared.read_handle("scale") == 1 + STEPS
    assert set(shared.handles()) == {"scale", "keys", "values", "count"}


@pytest.mark.parametrize("error", ["the device was lost", "out of memory"])
def test_a_chain_whose_first_device_fails_half_way_goes_on_with_the_state(error: str, fakes: Any) -> None:
    expected = uninterrupted()
    shared = devices("breaking", "cpu")
    for step in range(STEPS):
        failing = step in (3, 4, 6)
        fakes["breaking"].step, fakes["breaking"].error = "run" if failing else "", RuntimeError(error)
        ran, results = shared.run_chain(token(step), ["breaking", "cpu"])
        assert ran.kind == ("cpu" if failing else "breaking")
        assert_same(results, expected[step])


def test_a_run_that_fails_leaves_the_state_where_and_what_it_was(fakes: Any) -> None:
    expected = uninterrupted()
    shared = devices("breaking", "cpu")
    assert_same(shared.run("cpu", token(0)), expected[0])
    fakes["breaking"].step = "run"
    for _ in range(2):
        with pytest.raises(DeviceLost):
            shared.run("breaking", token(1))
        with pytest.raises(InputError):
            shared.run("breaking", {"q": np.zeros(3, "f4")})
    with pytest.raises(FallbackError):
        shared.run_chain(token(1), ["breaking"])
    assert shared.read_handle("count") == 1
    assert_same(shared.compile("cpu").run(token(1)), expected[1])


def test_a_state_that_is_lost_with_its_device_is_named_until_it_is_bound_again(fakes: Any) -> None:
    expected = uninterrupted()
    shared = devices("remote", "cpu")
    assert_same(shared.run("remote", token(0)), expected[0])
    saved = {name: shared.read_handle(name) for name in shared.handles()}
    fakes["remote"].lost = True
    for _ in range(2):
        with pytest.raises(StateLost, match=r"'keys'.*from remote.*the device was lost.*bind_handle") as caught:
            shared.run_chain(token(1), ["remote", "cpu"])
        assert set(caught.value.names) == set(saved) and caught.value.device == "remote"
        assert isinstance(caught.value, DeviceLost)
    with pytest.raises(StateLost):
        shared.read_handle("keys")
    for name, value in saved.items():
        with pytest.raises(StateLost, match=name):
            shared.compile("cpu").run(token(1))
        shared.bind_handle(name, value)
    assert_same(shared.run_chain(token(1), ["cpu"])[1], expected[1])


def test_a_state_that_is_elsewhere_outlives_a_lost_device(fakes: Any) -> None:
    """A run that fails on the second device has not taken the state away from the first."""
    expected = uninterrupted()
    shared = devices("remote", "cpu")
    assert_same(shared.run("remote", token(0)), expected[0])
    assert_same(shared.run("cpu", token(1)), expected[1])
    fakes["remote"].lost = True
    with pytest.raises(DeviceLost, match="lost"):
        shared.run("remote", token(2))
    assert_same(shared.run("cpu", token(2)), expected[2])


@pytest.mark.parametrize("strategy", ["auto", "benchmark"])
def test_a_choice_that_changes_takes_the_state_along_and_measuring_changes_nothing(strategy: Any) -> None:
    expected = uninterrupted()
    shared = devices("cpu", "reference")
    for step, first in enumerate(["cpu", "reference", "cpu", "reference"]):
        policy = rlx.DevicePolicy(strategy=strategy).only("cpu", "reference")
        shared.set_policy(policy if strategy == "benchmark" else policy.preferring(first))
        assert_same(shared.run_resolved(token(step)), expected[step])
        assert len(shared.benchmark(token(step), runs=3)) == 2


def test_clones_go_on_alone() -> None:
    expected = uninterrupted()
    shared = devices("cpu", "reference")
    assert_same(shared.run("cpu", token(0)), expected[0])
    whole = shared.clone()
    one = shared.compile("reference").clone()
    for step in (1, 2):
        assert_same(shared.run("reference", token(step)), expected[step])
    for step in (1, 2):
        assert_same(whole.run("cpu" if step == 1 else "reference", token(step)), expected[step])
        assert_same(one.run(token(step)), expected[step])
    assert shared.read_handle("count") == whole.read_handle("count") == one.read_handle("count") == 3


def test_programs_of_the_devices_share_it_too() -> None:
    """Their own methods read and change the one state, and a closed program leaves it behind."""
    expected = uninterrupted()
    shared = devices("cpu", "reference")
    cpu, reference = shared.compile("cpu"), shared.compile("reference")
    assert_same(cpu.run(token(0)), expected[0])
    assert reference.read_handle("count") == 1 and reference.has_handle("scale")
    pending = [cpu.run_pipelined(token(1)), cpu.run_pipelined(token(2))]
    assert_same(reference.run(token(3)), expected[3])
    for step, run in enumerate(pending, 1):
        assert_same(run.result(), expected[step])
    reference.close()
    assert_same(cpu.run(token(4)), expected[4])
    shared.invalidate_cache()
    assert_same(shared.run("reference", token(5)), expected[5])
    row = shared.compile("cpu").read_output_row("out", 0, token(6))
    np.testing.assert_allclose(row, expected[6][0][0], rtol=1e-5, atol=1e-5)
    assert shared.read_handle("count") == 6


def test_queues_of_several_devices_do_not_wait_for_each_other() -> None:
    shared = devices("cpu", "reference")
    programs = [shared.compile("cpu"), shared.compile("reference")]
    runs = [programs[step % 2].run_pipelined(token(step)) for step in range(STEPS)]
    for step, run in enumerate(runs):
        assert_same(run.result(60), uninterrupted()[step])


def test_handles_of_graphs_without_states_go_along() -> None:
    graph = rlx.Graph("sum")
    graph.output(graph.input("a", ("n",)) + graph.input("b", ("n",)), name="c")
    shared = devices("cpu", "reference", graph=graph)
    one = np.ones(3, "f4")
    for program in (shared.compile("cpu"), shared.compile("reference")):
        assert program.run([one, one])[0].tolist() == [2] * 3
    shared.bind_handle("b", one * 5)
    for name in ("cpu", "reference", "cpu"):
        assert shared.run(name, [one])[0].tolist() == [6] * 3
        assert shared.run_chain([one])[1][0].tolist() == [6] * 3
    shared.compile("reference").unbind_handle("b")
    with pytest.raises(InputError, match="2 inputs"):
        shared.run("cpu", [one])
    with pytest.raises(InputError, match="2 inputs"):
        shared.run_chain([one])


def test_active_extents_go_along_or_are_refused() -> None:
    graph = rlx.Graph("extent")
    graph.output(graph.input("a", ("n",)) + 1, name="b")
    shared = devices("cpu", "reference", graph=graph)
    shared.set_active_extent("n", 2)
    for name in ("cpu", "reference"):
        assert shared.run(name, [np.ones(4, "f4")])[0].tolist() == [2, 2, 0, 0]
    stateful = devices("cpu")
    with pytest.raises(CapabilityError):
        stateful.set_active_extent("n", 1)


def model_of(tmp_path: Path, *chain: str) -> rlx.Model:
    """The decoder as a model with a chain of devices."""
    save_graph(decoder(), tmp_path / "decoder.rlx")
    model = rlx.load(tmp_path / "decoder.rlx", device=chain)
    model.seed(7)
    model.compiled.bind_handle("scale", np.float32(1))
    model.compiled.set_feeds({"louder": "scale"})
    return model


@pytest.mark.parametrize("error", [RuntimeError("the device was lost"), MemoryError("no room"), OSError("the driver")])
def test_a_model_goes_on_with_the_next_device_of_its_chain(
    error: Exception, fakes: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the state as it was before the run that failed, with one warning, and for good."""
    expected = uninterrupted()
    model = model_of(tmp_path, "rocm", "breaking", "noops", "cpu")
    assert model.device == "breaking"
    caplog.clear()
    for step in range(STEPS):
        fakes["breaking"].step, fakes["breaking"].error = "run" if step == 3 else "", error
        results = model(**token(step)) if step % 2 else dict(zip(model.output_names, model.run(token(step))))
        assert_same(list(results.values()), expected[step])
        assert model.device == ("breaking" if step < 3 else "cpu")
    told = [record for record in caplog.records if record.name.startswith("rlx") and "in a run" in record.message]
    assert len(told) == 1 and told[0].levelname == "WARNING"
    assert told[0].message.startswith("decoder: breaking failed in a run, cpu goes on: ")
    assert str(error) in told[0].message
    tried = model.describe()["tried_before"]
    assert list(tried) == ["breaking", "noops"] and str(error) in tried["breaking"]


def test_a_chain_of_the_environment_goes_on_too_with_weights_set_meanwhile(
    fakes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = rlx.Graph("net")
    graph.output(graph.input("x", ("n",), "f32") * graph.param("w", (1,), "f32"), name="y")
    graph.data = {"w": np.ones(1, "f4")}
    save_graph(graph, tmp_path / "net.rlx")
    monkeypatch.setenv("RLX_DEVICE_CHAIN", "breaking,cpu")
    model = rlx.load(tmp_path / "net.rlx")
    assert model(x=np.ones(3, "f4"))["y"].tolist() == [1] * 3 and model.device == "breaking"
    model.compiled.set_param("w", np.full(1, 5, "f4"))
    fakes["breaking"].step = "run"
    assert model(np.ones(2, "f4"))["y"].tolist() == [5] * 2 and model.device == "cpu"


def test_errors_of_the_caller_leave_a_model_where_it_is(
    fakes: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = uninterrupted()
    model = model_of(tmp_path, "breaking", "cpu")
    program = model.compiled
    caplog.clear()
    wrong: list[dict[str, Any]] = [
        {"q": np.zeros(3, "f4")},
        {**token(0), "q": token(0)["q"].astype("f8")},
        {**token(0), "z": np.zeros(1, "f4")},
    ]
    for inputs in wrong:
        with pytest.raises(InputError):
            model(**inputs)
    fakes["breaking"].step, fakes["breaking"].error = "run", RunTimeout("[run] expected a run of 1 s, got a longer one")
    with pytest.raises(RunTimeout):
        model(**token(0))
    fakes["breaking"].step = ""
    assert model.compiled is program and not caplog.records
    assert_same(list(model(**token(0)).values()), expected[0])


def test_a_model_on_one_named_device_raises(fakes: Any, tmp_path: Path) -> None:
    save_graph(decoder(), tmp_path / "decoder.rlx")
    model = rlx.load(tmp_path / "decoder.rlx", device="breaking")
    fakes["breaking"].step = "run"
    with pytest.raises(DeviceLost):
        model(**token(0), scale=np.float32(1))
    assert model.device == "breaking"


def test_a_model_whose_devices_all_fail_tells_each_and_begins_again(fakes: Any, tmp_path: Path) -> None:
    expected = uninterrupted()
    model = model_of(tmp_path, "breaking", "lost")
    fakes["breaking"].step = "run"
    for _ in range(2):
        with pytest.raises(FallbackError) as caught:
            model(**token(0))
        assert [device for device, _ in caught.value.attempts] == ["breaking", "lost"]
    fakes["breaking"].step = ""
    assert_same(list(model(**token(0)).values()), expected[0])
    assert model.device == "breaking"


def test_a_model_names_the_state_that_its_lost_device_does_not_give(fakes: Any, tmp_path: Path) -> None:
    expected = uninterrupted()
    model = model_of(tmp_path, "remote", "cpu")
    assert_same(list(model(**token(0)).values()), expected[0])
    saved = {name: model.compiled.read_handle(name) for name in model.compiled.handles()}
    fakes["remote"].lost = True
    for _ in range(2):
        with pytest.raises(StateLost, match=r"'keys'.*from remote.*the device was lost"):
            model(**token(1))
    for name, value in saved.items():
        model.compiled.bind_handle(name, value)
    assert_same(list(model(**token(1)).values()), expected[1])


def test_a_pickled_model_has_its_state_and_the_rest_of_its_chain(fakes: Any, tmp_path: Path) -> None:
    expected = uninterrupted()
    model = model_of(tmp_path, "breaking", "cpu")
    assert_same(list(model(**token(0)).values()), expected[0])
    again = pickle.loads(pickle.dumps(model))
    assert_same(list(again(**token(1)).values()), expected[1])
    assert again.device == "breaking"
    fakes["breaking"].step = "run"
    assert_same(list(again(**token(2)).values()), expected[2])
    assert again.device == "cpu"
    assert_same(list(model(**token(1)).values()), expected[1])


def test_the_command_line_goes_on_too(
    fakes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = rlx.Graph("net")
    graph.output(graph.input("x", (4,), "f32") + 1, name="y")
    save_graph(graph, tmp_path / "net.rlx")
    monkeypatch.setenv("RLX_DEVICE_CHAIN", "breaking,cpu")
    fakes["breaking"].step = "run"
    run_model(tmp_path / "net.rlx", (), None, "auto", (), 0, "f32", (), 0, True)
    told = json.loads(capsys.readouterr().out)
    assert told["device"] == "cpu" and "the device was lost" in told["tried_before"]["breaking"]
    assert told["outputs"]["y"]["shape"] == [4]


def test_many_threads_leave_a_device_together(fakes: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = rlx.Graph("net")
    graph.output(graph.input("x", ("n",), "f32") + 1, name="y")
    save_graph(graph, tmp_path / "net.rlx")
    model = rlx.load(tmp_path / "net.rlx", device=["breaking", "cpu"])
    model(x=np.ones(1, "f4"))
    fakes["breaking"].step = "run"
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: model(x=np.full(n, n, "f4"))["y"], range(1, 33)))
    assert [r.tolist() for r in results] == [[n + 1] * n for n in range(1, 33)]
    assert len([record for record in caplog.records if "in a run" in record.message]) == 1


def test_a_chain_is_refused_that_names_nothing(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="at least one"):
        rlx.Session([])
    with pytest.raises(DeviceUnavailable, match="cpuu"):
        rlx.Session(["cpuu", "cpu"])
    assert repr(rlx.Session(["rocm", "cpu"])) == "<Session on rocm, cpu>"
    assert rlx.Session(["rocm", "cpu"]).compile(decoder()).device == "cpu"
