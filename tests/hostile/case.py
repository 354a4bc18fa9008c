"""What a hostile case is: a model, arrays for a run of it, and what must come of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
F, I64, I32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
Shape = Sequence[int | str | None]
Nodes = Sequence[onnx.NodeProto]

FAR = 1 << 40
LEAST = -(1 << 63)
MOST = (1 << 63) - 1


@dataclass(frozen=True)
class Refused:
    """An error of rlx's whose message has these words (a regular expression)."""

    words: str = ""


@dataclass(frozen=True)
class Gives:
    """A run that ends with these arrays."""

    arrays: tuple[Array, ...]


Want = Refused | Gives
RIGHT_OR_REFUSED = None
"""For damage that may hit what does not matter: whatever comes of it, it is no crash, no hang, no other error."""


@dataclass(frozen=True)
class Case:
    """One hostile model. `build` gives the bytes of the file; `options` go to `rlx.load`, `timeout` to the run."""

    name: str
    build: Callable[[], bytes]
    inputs: tuple[Array, ...] = ()
    want: Want | None = field(default_factory=Refused)
    options: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None


CASES: dict[str, Case] = {}


def case(
    name: str,
    build: Callable[[], bytes],
    inputs: Sequence[Any] = (),
    expected: Want | None = Refused(),  # it is frozen
    timeout: float | None = None,
    **options: Any,
) -> None:
    """Puts a case into the table."""
    if name in CASES:
        raise ValueError(f"two cases are called {name!r}")
    CASES[name] = Case(name, build, tuple(np.asarray(a) for a in inputs), expected, options, timeout)


def gives(*arrays: Any) -> Gives:
    return Gives(tuple(np.asarray(a) for a in arrays))


def graph(
    nodes: Nodes,
    inputs: Mapping[str, tuple[int, Shape]],
    outputs: Mapping[str, int],
    fixed: Mapping[str, Any] | None = None,
    opset: int = 18,
    **options: Any,
) -> bytes:
    """The bytes of a model of these nodes."""
    proto = helper.make_graph(
        list(nodes),
        "hostile",
        [helper.make_tensor_value_info(name, code, shape) for name, (code, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, code, None) for name, code in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (fixed or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("local", 1)]
    return helper.make_model(proto, opset_imports=opsets, ir_version=10, **options).SerializeToString()


def code_of(array: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def sub(nodes: Nodes, inputs: Mapping[str, int], outputs: Mapping[str, int], name: str = "body") -> onnx.GraphProto:
    """A sub-graph; shapes of its inputs are left open but for scalars."""
    return helper.make_graph(
        list(nodes),
        name,
        [helper.make_tensor_value_info(n, code, None) for n, code in inputs.items()],
        [helper.make_tensor_value_info(n, code, None) for n, code in outputs.items()],
    )


def one(
    name: str,
    op: str,
    *arrays: Any,
    want: Want | None = Refused(),
    run: Sequence[int] = (),
    computed: Sequence[int] = (),
    outputs: int = 1,
    opset: int = 18,
    domain: str = "",
    **attributes: Any,
) -> None:
    """A case of one node. Operands are part of the model; those at the positions in `run` come with the run, those in
    `computed` too, and a node that import does not look through stands between. None leaves one out."""
    operands = {i: np.asarray(a) for i, a in enumerate(arrays) if a is not None}
    brought = {i: a for i, a in operands.items() if i in run or i in computed}

    def build() -> bytes:
        nodes = []
        names = [f"x{i}" if i in operands else "" for i in range(len(arrays))]
        for i in computed:
            nodes.append(helper.make_node("Concat", [f"x{i}", f"x{i}"], [f"twice{i}"], axis=0))
            nodes.append(helper.make_node("Split", [f"twice{i}"], [f"first{i}", f"second{i}"], axis=0, num_outputs=2))
            nodes.append(helper.make_node("Max", [f"first{i}", f"second{i}"], [f"made{i}"]))
            names[i] = f"made{i}"
        nodes.append(
            helper.make_node(op, names, [f"y{i}" for i in range(outputs)], "hostile", domain=domain, **attributes)
        )
        fixed = {f"x{i}": a for i, a in operands.items() if i not in brought}
        inputs = {f"x{i}": (code_of(a), a.shape) for i, a in brought.items()}
        return graph(nodes, inputs, {"y0": 0}, fixed, opset)

    case(name, build, [a for _, a in sorted(brought.items())], want)
