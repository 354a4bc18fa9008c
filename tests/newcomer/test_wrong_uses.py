"""What a newcomer types wrongly in the first half hour, as typed, and what must be in the message: which op or name,
both numbers, and the cure. `docs/design/newcomer.md` lists the uses."""

from __future__ import annotations

import io
import os
import pydoc
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rlx
from rlx import elsewhere

ROOT = Path(__file__).parents[2]
X = np.ones((2, 4), np.float32)


def model(op: str, shapes: Sequence[Sequence[int | str]] = (("n", 4),), domain: str = "") -> bytes:
    """A model of one node."""
    names = "ab"[: len(shapes)] if len(shapes) > 1 else "x"
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in zip(names, shapes)]
    nodes = [helper.make_node(op, list(names), ["y"], name="first", domain=domain)]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)])
    return bytes(proto.SerializeToString())


def setting() -> dict[str, Any]:
    """What the lines below may name."""
    graph = rlx.Graph("net")
    x = graph.input("x", ("n", 4))
    graph.output(x @ graph.param("w", (4, 3)), name="y")
    return {
        "np": np, "rlx": rlx, "io": io, "X": X, "bytes_of_a_model": model("Relu"), "model_of": model,
        "model": rlx.load(model("Relu"), device="cpu"),
        "sum": rlx.load(model("Add", (("n", 4), ("n", 4))), device="cpu"),
        "graph": graph, "x": x, "other": rlx.Graph("other"),
        "program": lambda: rlx.Session("cpu").compile(graph),
    }  # fmt: skip


