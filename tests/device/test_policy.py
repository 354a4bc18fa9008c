"""Policies: what they admit, and what the environment says; nothing that is malformed passes in silence."""

from __future__ import annotations

import pytest

from rlx.device.device import Device
from rlx.device.policy import DevicePolicy
from rlx.errors import FlagError

CPU, CUDA, CUDA_1, NULL = Device("cpu"), Device("cuda"), Device("cuda", 1), Device("null")


def test_a_policy_admits_what_it_allows_and_does_not_deny() -> None:
    policy = DevicePolicy().only("cpu", "cuda").without("cuda:1")
    assert policy.why_refused(CPU) == ""
    assert policy.why_refused(CUDA) == ""
    assert policy.why_refused(CUDA_1) == "denied by the policy"
    assert "not among" in policy.why_refused(Device("vulkan"))


def test_what_only_helps_is_chosen_only_by_name() -> None:
    assert "never chosen automatically" in DevicePolicy().why_refused(Device("reference"))
    assert DevicePolicy().only("reference").why_refused(Device("reference")) == ""
    assert DevicePolicy(chain=(NULL,)).why_refused(NULL) == ""
    assert DevicePolicy(force=CUDA).why_refused(CPU) == "cuda is forced"


def test_preferred_devices_come_first_among_candidates() -> None:
    policy = DevicePolicy().only("cpu", "null", "null:1").preferring("null:1")
    order = [d for d in policy.candidates() if d.kind in ("cpu", "null")]
    assert order[0] == Device("null", 1)


@pytest.mark.parametrize("prefix", ["RLX", "MYAPP"])
def test_the_environment_says_it_under_any_prefix(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    for name, value in {
        "DEVICES": "cpu, vk", "DENY_DEVICES": "opengl", "PREFER_DEVICES": "cpu", "DEVICE": "vulkan",
        "DEVICE_CHAIN": "cuda;cpu", "BENCHMARK_PICK": "7",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"{prefix}_{name}", value)
    policy = DevicePolicy.from_env(prefix)
    assert policy.allow == (CPU, Device("vulkan"))
    assert policy.deny == (Device("opengl"),)
    assert policy.prefer == (CPU,)
    assert policy.hint == Device("vulkan")
    assert policy.chain == (CUDA, CPU)
    assert (policy.strategy, policy.runs) == ("benchmark", 7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RLX_DEVICES", "cpu,cpuu"), ("RLX_DENY_DEVICES", ","), ("RLX_DEVICE", "cpu,cuda"), ("RLX_DEVICE", "cuda:"),
        ("RLX_BENCHMARK_PICK", "some"), ("RLX_BENCHMARK_PICK", "-1"), ("RLX_FORCE_DEVICE", "none"),
        ("RLX_DEVICE_CHAIN", "cpu>cuda"),
    ],
)  # fmt: skip
def test_a_malformed_value_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(FlagError, match=name):
        DevicePolicy.from_env()


def test_strategies() -> None:
    assert DevicePolicy().with_strategy("benchmark", 0).runs == 1
    assert DevicePolicy.from_env().strategy == "auto"
