"""Other runtimes, and rlx itself, behind one interface: from a case to a function that runs it once.

A runtime is loaded in the process that will time it, with the number of threads that the case requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from rlx.errors import MissingExtra, UnsupportedOp
from rlx.ir.literal import Array

Call = Callable[[], list[Array]]


@dataclass(frozen=True)
class Case:
    """What to time: a model, inputs by name, threads.

    model        what rlx loads
    onnx         the same model as an ONNX file, for the runtimes that read those ("" if there is none)
    transformer  the folder that transformers loads the same model from ("" if there is none)
    outputs      names of the outputs to compute, in order; the rest is left out where a peer can leave it out
    """

    model: str
    inputs: Mapping[str, Array]
    threads: int
    device: str = "auto"
    onnx: str = ""
    transformer: str = ""
    outputs: tuple[str, ...] = field(default=())


def limit_threads(threads: int) -> None:
    """Tells libraries that are loaded after this how many threads to use."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(variable, None)


def _rlx(case: Case) -> Call:
    import rlx

    compiled = rlx.load(case.model, device=case.device, threads=case.threads, compile="before").compiled
    inputs = dict(case.inputs)
    return lambda: compiled.run(inputs, outputs=case.outputs or None)


def _onnxruntime(case: Case) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = case.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(_onnx(case), options, providers=["CPUExecutionProvider"])
    inputs, outputs = dict(case.inputs), list(case.outputs) or None
    return lambda: list(session.run(outputs, inputs))


def _openvino(case: Case) -> Call:
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

    return run


def _torch(case: Case, compile: bool = False) -> Call:
    import torch

    if not case.transformer:
        raise UnsupportedOp("torch reads no models of this format")
    from transformers import AutoModel, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(case.threads)
    module = AutoModel.from_pretrained(case.transformer).eval()
    inputs = {name: torch.from_numpy(array) for name, array in case.inputs.items()}
    call = torch.compile(module) if compile else module

    def run() -> list[Array]:
        with torch.inference_mode():
            return [call(**inputs).last_hidden_state.numpy()]

    return run


def _torch_compile(case: Case) -> Call:
    return _torch(case, compile=True)


def _onnx(case: Case) -> str:
    if not case.onnx:
        raise UnsupportedOp("it reads ONNX files only")
    return case.onnx


PEERS: dict[str, Callable[[Case], Call]] = {
    "rlx": _rlx,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch": _torch,
    "torch.compile": _torch_compile,
}


def build(name: str, case: Case) -> Call:
    """The peer, ready to run. Raises MissingExtra if its package is not installed."""
    package = name.partition(".")[0]
    if package != "rlx" and find_spec(package) is None:
        raise MissingExtra(f"[bench] expected the package {package}, got none: pip install {package}")
    return PEERS[name](case)


def names_of(text: str) -> list[str]:
    """Peers by comma. Raises ValueError that names what there is."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in PEERS or name == "rlx"]
    if unknown:
        raise ValueError(f"expected peers among {', '.join(n for n in PEERS if n != 'rlx')}, got {', '.join(unknown)}")
    return list(dict.fromkeys(names))


__all__ = ["PEERS", "Call", "Case", "build", "limit_threads", "names_of"]
