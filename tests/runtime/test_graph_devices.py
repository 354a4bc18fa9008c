"""One graph on many devices: who is admitted, chains that fall back wherever a device fails, weights held once,
choices that move with size, and explanations."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.backends.size_buckets import SizeBuckets
from rlx.device import calibration, observed, registry, support
from rlx.device.device import Device
from rlx.device.policy import DevicePolicy, at_once
from rlx.errors import DeviceUnavailable, FallbackError, InputError, OutOfMemory, UnsupportedOp
from rlx.ir.graph import Graph
from rlx.runtime.graph_devices import GraphDevices
from support import why_absent

FAKES = ("NoDriver", "NoOps", "NoCompile", "NoMemory", "Lost", "LostLater", "TooSmall", "Fake")
X = np.arange(8, dtype=np.float32).reshape(2, 4)
W = np.eye(4, dtype=np.float32) * 2


@pytest.fixture(autouse=True)
def fake_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Devices `nodriver` … `fake`, and a cache folder of the test's own."""
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    for name in FAKES:
        monkeypatch.setitem(registry.BUILT_IN, name.lower(), f"fakes:{name}")
    monkeypatch.setattr("rlx.device.device._TOKENS", {**_tokens(), **{n.lower(): n.lower() for n in FAKES}})
    for clear in (registry.refresh, calibration.forget, observed.reload, support.forget):
        clear()


def _tokens() -> dict[str, str]:
    from rlx.device import device

    return dict(device._TOKENS)


def net() -> Graph:
    graph = Graph("net")
    graph.output(rlx.relu(graph.input("x", ("n", 4), "f32") @ graph.param("w", (4, 4), "f32")), name="y")
    return graph


def devices(*names: str, **more: object) -> GraphDevices:
    devices = GraphDevices(net(), DevicePolicy(**more).only(*names))  # type: ignore[arg-type]
    devices.set_param("w", W)
    return devices


@pytest.mark.parametrize(
    ("broken", "pattern"),
    [
        ("nodriver", "driver does not answer"), ("noops", "not today"), ("nocompile", "gave up"),
        ("nomemory", "no memory for 12"), ("lost", "went away"), ("rocm", "install ROCm 6"),
    ],
)  # fmt: skip
def test_a_chain_falls_back_wherever_a_device_fails(broken: str, pattern: str) -> None:
    graph_devices = devices("cpu", broken)
    device, (y,) = graph_devices.run_chain([X], [broken, "cpu"])
    assert device == Device("cpu")
    np.testing.assert_array_equal(y, X * 2)
    with pytest.raises(FallbackError, match=pattern) as caught:
        graph_devices.run_chain([X], [broken])
    assert [name for name, _ in caught.value.attempts] == [broken]


def test_a_device_that_dies_half_way_is_left_and_comes_back_anew() -> None:
    graph_devices = devices("lostlater", "cpu")
    ran = [graph_devices.run_chain([X], ["lostlater", "cpu"])[0].kind for _ in range(7)]
    assert ran == ["lostlater"] * 4 + ["cpu"] + ["lostlater"] * 2


def test_inputs_that_do_not_fit_are_the_callers_error_not_the_devices() -> None:
    with pytest.raises(InputError):
        devices("cpu").run_chain([X.astype(np.float64)], ["fake", "cpu"])


def test_an_empty_chain_and_one_without_an_end_tell_all_attempts() -> None:
    graph_devices = devices("nodriver", "noops")
    with pytest.raises(FallbackError, match="none did: an empty chain"):
        graph_devices.run_chain([X], [])
    with pytest.raises(FallbackError) as caught:
        graph_devices.run_chain([X], ["nodriver", "noops"])
    assert len(caught.value.attempts) == 2


