"""Wherever a name is taken, a wrong one is told what it may mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.runtime.buckets import BucketedCache

X = np.ones((2, 4), np.float32)
GRAPH = rlx.Graph("net")
INPUT = GRAPH.input("tokens", ("batch", 4))
GRAPH.output(INPUT @ GRAPH.param("weight", (4, 4), data=np.ones((4, 4), np.float32)), name="logits")


def compiled() -> rlx.CompiledGraph:
    return rlx.Session("reference").compile(GRAPH)


def unbound() -> None:
    program = compiled()
    program.bind_handle("tokens", X)
    program.unbind_handle("token")


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "op": (lambda: rlx.gelo, "gelu"),
    "op of a graph": (lambda: GRAPH.build("softmx", INPUT), "softmax"),
    "argument": (lambda: rlx.softmax(INPUT, axs=1), "axis"),
    "device": (lambda: rlx.Session("vulcan"), "vulkan"),
    "device of a policy": (lambda: rlx.DevicePolicy().without("referense"), "reference"),
    "instruction set": (lambda: rlx.Session("cpu", isa="avx22").compile(GRAPH), "avx2"),
    "pass": (lambda: rlx.Session("cpu", disable=["cononical"]), "canonical"),
    "choice": (lambda: rlx.Session("cpu", compile="befor"), "before"),  # type: ignore[arg-type]
    "dtype": (lambda: INPUT.astype("float33"), "float32"),
    "dtype of an input": (lambda: GRAPH.input("y", (2,), "f23"), "f32"),
    "input": (lambda: compiled().run({"token": X}), "tokens"),
    "output": (lambda: compiled().run([X], ["logit"]), "logits"),
    "selected output": (lambda: compiled().select(["logit"]), "logits"),
    "weight": (lambda: compiled().set_param("weigth", X), "weight"),
    "weight on all devices": (lambda: rlx.GraphDevices(GRAPH).set_param("weigth", X), "weight"),
    "weight of buckets": (
        lambda: BucketedCache(GRAPH, rlx.Session("reference"), {"batch": [2]}).set_params({"weigth": X}),
        "weight",
    ),
    "dim": (lambda: compiled().set_active_extent("bach", 1), "batch"),
    "handle": (lambda: compiled().bind_handle("token", X), "tokens"),
    "handle to unbind": (unbound, "tokens"),
    "output that feeds": (lambda: compiled().set_feeds({"logit": "tokens"}), "logits"),
    "input that is fed": (lambda: compiled().set_feeds({"logits": "token"}), "tokens"),
    "option of a session": (lambda: rlx.Session("cpu", thread=2), "threads"),  # type: ignore[call-arg]
    "option of jit": (lambda: rlx.jit(lambda x: x, devise="cpu"), "device"),  # type: ignore[call-arg]
    "option of load": (lambda: rlx.load(b"", devise="cpu"), "device"),
    "static argument": (lambda: rlx.jit(lambda x, flag: x, static="flg"), "flag"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_name_is_told_what_it_may_mean(name: str) -> None:
    ask, meant = WRONG[name]
    with pytest.raises((rlx.RlxError, AttributeError), match=rf"did you mean '{meant}'"):
        ask()