WRONG: dict[str, tuple[str, type[Exception], str]] = {
    "input that is missing": ("model()", rlx.InputError, r"expected the inputs \['x'\], got missing 'x'"),
    "input that is unknown": ("model(x=X, mask=X)", rlx.InputError, r"expected the inputs \['x'\], got unknown 'mask'"),
    "input that is misspelt": ("model(X=X)", rlx.InputError, r"missing 'x' and unknown 'X'; did you mean 'x'\?"),
    "one input too many": ("model(X, X)", rlx.InputError, r"the inputs \['x'\] once, got 2 by position$"),
    "int64": ("model(X.astype('i8'))", rlx.InputError, r"'x' of f32\[n, 4\], got int64.*\.astype\('float32'\) does it"),
    "float16": ("model(X.astype('f2'))", rlx.InputError, r"got float16\[2, 4\].*\.astype\('float32'\) does it"),
    "float64": ("model(X.astype('f8'))", rlx.InputError, r"got float64\[2, 4\].*\.astype\('float32'\) does it"),
    "list": ("model([[1.0, 2, 3, 4]])", rlx.InputError, r"got list: np\.asarray\(…, 'float32'\) makes one"),
    "None": ("model(None)", rlx.InputError, r"input 'x' of f32\[n, 4\] as an array .*, got NoneType"),
    "string": ("model('hello')", rlx.InputError, r"input 'x' of f32\[n, 4\] as an array .*, got str"),
    "rank": ("model(X[0])", rlx.InputError, r"'x' of f32\[n, 4\] \(rank 2\), got f32\[4\] \(rank 1\)"),
    "fixed dim": ("model(np.ones((2, 5), 'f4'))", rlx.InputError, r"f32\[n, 4\], got f32\[2, 5\]: axis 1 is 5"),
    "dims of two inputs": (
        "sum(X, np.ones((3, 4), 'f4'))", rlx.InputError,
        "'n' to be one size, got 2 in input 'a' axis 0 and 3 in input 'b'",
    ),
    "order of onnxruntime": (
        "model.run(None, {'x': X})", rlx.InputError, r"run\(inputs, outputs\) has the inputs first",
    ),
    "device that is none": (
        "rlx.Session('warp')", rlx.DeviceUnavailable, "among auto, .*got 'warp'; available here: cpu",
    ),
    "device gpu0": ("rlx.Session('gpu0')", rlx.DeviceUnavailable, "got 'gpu0'; did you mean 'gpu'"),
    "device vulcan": ("rlx.Session('vulcan')", rlx.DeviceUnavailable, "got 'vulcan'; did you mean 'vulkan'"),
    "device of onnxruntime": (
        "rlx.load(bytes_of_a_model, device='CPUExecutionProvider')", rlx.DeviceUnavailable, "here it is called 'cpu'",
    ),
    "device of torch": ("rlx.Session('mps')", rlx.DeviceUnavailable, "got 'mps'; here it is called 'metal'"),
    "device that is not here": ("rlx.Session('tpu')", rlx.DeviceUnavailable, r"tpu: .*; available here: cpu"),
    "second processor": ("rlx.Session('cpu:1')", rlx.DeviceUnavailable, "cpu:1: expected an ordinal below 1, got 1"),
    "file that is not there": ("rlx.load('nothing.onnx')", rlx.ModelError, "got 'nothing.onnx', which does not exist"),
    "address": ("rlx.load('https://x.org/m.onnx')", rlx.ModelError, r"'https://x\.org/m\.onnx', .*downloads nothing"),
    "model of a hub": ("rlx.load('meta-llama/Llama-3')", rlx.ModelError, "does not exist; rlx downloads nothing"),
    "method of onnxruntime": ("model.get_inputs()", AttributeError, "'get_inputs': model.inputs has names"),
    "method of a module of torch": ("model.to('cuda')", AttributeError, r"'to': rlx\.load\(path, device=…\)"),
    "unknown op": (
        "rlx.load(model_of('Twist', domain='my.domain'))", rlx.UnsupportedOp, r"'first' \(my\.domain\.Twist, opset 1\)",
    ),
    "misspelt op": (
        "rlx.load(model_of('Softmx'))", rlx.UnsupportedOp, r"'first' \(ai\.onnx\.Softmx, opset 17\).*'Softmax'",
    ),
    "rlx.gelo": ("rlx.gelo", AttributeError, "rlx has no 'gelo'; did you mean 'gelu'"),
    "rlx.soft_max": ("rlx.soft_max", AttributeError, "rlx has no 'soft_max'; did you mean 'softmax'"),
    "class of onnxruntime": ("rlx.InferenceSession", AttributeError, "no 'InferenceSession': rlx.load opens a model"),
    "layer of torch": ("rlx.linear", AttributeError, "no 'linear': x @ w [+] b does it"),
    "gradients of JAX": ("rlx.grad", AttributeError, "no 'grad': gradients are not there"),
    "method that is a function": ("x.exp()", AttributeError, r"no attribute 'exp': rlx\.exp\(x\) does it"),
    "method of torch": ("x.permute(1, 0)", AttributeError, r"no attribute 'permute': x\.transpose\(…\) does it"),
    "numbers of a value": ("x.numpy()", AttributeError, r"no attribute 'numpy': a graph is built first"),
    "product in a model": (
        "rlx.load(model_of('MatMul', ((2, 3), (4, 5)))).graph", rlx.ShapeError,
        r"x is f32\[2, 3\], w is f32\[4, 5\]: 3 against 4, inputs 'a', 'b', at node 'first' \(MatMul\)",
    ),
    "sum in a model": (
        "rlx.load(model_of('Add', ((2, 3), (4, 5)))).graph", rlx.ShapeError,
        r"\[2, 3\] and \[4, 5\] \(2 against 4\), inputs 'a', 'b', at node 'first' \(Add\)",
    ),
    "reshape": ("rlx.reshape(other.input('x', (2, 4)), (3, 7))", rlx.ShapeError, "8 against 21, inputs 'x'"),
    "reshape of nothing": ("rlx.reshape(x)", rlx.GraphError, r"\[reshape\] expected shape, got no attributes"),
    "axis too great": (
        "rlx.softmax(x, 5)", rlx.ShapeError, r"\[softmax\] expected axis in \[-2, 2\), got 5, inputs 'x'",
    ),
    "axis of text": (
        "rlx.softmax(x, axis='last')", rlx.GraphError, r"\[softmax\] expected 'axis' to be int, got 'last'",
    ),
    "argument that is none": ("rlx.softmax(x, dmi=1)", rlx.GraphError, "expected the arguments x, axis, got 'dmi'"),
    "transpose": ("rlx.transpose(x, (0, 0))", rlx.ShapeError, r"\[transpose\] expected permutation without repeats"),
    "array for a value": (
        "rlx.softmax(X, -1)", rlx.GraphError, r"got ndarray: graph\.input .* rlx\.jit compiles functions",
    ),
    "split by a number": (
        "rlx.split(x, 3)", rlx.GraphError, r"\[split\] expected 'sizes' to be Sequence\[Dim\], got 3",
    ),
    "shape of text": (
        "graph.input('s', 'abc')", rlx.ShapeError, r"a shape such as \('n', 4\), got 'abc': .* is \('abc',\)",
    ),
    "shape of an int": ("graph.input('s', 2)", rlx.ShapeError, r"a shape such as \('n', 4\), got 2: .* is \(2,\)"),
    "weights in a list": (
        "graph.param('p', (2,), data=[1, 2])", rlx.GraphError, r"'p', got list: np\.asarray\(…, 'float32'\)",
    ),
    "ragged constant": ("graph.constant([[1], [2, 3]])", rlx.GraphError, r"\[constant\] expected an array"),
    "model for a graph": (
        "rlx.Session('cpu').compile(model)", rlx.GraphError, "a rlx.Graph, got Model: rlx.load opens",
    ),
    "path for a graph": (
        "rlx.Session('cpu').compile('m.onnx')", rlx.GraphError, "a rlx.Graph, got str: rlx.load opens",
    ),
    "device that is a number": ("rlx.Session(3)", rlx.OptionError, "name of a device, or a list of names, got 3"),
    "threads of text": ("rlx.Session(threads='two')", rlx.OptionError, "'threads' to be int [|] None, got 'two'"),
    "threads below none": (
        "rlx.load(bytes_of_a_model, threads=-1)", rlx.OptionError, "a number of threads, .*, got -1",
    ),
    "timeout of text": ("model.compiled.run([X], timeout='soon')", rlx.InputError, "more than 0 s, got 'soon'"),
    "outputs that are a number": (
        "model.compiled.run([X], outputs=3)", rlx.InputError, r"outputs among \['y'\], got 3",
    ),
    "index of text": (
        "x['first']", rlx.ShapeError, r"\[index\] expected ints, dims, slices, None or \.\.\., got 'first'",
    ),
    "index of a float": ("x[1.5]", rlx.ShapeError, r"\[index\] expected ints, .*, got 1\.5"),
    "output by its name": (
        "graph.output('x')", rlx.GraphError, r"\[output\] expected a value of the graph 'net', got 'x'",
    ),
    "no weights": ("program().run([X])", rlx.InputError, r"got none for \['w'\]: set_param gives it"),
    "weight of another name": ("program().set_params({'W': X})", rlx.InputError, r"got \['W'\]; did you mean 'w'"),
    "weight of another shape": (
        "program().set_params({'w': X})", rlx.InputError, r"'w' of f32\[4, 3\], got f32\[2, 4\]",
    ),
    "weight of another dtype": (
        "program().set_params({'w': np.ones((4, 3))})", rlx.InputError, r"\.astype\('float32'\) does it",
    ),
    "value of another graph": (
        "x + other.input('x', ('n', 4))", rlx.GraphError, r"\[add\] expected values of the graph 'net'",
    ),
    "a name twice": ("graph.input('x', (2,))", rlx.GraphError, r"\[input\] expected a new name, got 'x' twice"),
    "no outputs": (
        "rlx.Session('cpu').compile(other)", rlx.GraphError, r"expected a graph with outputs \(graph\.output",
    ),
    "two dtypes": (
        "x + graph.input('h', ('n', 4), 'f16')", rlx.DTypeError, r"\[add\] .*got f32 and f16, inputs 'x', 'h'",
    ),
    "dtype that is none": (
        "graph.input('z', (2,), 'float33')", rlx.DTypeError, "got 'float33'; did you mean 'float32'",
    ),
    "cast to what is none": ("rlx.cast(x, 'float33')", rlx.GraphError, "got 'float33'; did you mean 'float32'"),
    "dtype of no kind": ("graph.input('z', (2,), lambda: 1)", rlx.DTypeError, "expected one of bool, .* f32, .*, got "),
    "option that is misspelt": ("rlx.load(bytes_of_a_model, devce='cpu')", rlx.OptionError, "did you mean 'device'"),
    "option of onnxruntime": ("rlx.load(bytes_of_a_model, providers=[])", rlx.OptionError, "device= names the device"),
    "row that there is not": (
        "g = rlx.Graph(); g.output(rlx.gather(g.input('t', (3, 4)), g.input('i', (1,), 'i64'), axis=0))\n"
        "rlx.Session('cpu').compile(g).run([np.ones((3, 4), 'f4'), np.array([10**15])])",
        rlx.InputError, r"expected indices in \[-3, 3\), got 1000000000000000, at node 'gather_0'",
    ),
    "more memory than there is": (
        "g = rlx.Graph(); g.output(rlx.exp(g.input('a', ('n', 1)) + g.input('b', (1, 'm'))))\n"
        "rlx.Session('cpu').compile(g).run([np.ones((10**7, 1), 'f4'), np.ones((1, 10**7), 'f4')])",
        rlx.OutOfMemory, r"got 400000000000000 for \[10000000, 10000000\], at node 'add_0'",
    ),
    "place that is not there": (
        "rlx.load(bytes_of_a_model).save('nowhere/m.rlx')", FileNotFoundError, r"'nowhere/m\.rlx'$",
    ),
    "name of another format": (
        "model.save('m.onnx')", rlx.ModelError, "rlx's own format, got 'm.onnx': rlx writes no ONNX",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_use_is_told_what_is_wrong(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed, kind, message = WRONG[name]
    names = setting()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as caught:
        exec(typed, names)
    assert re.search(message, str(caught.value)), str(caught.value)
    assert len(str(caught.value)) < 500, "a message is read, not searched"
    assert not list(tmp_path.iterdir()), "and nothing is left behind"


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", r"got the empty file '.*m\.onnx'"),
    "truncated": (model("Relu")[:-10], r"the file is truncated, in m\.onnx"),
    "damaged": (model("Relu")[:20] + b"\xff" * 10 + model("Relu")[30:], r"m\.onnx, which is damaged or none"),
    "foreign": (
        b"tjgg" + bytes(60),
        r"m\.onnx', a GGML file of an old llama\.cpp: rlx reads GGUF, which took its place",
    ),
    "cut off": (b"GGUF\3\0\0\0", r"expected 8 bytes at 8, got a file of 8, at 'the header' in 'm\.onnx'"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_model_is_named(name: str, tmp_path: Path) -> None:
    content, message = FILES[name]
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(rlx.ModelError, match=message):
        _ = rlx.load(tmp_path / "m.onnx").graph


FLAGS = {
    "RLX_DEBUG=abc": "RLX_DEBUG='abc': expected a whole number; 0 silent",
    "RLX_STOP_AT=x": "RLX_STOP_AT='x': expected a whole number; apply only",
    "RLX_NUM_THREADS=-1": "RLX_NUM_THREADS='-1': expected a number that is not negative; threads",
    "RLX_CACHE=maybe": "RLX_CACHE='maybe': expected 0 or 1",
    "RLX_DEVICES=foo": "RLX_DEVICES='foo': expected a device among",
    "RLX_DEVICE=vulcan": "got 'vulcan'; did you mean 'vulkan'",
}


@pytest.mark.parametrize("setting_of", FLAGS)
def test_a_variable_that_does_not_parse_is_told_with_its_help(setting_of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*setting_of.split("="))
    with pytest.raises(rlx.RlxError, match=re.escape(FLAGS[setting_of])):
        rlx.load(model("Relu"))(X)


def test_methods_that_there_are_not_are_told_by_python() -> None:
    """The interpreter adds the suggestion when it prints the error."""
    script = "import rlx\nrlx.Graph().outpt"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert ran.returncode == 1 and "Did you mean: 'output'?" in ran.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="gives up rights in a process of its own")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model("Relu"))
    (tmp_path / "other.onnx").write_bytes(model("Relu"))
    path.chmod(0)
    script = """
        import os, sys
        import rlx
        _ = rlx.load(sys.argv[2]).graph  # imports what it needs while it may read
        os.getuid() or os.setuid(65534)
        try:
            rlx.load(sys.argv[1])
        except PermissionError as error:
            print(error)
        """
    for folder in (tmp_path, *tmp_path.parents[:2]):  # which pytest made
        folder.chmod(folder.stat().st_mode | 0o011)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RLX_CACHE": "0"}
    command = [sys.executable, "-c", textwrap.dedent(script), str(path), str(tmp_path / "other.onnx")]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert str(path) in ran.stdout, ran.stderr


def test_dtypes_of_torch_are_taken() -> None:
    torch = pytest.importorskip("torch")
    graph = rlx.Graph()
    for ours in ("f16", "bf16", "f32", "f64", "i8", "i64", "u8", "bool", "c64", "f8e4m3", "f8e5m2"):
        theirs = getattr(torch, {"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "bool": "bool"}.get(ours, "") or
                         str(np.dtype(rlx.Graph().input("x", (), ours).dtype.numpy)))  # fmt: skip
        assert graph.input(f"of_{ours}", (2,), theirs).dtype == graph.input(f"as_{ours}", (2,), ours).dtype
    with pytest.raises(rlx.DTypeError, match="got 'qint8'"):
        graph.input("quantised", (2,), torch.qint8)


def test_tensors_that_want_gradients_are_told_the_call_that_helps() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(rlx.InputError, match=r"'x' of f32\[n, 4\], got Tensor, .*use tensor\.detach\(\)"):
        rlx.load(model("Relu"), device="cpu")(torch.ones(2, 4, requires_grad=True))


def test_what_is_taken_is_taken() -> None:
    """The other side of it: what the same people try, and what works."""
    for source in (model("Relu"), io.BytesIO(model("Relu")), onnx.load_from_string(model("Relu"))):
        assert rlx.load(source, device="CPU")(X)["y"].shape == (2, 4)


def test_methods_of_values_take_the_names_of_torch_too() -> None:
    graph = rlx.Graph()
    x = graph.input("x", (2, 1, 4))
    for name in ("sum", "prod", "mean", "var", "std", "max", "min", "all", "any"):
        method = getattr(x, name)
        assert method(dim=1, keepdim=True).shape == method(axis=1, keepdims=True).shape == (2, 1, 4)
        assert method(axes=(0, 2)).shape == (1,)
    assert x.squeeze(dim=1).shape == (2, 4)
    with pytest.raises(rlx.GraphError, match=r"\[sum\] expected axis once, got it as axis and as dim"):
        x.sum(axis=1, dim=1)  # type: ignore[call-arg]
    with pytest.raises(rlx.GraphError, match=r"\[mean\] .* axis, keepdims, got 'keepdms'.*'keepdims'"):
        x.mean(keepdms=True)  # type: ignore[call-arg]
    with pytest.raises(rlx.GraphError, match=r"\[astype\] expected the arguments dtype: missing a required argument"):
        x.astype()  # type: ignore[call-arg]


def test_hints_name_what_there_is_and_stand_in_for_what_there_is_not() -> None:
    value = rlx.Graph().input("x", (2,))
    opened = rlx.load(model("Relu"), device="cpu")
    for known, owner in ((elsewhere.NAMES, rlx), (elsewhere.METHODS, value), (elsewhere.OF_MODELS, opened)):
        for name, hint in known.items():
            assert not hasattr(owner, name), name
            for named in re.findall(r"rlx\.(\w+)", hint):
                assert hasattr(rlx, named), hint
            for named in re.findall(r"\bx\.(\w+)", hint):
                assert hasattr(value, named), hint
            for named in re.findall(r"\bmodel\.(\w+)", hint):
                assert hasattr(opened, named), hint


def test_help_and_everything_imported_have_classes_functions_and_ops() -> None:
    text = "".join(pydoc.render_doc(rlx, renderer=pydoc.plaintext).split())  # Python 3.13 breaks long signatures
    for words in ("classSession", "classGraph", "load(source", "gelu(x:'ValueLike'", "softmax(x", "jit(function"):
        assert words in text, words