def test_weights_are_held_once_and_reach_every_device() -> None:
    graph_devices = devices("cpu", "reference")
    for device in ("cpu", "reference"):
        np.testing.assert_array_equal(graph_devices.run(device, [X])[0], X * 2)
    graph_devices.set_param("w", W * 2)
    for device in ("cpu", "reference"):
        np.testing.assert_array_equal(graph_devices.run(device, [X])[0], X * 4)
    with pytest.raises(InputError, match="expected names among"):
        graph_devices.set_params({"w": W, "v": W})
    with pytest.raises(InputError):
        graph_devices.set_params({"w": W[:2]})
    np.testing.assert_array_equal(graph_devices.run("cpu", [X])[0], X * 4)
    graph_devices.invalidate_cache()
    graph_devices.sync_params_to_all()
    np.testing.assert_array_equal(graph_devices.run("cpu", [X])[0], X * 4)


def test_a_hint_must_be_viable_wherever_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = "it runs on: cpu"
    with pytest.raises(UnsupportedOp, match=pattern):
        devices("cpu", "noops").resolve("noops")
    monkeypatch.setenv("RLX_DEVICE", "noops")
    monkeypatch.setenv("RLX_DEVICES", "cpu,noops")
    with pytest.raises(UnsupportedOp, match=pattern):
        GraphDevices.from_env(net()).resolve()
    monkeypatch.setenv("RLX_FORCE_DEVICE", "cpu")
    assert GraphDevices.from_env(net()).resolve() == Device("cpu")
    monkeypatch.delenv("RLX_DEVICE")
    monkeypatch.delenv("RLX_FORCE_DEVICE")
    monkeypatch.setenv("RLX_DEVICE_CHAIN", "nodriver,noops,cpu")
    assert GraphDevices.from_env(net()).resolve() == Device("cpu")


def test_nothing_viable_is_an_error_that_tells_of_every_device() -> None:
    with pytest.raises(UnsupportedOp, match=r"(?s)nodriver: .*driver does not answer.*noops: .*not today"):
        devices("nodriver", "noops").resolve()
    with pytest.raises(DeviceUnavailable, match="nodriver"):
        devices("nodriver").resolve("nodriver")


def test_a_benchmark_goes_on_past_a_device_that_fails_and_is_remembered() -> None:
    graph_devices = devices("lost", "reference", "fake")
    timings = graph_devices.benchmark([X], runs=3)
    assert [t.ran for t in timings] == [True, True, False]
    assert "went away" in timings[2].error
    assert timings[0].median_ns <= timings[1].median_ns
    assert timings[0].runs == 3
    key = graph_devices._chooser.key({"n": 2})
    assert observed.of(Device("fake")).measured(key) is not None
    observed.reload()
    assert observed.of(Device("fake")).measured(key) is not None, "it lies on disk"


def test_devices_that_all_fail_when_measured_are_an_error_that_tells_of_each() -> None:
    graph_devices = devices("lost", "nomemory", strategy="benchmark")
    with pytest.raises(UnsupportedOp, match=r"(?s)lost: failed when measured: .*away.*nomemory: .*no memory"):
        graph_devices.decide(inputs=[X], may_measure=True)


def remember(
    graph_devices: GraphDevices, device: str, ns: float, *, n: int = 2, turn: str = "t", spread: float = 0.01
) -> None:
    """As if the graph had been measured to take so long."""
    chooser, expected = graph_devices._chooser, Device.parse(device, [device])
    estimate, _ = chooser.estimate(expected, {"n": n})
    sample = observed.sample_of(chooser.program, [ns * (1 - spread), ns, ns * (1 + spread)], None, turn, 0.0)
    parts = estimate.parts() if estimate else {}
    observed.of(expected).record(chooser.key({"n": n}), replace(sample, parts=parts))


def test_what_was_observed_corrects_predictions_of_other_sizes() -> None:
    graph_devices = devices("fake", "null:1")
    before = {c.device: c for c in graph_devices.report([X]).candidates}[Device("fake")]
    assert before.estimate is not None
    remember(graph_devices, "fake", before.estimate.run_ns * 3)
    after = {c.device: c for c in graph_devices.report([np.ones((5, 4), np.float32)]).candidates}[Device("fake")]
    assert after.ratio == pytest.approx(3) and after.seen and after.sample is None


