"""Every public function and method, with one argument after the other of a wrong kind: what comes is a value, or an
error of rlx with a code; no error of Python's from inside."""

from __future__ import annotations

import inspect
import re
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import rlx
from models.decoder_reference import CONFIGS, weights, write_folder
from rlx.models.conversation import Conversation
from rlx.runtime.experts import Experts

WRONG: tuple[Any, ...] = (
    None, 3, -1, 1.5, float("nan"), float("inf"), True, "x", "", b"x", (), [1, 2], ["x"], [None], {}, {"x": 3},
    {3: "x"}, object(), print, np.ones(3), np.int64(1), np.array("x"), rlx.Device("warp"), rlx.Graph("empty"), rlx.f32,
    iter([3]), 10**30,
)  # fmt: skip
X = np.ones((2, 4), np.float32)


def graph() -> rlx.Graph:
    """Inputs, weights, a state, several outputs, one of which may feed an input."""
    made = rlx.Graph("net")
    x, w, total = (
        made.input("x", ("n", 4)),
        made.param("w", (4, 4), data=np.eye(4, dtype="f4")),
        made.state("total", (4,)),
    )
    made.set_next(total, total + rlx.sum(x, 0))
    made.output(x @ w, name="y")
    made.output(rlx.softmax(x, -1), name="z")
    return made


def program() -> rlx.CompiledGraph:
    """Of the graph, with a handle."""
    compiled = rlx.Session("cpu").compile(graph())
    compiled.bind_handle("x", X)
    return compiled


def stateless() -> rlx.Graph:
    made = rlx.Graph("plain")
    made.output(rlx.relu(made.input("x", ("n", 4))), name="y")
    return made


@cache
def file() -> bytes:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    proto = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", inputs, outputs))
    return bytes(proto.SerializeToString())


@cache
def decoder() -> rlx.Model:
    folder = Path(tempfile.mkdtemp())
    return rlx.load(write_folder(folder, CONFIGS["llama"], weights(CONFIGS["llama"])), device="cpu")


def mixture() -> Experts:
    made = rlx.Graph("mixture")
    x = made.input("x", ("tokens", 4))
    params = [
        made.param(n, s, data=np.ones(s, "f4")) for n, s in (("g", (2, 4, 8)), ("u", (2, 4, 8)), ("d", (2, 8, 4)))
    ]
    shares, chosen = rlx.route(x @ made.param("r", (4, 2), data=np.ones((4, 2), "f4")), 1)
    made.output(rlx.mixture(x, shares, chosen, *params), name="y")
    return rlx.Session("cpu").compile(made).experts


def on_device() -> Any:
    return rlx.Session("cpu").compile(stateless()).run({"x": X}, "device")[0]


def lambda_of_two(x: Any, y: Any = 1.0) -> Any:
    return x * 2 + y


