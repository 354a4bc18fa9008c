"""Names that are none are errors or warnings with the nearest one: of passes, ops, policies, devices, variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx import flags
from rlx.backends.base import Options
from rlx.backends.claims import Dispatch
from rlx.device import switches
from rlx.device.policy import DevicePolicy
from rlx.errors import DeviceUnavailable, FlagError, InputError, OptionError
from rlx.ir.graph import Graph
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise
from rlx.runtime.graph_devices import GraphDevices

SCRIPT = """
import logging, warnings
import numpy as np, rlx
heard = []
class Handler(logging.Handler):
    def emit(self, record):
        heard.append(record.getMessage())
logging.getLogger("rlx.flags").addHandler(Handler())
graph = rlx.Graph()
graph.output(graph.input("x", (2,)) + 1.0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        rlx.Session("cpu").compile(graph).run([np.ones(2, "f4")])
print(len(caught), *(w.message for w in caught))
print(*heard)
"""


def graph() -> Graph:
    net = Graph("net")
    net.output(rlx.softmax(net.input("x", ("n", 8)) * 2.0, axis=-1), name="y")
    return net


@pytest.mark.parametrize(
    ("name", "near"),
    [("simplifi", "simplify"), ("pak", "pack"), ("winogard", "winograd"), ("fuse/raw", "fuse/row"),
     ("simplify/double-negatoin", "simplify/double-negation"), ("no_such_pass", "")],
)  # fmt: skip
def test_passes_that_there_are_not(name: str, near: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=f"got '{name}'" + (f"; did you mean '{near}'" if near else r"(\n|$)")):
        rlx.Session("cpu", disable=[name])
    with pytest.raises(OptionError, match=name):
        GraphDevices(graph(), DevicePolicy(), Options(disable=frozenset({name})))
    monkeypatch.setenv("RLX_DISABLE", f"cse,{name}")
    with pytest.raises(FlagError, match=f"RLX_DISABLE: .*'{name}'"):
        rlx.Session("cpu")


def test_whatever_happens_can_be_switched_off_by_the_name_that_it_is_told_by() -> None:
    optimised, report = optimise(graph())
    for name in (*report.rewrites, *report.pass_ns, "fuse/epilogue", "fuse/row", "memory-reuse", "split-kv/chunks"):
        switches.check([name])
    to_kernels(optimised)
    rlx.Session("cpu", disable="pack")  # a string is one name
    switches.check(["mlx-packed"])  # of one backend


def test_dispatch_of_what_there_is_not() -> None:
    with pytest.raises(OptionError, match=r"expected one of prefer-native, .* got 'force-natve'; did you mean"):
        Dispatch("force-natve")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="'atention'; did you mean 'attention'"):
        Dispatch(overrides=(("atention", "force-native"),))
    with pytest.raises(OptionError, match="for attention, got 'nonsense'"):
        Dispatch(overrides=(("attention", "nonsense"),))  # type: ignore[arg-type]
    assert Dispatch(overrides=(("attention", "force-common"),)).of("attention") == "force-common"


@pytest.mark.parametrize(
    ("name", "near"),
    [("vulcan", "vulkan"), ("gpu0", "gpu"), ("cdua:1", "cuda"), ("refrence", "reference"), ("qpu", "tpu")],
)
def test_devices_that_there_are_not(name: str, near: str) -> None:
    with pytest.raises(DeviceUnavailable, match=f"got '{name}'; did you mean '{near}'\\? available here: .*cpu"):
        rlx.Session(name)
    with pytest.raises(DeviceUnavailable, match=r"among auto, tpu, .* got 'warp'; available here"):
        rlx.Session("warp")


def test_names_of_inputs_outputs_and_weights() -> None:
    net = Graph("net")
    net.output(net.input("bytes", (2,)) * net.param("weight", (2,)), name="label")
    net.data = {"weight": np.ones(2, np.float32)}
    compiled = rlx.Session("cpu").compile(net)
    x = np.ones(2, np.float32)
    with pytest.raises(InputError, match="missing 'bytes' and unknown 'byte'; did you mean 'bytes'"):
        compiled.run({"byte": x})
    with pytest.raises(InputError, match="did you mean 'label'"):
        compiled.run([x], outputs=["labl"])
    with pytest.raises(InputError, match="did you mean 'weight'"):
        compiled.set_param("wieght", x)
    with pytest.raises(InputError, match="did you mean 'weight'"):
        GraphDevices(net, DevicePolicy()).set_param("wieght", x)


@pytest.mark.parametrize("flag", ["RLX_DEVICE", "RLX_FORCE_DEVICE"])
def test_auto_may_be_said(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flag, "auto")
    assert DevicePolicy.from_env() == DevicePolicy()
    monkeypatch.setenv(flag, "cpu")
    assert DevicePolicy.from_env() != DevicePolicy()


def test_variables_that_nothing_reads_are_told_of_once(tmp_path: Path) -> None:
    env = {**os.environ, "RLX_CACHE_DIR": str(tmp_path), "RLX_DEVICS": "cpu", "RLX_NUMTHREADS": "1"}
    src = str(Path(rlx.__file__).parent.parent)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**env, "PYTHONPATH": src}, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    warned, logged = ran.stdout.splitlines()
    assert warned.startswith("2 ") and logged == warned.removeprefix("2 ")
    assert "RLX_DEVICS; did you mean 'RLX_DEVICES'?" in logged
    assert "RLX_NUMTHREADS; did you mean 'RLX_NUM_THREADS'?" in logged
    assert not ran.stderr


def test_no_variable_of_ours_is_unknown(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    for name in (*flags.FLAGS, *flags.OTHERS):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(flags, "_looked", False)
    flags.debug()
    assert flags._looked
    assert not recwarn.list