def test_the_processor_is_kept_without_calibration_though_others_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured, and no other device so much as looks at the graph."""
    monkeypatch.setattr(calibration, "measure", lambda *a, **k: pytest.fail("measured"))
    monkeypatch.setattr("rlx.device.choice.dispatch_report", lambda *a, **k: pytest.fail("looked"))
    devices = GraphDevices(net(), DevicePolicy().only("cpu", "reference", "xla"))
    devices.set_param("w", W)
    assert devices.compile_resolved(inputs=[X]).device == "cpu"


def test_a_choice_is_remembered_until_something_else_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE", "1")
    decisions: list[object] = []
    plain = GraphDevices.decide
    monkeypatch.setattr(GraphDevices, "decide", lambda self, *a, **k: decisions.append(a) or plain(self, *a, **k))

    def choose(n: int) -> str:
        devices = GraphDevices(net(), DevicePolicy().only("fake", "null:1").preferring("fake"))
        devices.set_param("w", W)
        return devices.compile_resolved(inputs=[np.ones((n, 4), np.float32)]).device

    assert {choose(2), choose(2), choose(2)} == {"null:1"} and len(decisions) == 1
    choose(3)
    assert len(decisions) == 2
    remember(devices("fake", "null:1"), "fake", 1e6)
    observed.reload()
    choose(2)
    assert len(decisions) == 3


def test_a_graph_that_the_processor_does_not_take_goes_to_another() -> None:
    graph = Graph("complex")
    graph.output(graph.input("x", (3,), "c64") * graph.input("y", (3,), "c64"), name="z")
    devices = GraphDevices(graph, DevicePolicy().only("cpu", "reference"))
    x = np.full(3, 1 + 2j, np.complex64)
    np.testing.assert_allclose(devices.run_resolved([x, x])[0], x * x)


def test_the_usual_device_is_left_for_a_clear_gain_only() -> None:
    devices = GraphDevices(net(), DevicePolicy().only("cpu", "null:1", "null:2"), expected_runs=MANY)
    explanation = devices.report([X])
    assert explanation.chosen == Device("cpu") and explanation.reason == "the usual device, and none is clearly quicker"
    for ns, other, picked in ((1e5, 9.95e4, "cpu"), (1e5, 7e4, "null:1")):
        remember(devices, "cpu", ns)
        remember(devices, "null:1", other)
        assert str(devices.report([X]).chosen) == picked
    assert "measured 1.43 times as fast as cpu, in turns" in devices.report([X]).reason
    remember(devices, "cpu", 1e5, turn="another")  # at another time: no better than a prediction
    assert devices.report([X]).chosen == Device("cpu")


def test_predictions_that_no_run_corrected_must_promise_more(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = GraphDevices(net(), DevicePolicy().only("cpu", "null:1"), expected_runs=MANY)
    base = {str(c.device): c for c in devices.report([X]).candidates}
    usual, card = base["cpu"], base["null:1"]
    for gain, picked in ((1.05, "cpu"), (1.3, "null:1")):
        # a card that is thought to be so many times as fast at least as the processor is at most
        factor = usual.span_ns(MANY)[0] / gain / card.span_ns(MANY)[1]
        monkeypatch.setattr(observed.Observations, "ratio", lambda self, p, parts=None, f=factor: (
            f if self.device.kind == "null" else 1.0))  # fmt: skip
        monkeypatch.setattr("rlx.device.choice.GAIN", 1.2 * (1 + usual.band) * (1 + card.band))
        assert str(devices.report([X]).chosen) == picked
    monkeypatch.setattr("rlx.device.choice.GAIN", 1e9)
    assert devices.report([X]).chosen == Device("cpu")
    monkeypatch.setattr(observed.Observations, "has", lambda self, program: True)
    assert devices.report([X]).chosen == Device("null", 1)


def test_other_names_of_the_processor_are_not_taken_by_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explanation says what is done at once, before anything is predicted."""
    monkeypatch.setattr("fakes.Fake.on_processor", lambda self, ordinal=0: True)
    monkeypatch.setattr("rlx.device.choice._clearly_quicker", lambda one, usual, runs: "by far")
    devices = GraphDevices(net(), DevicePolicy().only("cpu", "fake"))
    assert at_once(devices._policy) == Device("cpu") and devices.report([X]).chosen == Device("cpu")
    calibration.measure(Device("fake"))
    assert at_once(devices._policy) is None and devices.report([X]).chosen == Device("fake")