OWNERS: dict[str, Callable[[], Any]] = {
    "Model": lambda: rlx.load(file(), device="cpu"),
    "Decoder": decoder,
    "Conversation": lambda: Conversation(decoder().decoder),
    "CompiledGraph": program,
    "Experts": mixture,
    "DeviceArray": on_device,
    "Session": lambda: rlx.Session("cpu"),
    "GraphDevices": lambda: rlx.GraphDevices(stateless(), rlx.DevicePolicy().only("cpu")),
    "BucketedCache": lambda: rlx.BucketedCache(stateless(), rlx.Session("cpu"), {"n": [2, 4]}),
    "Graph": graph,
    "Value": lambda: graph().inputs[0],
    "TensorType": lambda: rlx.TensorType.of(("n", 4), "f32"),
    "Device": lambda: rlx.Device("cpu"),
    "DevicePolicy": rlx.DevicePolicy,
    "Options": rlx.Options,
    "Dispatch": rlx.Dispatch,
    "Jit": lambda: rlx.jit(lambda_of_two, device="cpu"),
    "CancelToken": rlx.CancelToken,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(rlx, name)
    for name in (
        "available_devices", "cond", "dispatch_report", "fastest_device", "first_unsupported_op", "jit", "legalize",
        "load", "load_compiled", "scan", "supports_graph", "while_loop", "why_unavailable", "Session", "GraphDevices",
        "BucketedCache", "Graph",
    )
}  # fmt: skip
RIGHT: dict[str, Callable[[], Any]] = {
    "graph": stateless,
    "device": lambda: "cpu",
    "inputs": lambda: {"x": X},
    "GraphDevices.inputs": lambda: {"x": X},
    "params": dict,
    "feeds": lambda: {"y": "x"},
    "ladders": lambda: {"n": [2, 4]},
    "session": lambda: rlx.Session("cpu"),
    "name": lambda: "x",
    "array": lambda: X,
    "dim": lambda: "n",
    "extent": lambda: 1,
    "outputs": lambda: ["y"],
    "CompiledGraph.run_slots.outputs": lambda: [np.empty((2, 4), "f4"), np.empty((2, 4), "f4")],
    "CompiledGraph.run_slots.inputs": lambda: [X],
    "CompiledGraph.run_to.wanted": lambda: {"y": "host"},
    "CompiledGraph.set_param.name": lambda: "w",
    "CompiledGraph.set_param.array": lambda: np.eye(4, dtype="f4"),
    "CompiledGraph.read_output_row.name": lambda: "y",
    "row": lambda: 0,
    "path": lambda: "file.rlx",
    "load.source": file,
    "seed": lambda: 3,
    "prompt": lambda: [1, 2, 3],
    "text": lambda: "cpu",
    "Conversation.say.text": lambda: "hello",
    "options": rlx.Options,
    "policy": rlx.DevicePolicy,
    "compiled": program,
    "strategy": lambda: "auto",
    "op": lambda: "add",
    "predicate": lambda: True,
    "if_true": lambda: lambda: 1,
    "if_false": lambda: lambda: 2,
    "step": lambda: lambda carried, element: (carried, element),
    "condition": lambda: lambda carried: carried < 3,
    "body": lambda: lambda carried: carried + 1,
    "carried": lambda: 0,
    "function": lambda: lambda_of_two,
    "runs": lambda: 3,
    "total": lambda: 1,
    "budget": lambda: 1,
    "masks": lambda: np.array([True, False]),
    "index": lambda: (0,),
    "shape": lambda: ("n", 4),
    "dtype": lambda: "f32",
    "value": lambda: graph().inputs[0],
    "state": lambda: graph().inputs[0],
    "axis1": lambda: 0,
    "axis2": lambda: 1,
    "other": graph,
    "TensorType.flows_into.other": lambda: rlx.TensorType.of(("n", 4), "f32"),
}
INTERNAL: dict[str, set[str]] = {
    "Graph": {
        "adopt",
        "number",
        "operand",
        "equal",
        "broadcast",
        "like",
        "rename",
        "drop_leaves",
        "bind",
        "needed",
        "prune",
        "uses",
        "use_count",
    },
    "Model": {"starting"},
    "Decoder": {"starting"},
    "Experts": {"see"},
    "TensorType": {"with_shape", "with_dtype"},
    "DeviceArray": {"read"},
}
"""What rlx itself calls, for each node or for each run, and no user."""


def public(owner: str) -> list[str]:
    kind = type(OWNERS[owner]())
    names = [
        n for n in dir(kind) if not n.startswith("_") and not isinstance(inspect.getattr_static(kind, n), property)
    ]
    return [n for n in names if callable(getattr(kind, n)) and n not in INTERNAL.get(owner, ())]


CALLS = [*FUNCTIONS, *(f"{owner}.{name}" for owner in OWNERS for name in public(owner))]


def called(name: str) -> Callable[..., Any]:
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    owner, _, method = name.partition(".")
    return getattr(OWNERS[owner](), method)


def right(name: str, parameter: inspect.Parameter) -> Any:
    for key in (f"{name}.{parameter.name}", parameter.name):
        if key in RIGHT:
            return RIGHT[key]()
    raise AssertionError(f"{name} has a parameter {parameter.name!r}: say in RIGHT what is right for it")


def finished(result: Any) -> None:
    if isinstance(result, Iterator):
        list(islice(result, 3))
    if hasattr(result, "result"):
        result.result()


def attempts(name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls in which one argument is wrong, by position or by name, and the others are right."""
    function = called(name)
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        for wrong in WRONG:
            positional: list[Any] = []
            keywords: dict[str, Any] = {}
            for each in parameters:
                if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
                    continue
                if each is parameter or each.default is each.empty:
                    value = wrong if each is parameter else right(name, each)
                    if each.kind is each.POSITIONAL_ONLY:
                        positional.append(value)
                    else:
                        keywords[each.name] = value
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional = [*positional, *keywords.values(), wrong]
                keywords = {}
            elif parameter.kind is parameter.VAR_KEYWORD:
                keywords["keyword"] = wrong
            yield f"{parameter.name}={wrong!r}", partial(function, *positional, **keywords)


def is_own(error: Exception) -> bool:
    """Whether it is of the function that is compiled, or of a call that has no such argument."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    signature = isinstance(error, TypeError) and re.search(r"\(\) (missing|got an unexpected|takes)", str(error))
    return place.filename == __file__ or bool(signature)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_wrong_is_told_by_an_error_of_rlx(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = []
    for words, call in attempts(name):
        try:
            finished(call())
        except rlx.RlxError as error:
            assert str(error) and error.code != "RLX000"
        except OSError:
            pass
        except Exception as error:
            if is_own(error):
                continue
            where = traceback.extract_tb(error.__traceback__)[-1]
            told.append(f"{words}: {type(error).__name__}: {str(error)[:100]} at {where.filename[-30:]}:{where.lineno}")
    assert not told, "\n".join(told)
