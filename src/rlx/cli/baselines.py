"""Other runtimes, and rlx itself, behind one interface: from a case to a function that runs it once (`Ready`).

A runtime is loaded in the process that will time it, with the number of threads that the case requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec

from rlx.errors import MissingExtra, UnsupportedOp, did_you_mean
from rlx.ir.literal import Array
from rlx.runtime.session import Precision

Call = Callable[[], list[Array]]


@dataclass(frozen=True)
class Ready:
    """A runtime that has loaded a model: a function that runs it once, and what it is, for people."""

    call: Call
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """What to time: a model, inputs by name, threads.

    model        what rlx loads
    precision    what rlx computes products in; other runtimes compute in f32
    calibration  inputs of typical runs, for products of bytes
    onnx         the same model as an ONNX file, for the runtimes that read those ("" if there is none)
    transformer  the folder that transformers loads the same model from ("" if there is none)
    outputs      names of the outputs to compute, in order; the rest is left out where a peer can leave it out
    """

    model: str
    inputs: Mapping[str, Array]
    threads: int
    device: str = "auto"
    precision: Precision = "f32"
    calibration: Sequence[Mapping[str, Array]] | None = None
    onnx: str = ""
    transformer: str = ""
    outputs: tuple[str, ...] = field(default=())


def limit_threads(threads: int) -> None:
    """Tells libraries that are loaded after this how many threads to use."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(variable, None)


def _rlx(case: Case) -> Ready:
    import rlx
    from rlx.backends.cpu import isa

    model = rlx.load(
        case.model,
        device=case.device,
        threads=case.threads,
        compile="before",
        precision=case.precision,
        calibration=case.calibration,
    )
    inputs = dict(case.inputs)
    model.run(inputs, outputs=case.outputs or None)
    compiled = model.compiled
    about = {"device": model.device, "compile_ms": f"{compiled.executable.compile_ns / 1e6:.0f}"}
    if model.device == "cpu":
        about["isa"] = isa.detect().name
    return Ready(lambda: compiled.run(inputs, outputs=case.outputs or None), about)


def _onnxruntime(case: Case) -> Ready:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = case.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(_onnx(case), options, providers=["CPUExecutionProvider"])
    inputs, outputs = dict(case.inputs), list(case.outputs) or None
    return Ready(lambda: list(session.run(outputs, inputs)), {"device": "CPUExecutionProvider"})


def _openvino(case: Case) -> Ready:
    import openvino

    core = openvino.Core()
    config = {
        "INFERENCE_NUM_THREADS": case.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = core.compile_model(_onnx(case), "CPU", config)
    names = {name for port in compiled.inputs for name in port.get_names()}
    inputs = {name: array for name, array in case.inputs.items() if name in names}
    request = compiled.create_infer_request()

    def run() -> list[Array]:
        results = request.infer(inputs, share_inputs=True)
        return [results[port] for port in compiled.outputs]

    return Ready(run, {"device": "CPU"})


def _torch(case: Case, compile: bool = False) -> Ready:
    import torch

    torch.set_num_threads(case.threads)
    if not case.transformer:
        return _torch_of_onnx(case, compile)
    from transformers import AutoModel, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    module = AutoModel.from_pretrained(case.transformer).eval()
    inputs = {name: torch.from_numpy(array) for name, array in case.inputs.items()}
    call = torch.compile(module) if compile else module

    def run() -> list[Array]:
        with torch.inference_mode():
            return [call(**inputs).last_hidden_state.numpy()]

    return Ready(run, {"device": "cpu"})


def _torch_of_onnx(case: Case, compile: bool) -> Ready:
    """An ONNX file as a module of torch, by the package onnx2torch, which knows some of ONNX's ops."""
    import logging
    import warnings

    import onnx
    import torch

    path = _onnx(case)
    warnings.filterwarnings("ignore", module="onnx2torch")
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # what it tells of graphs that it breaks is pages
    if find_spec("onnx2torch") is None:
        raise UnsupportedOp("torch reads no ONNX files; the package onnx2torch converts some")
    from onnx2torch import convert

    model = onnx.load(path)
    try:
        module = convert(model).eval()
    except (NotImplementedError, KeyError) as error:  # ops, and places of weights, that it does not know
        raise UnsupportedOp(f"onnx2torch does not convert it: {error}") from error
    call = torch.compile(module) if compile else module
    inputs = [torch.from_numpy(case.inputs[i.name]) for i in model.graph.input if i.name in case.inputs]

    def run() -> list[Array]:
        with torch.inference_mode():
            results = call(*inputs)
        return [result.numpy() for result in (results if isinstance(results, (tuple, list)) else [results])]

    return Ready(run, {"device": "cpu"})


def _torch_compile(case: Case) -> Ready:
    return _torch(case, compile=True)


def _jax(case: Case) -> Ready:
    """`jax.jit` of what the model's graph is in jax."""
    import rlx

    model = rlx.load(case.model, device="xla", threads=case.threads)
    inputs = dict(case.inputs)
    model.run(inputs, outputs=case.outputs or None)
    compiled = model.compiled
    return Ready(lambda: compiled.run(inputs, outputs=case.outputs or None), {"device": model.device})


def _onnx(case: Case) -> str:
    if not case.onnx:
        raise UnsupportedOp("it reads ONNX files only")
    return case.onnx


PEERS: dict[str, Callable[[Case], Ready]] = {
    "rlx": _rlx,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch": _torch,
    "torch.compile": _torch_compile,
    "jax": _jax,
}


def build(name: str, case: Case) -> Ready:
    """The peer, ready to run, and its version. Raises MissingExtra if its package is not installed."""
    package = name.partition(".")[0]
    if package != "rlx" and find_spec(package) is None:
        raise MissingExtra(f"[bench] expected the package {package}, got none: pip install {package}")
    ready = PEERS[name](case)
    return Ready(ready.call, {"version": version_of(package), **ready.about})


def version_of(package: str) -> str:
    """The version of an installed package; empty for one that tells none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def names_of(text: str) -> list[str]:
    """Peers by comma. Raises ValueError that names what there is."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    known = [name for name in PEERS if name != "rlx"]
    unknown = [name for name in names if name not in known]
    if unknown:
        near = did_you_mean(unknown[0], known)
        raise ValueError(f"expected peers among {', '.join(known)}, got {', '.join(unknown)}{near}")
    return list(dict.fromkeys(names))


__all__ = ["PEERS", "Call", "Case", "Ready", "build", "limit_threads", "names_of", "version_of"]