def test_a_device_of_which_nothing_is_known_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening an adapter takes longer than the first answer of the processor."""
    policy = DevicePolicy().only("cpu", "fake")
    assert at_once(policy) is None  # a prior may know of it
    monkeypatch.setattr("fakes.Fake.may_have_prior", False)
    with monkeypatch.context() as closed:
        closed.setattr("fakes.Fake.identity", lambda self, ordinal=0: pytest.fail("opened"))
        assert at_once(policy) == Device("cpu")
    devices("cpu", "fake").benchmark([X])
    assert at_once(policy) is None


def test_preferred_devices_are_the_usual_ones() -> None:
    devices = GraphDevices(net(), DevicePolicy().only("cpu", "reference").preferring("reference"))
    assert devices.fastest([X]) == Device("reference")


def test_a_device_that_compiles_sizes_is_charged_for_those_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fakes.Fake.compiles_sizes", True, raising=False)
    graph_devices = devices("fake", "null:1")
    candidates = {c.device.kind: c for c in graph_devices.report([X]).candidates}
    assert (candidates["fake"].compiles, candidates["null"].compiles) == (16.0, 1.0)
    for n in range(3, 23):
        graph_devices.report([np.ones((n, 4), np.float32)])
    assert graph_devices.report([X]).candidate(Device("fake")).compiles == 21.0


def test_a_device_on_which_sizes_share_programs_is_charged_for_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fakes.Fake.compiles_sizes", True, raising=False)
    monkeypatch.setattr("fakes.Fake.size_buckets", lambda self, graph, options: SizeBuckets(graph))
    made = devices("fake")
    assert made.report([X]).candidate(Device("fake")).compiles == 8.0
    for n in range(3, 300):
        report = made.report([np.ones((n, 4), np.float32)])
    # of 2 as it is, then 3, 4, 6, 8, 11, 16, 24, 32, 48, 64, 96, 128, 184, 256 and 368
    assert report.candidate(Device("fake")).compiles == 16.0
    assert "16 compiles are expected" in " ".join(str(made.explain([X])).split())


def test_naming_a_device_is_consent() -> None:
    devices = GraphDevices(net(), DevicePolicy())
    devices.set_param("w", W)
    np.testing.assert_array_equal(devices.run("reference", [X])[0], X * 2)
    assert devices.decide("reference").chosen == Device("reference")
    assert devices.run_chain([X], ["nodriver", "reference", "cpu"])[0] == Device("reference")
    denied = GraphDevices(net(), DevicePolicy().without("reference"))
    with pytest.raises(DeviceUnavailable, match="denied"):
        denied.run("reference", [X])


def test_a_device_that_the_policy_refuses_lacks_no_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVICES", "cpu")
    monkeypatch.setenv("RLX_DEVICE", "noops")
    with pytest.raises(DeviceUnavailable, match="not among the devices that the policy allows; it runs on: cpu"):
        GraphDevices.from_env(net()).resolve()
    with pytest.raises(DeviceUnavailable, match="denied by the policy"):
        GraphDevices(net(), DevicePolicy().only("cpu").without("cpu")).resolve()


def test_a_forced_device_that_is_not_here_leaves_others_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_FORCE_DEVICE", "rocm")
    monkeypatch.setenv("RLX_DEVICES", "cpu,noops")
    with pytest.raises(DeviceUnavailable, match=r"if it were not forced, it would run on: cpu(\n|$)"):
        GraphDevices.from_env(net()).resolve()


def test_a_chain_without_a_device_is_an_error_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVICE_CHAIN", "rocm,nodriver")
    for ask in (lambda: GraphDevices.from_env(net()).resolve(), lambda: GraphDevices.from_env(net()).run_resolved([X]),
                lambda: rlx.Session().compile(net())):  # fmt: skip
        with pytest.raises(FallbackError, match="driver does not answer"):
            ask()


def test_a_device_without_the_memory_is_out() -> None:
    graph_devices = devices("toosmall", "null:1")
    candidates = {c.device.kind: c for c in graph_devices.report([X]).candidates}
    assert "bytes, and 16 are free" in candidates["toosmall"].blocker
    assert graph_devices.fastest([X]) == Device("null", 1)


def test_what_no_memory_holds_is_out_on_every_device_in_it() -> None:
    reason = why_absent("xla")
    if reason:
        pytest.skip(reason)
    graph = Graph("square")
    a, b = graph.input("a", ("n", 1), "f32"), graph.input("b", (1, "n"), "f32")
    graph.output(rlx.reduce_sum(rlx.sort(a * b, axis=1), axes=(0, 1)), name="y")
    both = GraphDevices(graph, DevicePolicy().only("cpu", "xla"))
    n = 1 << 22  # 64 TiB
    inputs = [np.ones((n, 1), np.float32), np.ones((1, n), np.float32)]
    assert both.resolve(inputs=[inputs[0][:4], inputs[1][:, :4]]) == Device("cpu")
    with pytest.raises(UnsupportedOp, match=r"(?s)cpu: it needs \d+ bytes, and \d+ are free.*xla: it needs \d+ bytes"):
        both.resolve(inputs=inputs)


def test_preference_decides_only_where_predictions_cannot_tell() -> None:
    # two names of one profile: no prediction tells them apart
    both = DevicePolicy(strategy="cost_model").only("null:2", "fake")
    for first in ("null:2", "fake"):
        devices = GraphDevices(net(), both.preferring(first))
        assert str(devices.fastest([X])) == first
    far = DevicePolicy(strategy="cost_model").only("null:0", "null:2").preferring("null:2")
    assert GraphDevices(net(), far).fastest([X]) == Device("null", 0)


def wide(layers: int = 4, width: int = 512) -> Graph:
    graph = Graph("wide")
    x = graph.input("x", ("rows", width), "f32")
    for i in range(layers):
        x = rlx.gelu(x @ graph.param(f"w{i}", (width, width), "f32"))
    graph.output(x)
    return graph


@pytest.mark.parametrize("card", ["null:0", "null:1", "null:2"])
def test_the_pick_moves_with_size(card: str) -> None:
    """Small work stays on the processor, large work goes to the graphics card, a better one sooner: there is one
    crossing, upwards."""
    devices = GraphDevices(wide(2, 128), DevicePolicy(strategy="cost_model").only("null:3", card))
    picks = [str(devices._chooser.decide({"rows": rows}, MANY).chosen) == str(Device.parse(card)) for rows in ROWS]
    assert picks == sorted(picks)
    assert picks[-1] and sum(picks) == {"null:0": 4, "null:1": 3, "null:2": 2}[card]


MANY = float("inf")
ROWS = (1, 2, 4, 8, 16, 64, 256, 4096, 65536)


def test_compile_time_counts_by_the_number_of_runs() -> None:
    devices = GraphDevices(wide(), DevicePolicy(strategy="cost_model").only("null:0", "null:2"))
    candidate = devices.report().candidates[0]
    assert candidate.total_ns(1) > candidate.total_ns(1000) > candidate.total_ns(float("inf"))


def test_an_explanation_says_why_in_text_data_and_pictures() -> None:
    policy = DevicePolicy(strategy="cost_model").only("null:0", "null:1", "noops")
    explanation = GraphDevices(wide(), policy, expected_runs=MANY).explain()
    text = str(explanation)
    assert "wide runs on null: predicted the quickest" in text
    assert "What would change it: null:1 would have to be" in text
    assert "noops: " in text and "not today" in text
    data = json.loads(json.dumps(explanation.as_dict(), default=str))
    assert data["chosen"] == "null"
    first = data["devices"][0]
    parts = first["compute_ns"] + first["memory_ns"] + first["launch_ns"] + first["copy_ns"]
    assert first["predicted_ns"] == pytest.approx(parts, rel=1e-6)
    page = explanation.html()
    assert "</html>" in page and "http" not in page and "$" + "{" not in page
    inside = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert inside["chosen"] == "null" and inside["devices"][0]["kernels"] and inside["expected_runs"] is None
    assert {"made", "rlx", "system"} <= inside["machine"].keys()


def test_names_in_a_model_cannot_leave_the_data_of_its_page() -> None:
    graph = Graph("</script><script>alert(1)</script>")
    graph.output(rlx.relu(graph.input("<b>", (3,), "f32")), name="y")
    page = GraphDevices(graph, DevicePolicy().only("null:0", "null:1")).explain().html()
    assert page.count("<script") == 2 and page.count("</script>") == 2 and "<b>" not in page


def test_a_graph_with_one_device_is_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "measure", lambda *a, **k: pytest.fail("measured"))
    assert devices("cpu").resolve(inputs=[X]) == Device("cpu")


def test_an_io_profile_counts_the_scheduled_program() -> None:
    graph_devices = devices("null:0", "cpu")
    traffic = graph_devices.io_profile("null:0", [X])
    # the product and what follows it are one kernel, which reads x and w and writes y
    assert (traffic.kernel_launches, traffic.sync_points) == (1, 1)
    assert (traffic.host_input_bytes, traffic.host_output_bytes) == (X.nbytes, X.nbytes)
    assert traffic.device_traffic_bytes == 2 * X.nbytes + W.nbytes
    assert graph_devices.io_profile("null:0", [X], outputs=[]).host_output_bytes == 0
    with pytest.raises(InputError, match="expected outputs among"):
        graph_devices.io_profile("null:0", [X], outputs=["z"])


def test_warm_all_tells_what_failed() -> None:
    assert devices("nocompile", "reference").warm_all() == {
        Device("nocompile"): "[fake] the compiler gave up", Device("reference"): "",
    }  # fmt: skip


def test_a_failed_compile_leaves_the_rest_as_it_was() -> None:
    graph_devices = devices("reference", "nomemory")
    graph_devices.run("reference", [X])
    with pytest.raises(OutOfMemory):
        graph_devices.run("nomemory", [X])
    np.testing.assert_array_equal(graph_devices.run("reference", [X])[0], X * 2)


def test_many_threads_share_one_set_of_devices() -> None:
    graph_devices = devices("cpu", "reference")
    wrong: list[object] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(10):
            x = random.standard_normal((int(random.integers(1, 9)), 4)).astype(np.float32)
            y = graph_devices.run(("cpu", "reference")[seed % 2], [x])[0]
            if not np.allclose(y, np.maximum(x * 2, 0)):
                wrong.append(y)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(graph_devices._compiled) == 2


def test_auto_sessions_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = net()
    monkeypatch.setenv("RLX_DEVICE_CHAIN", "nodriver,nocompile,reference")
    compiled = rlx.Session().compile(graph)
    assert compiled.device == "reference"
    monkeypatch.setenv("RLX_DEVICE", "cpu")
    assert rlx.Session().compile(graph).device == "cpu"


def test_a_chain_tells_what_it_tried_before(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = net()
    graph.data["w"] = W
    monkeypatch.setenv("RLX_DEVICE_CHAIN", "nodriver,noops,reference,cpu")
    compiled = rlx.Session().compile(graph)
    assert compiled.device == "reference"
    assert list(compiled.attempts) == ["nodriver", "noops"]
    assert "driver does not answer" in compiled.attempts["nodriver"]
    assert compiled.describe()["tried_before"] == compiled.attempts
    devices = GraphDevices.from_env(graph)
    assert devices.run_chain([X])[0] == Device("reference")
    assert list(devices.compile("reference").attempts) == ["nodriver", "noops"]


def test_an_explanation_follows_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVICE_CHAIN", "nodriver,noops,reference,cpu")
    monkeypatch.setenv("RLX_DEVICES", "nodriver,noops,reference,cpu")  # no others are measured
    explanation = GraphDevices.from_env(net()).explain([X])
    assert explanation.decision.chosen == Device("reference")
    text = " ".join(str(explanation).split())
    assert "the first of the chain nodriver, noops, reference, cpu that takes the graph" in text
    assert "nodriver: " in explanation.decision.reason and "not today" in explanation.decision.reason
    assert GraphDevices.from_env(net()).fastest([X]) == Device("cpu")
