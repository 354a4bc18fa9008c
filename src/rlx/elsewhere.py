"""What other libraries call what is here under another name, or is not here: hints for errors."""

from __future__ import annotations

_ARRAYS = "arrays of NumPy, and of others by DLPack, are taken as they are"
_GRAPHS = "a graph is built first, and Session(device).compile(graph).run(…) gives its numbers"
NAMES = {
    "InferenceSession": "rlx.load opens a model",
    "Tensor": _ARRAYS, "tensor": _ARRAYS, "array": _ARRAYS, "asarray": _ARRAYS, "ndarray": _ARRAYS,
    "from_numpy": _ARRAYS, "from_dlpack": _ARRAYS,
    "compile": "rlx.jit compiles functions, and rlx.Session(device).compile graphs",
    "nn": "layers are functions of rlx itself: rlx.relu, rlx.conv, rlx.layer_norm",
    "functional": "layers are functions of rlx itself: rlx.relu, rlx.conv, rlx.layer_norm",
    "linear": "x @ w + b does it", "dense": "x @ w + b does it",
    "dot": "rlx.matmul does it, or x @ y", "mm": "rlx.matmul does it, or x @ y",
    "bmm": "rlx.matmul does it, or x @ y", "tensordot": "rlx.einsum does it",
    "view": "rlx.reshape does it", "relu6": "rlx.clip(x, 0, 6) does it",
    "random": "rlx.random_normal and rlx.random_uniform draw numbers from graph.random_state()",
    "grad": "gradients are not there", "value_and_grad": "gradients are not there", "vjp": "gradients are not there",
    "vmap": "a dim with a name, such as 'batch', stands for any number of rows",
}  # fmt: skip
"""Names of functions and classes of onnxruntime, torch, JAX and NumPy."""
METHODS = {
    "flatten": "x.ravel() has all elements along one axis, rlx.flatten(x) makes a matrix",
    "view": "x.reshape(…) does it", "permute": "x.transpose(…) does it", "contiguous": "values have no strides",
    "to": "x.astype(dtype) changes the dtype, and the session names the device",
    "float": "x.astype('f32') does it", "half": "x.astype('f16') does it", "long": "x.astype('i64') does it",
    "numpy": _GRAPHS, "detach": _GRAPHS, "cpu": _GRAPHS, "eval": _GRAPHS,
    "block_until_ready": _GRAPHS,
}  # fmt: skip
"""Names of methods of arrays."""
_CALL = "model(x) or model.run({'x': x}) runs it"
_DEVICE = "rlx.load(path, device=…) says on which device it runs"
OF_MODELS = {
    "get_inputs": "model.inputs has names, dtypes and dims", "get_outputs": "model.outputs has names, dtypes and dims",
    "get_providers": "model.device is the device", "set_providers": _DEVICE,
    "end_profiling": "rlx profile times kernels", "get_modelmeta": "model.format and model.notes tell of the file",
    "io_binding": "model.compiled.bind_handle does it",
    "predict": _CALL, "forward": _CALL, "infer": _CALL, "inference": _CALL, "apply": _CALL,
    "eval": "models always infer", "train": "nothing is trained here", "to": _DEVICE, "cuda": _DEVICE, "cpu": _DEVICE,
    "half": "rlx.load(path, precision='f16') does it", "bfloat16": "rlx.load(path, precision='bf16') does it",
    "compile": "model.compiled is the compiled program", "params": "model.compiled.params has the weights",
    "parameters": "model.compiled.params has the weights", "state_dict": "model.compiled.params has the weights",
    "set_params": "model.compiled.set_params does it", "set_param": "model.compiled.set_param does it",
}  # fmt: skip
"""Names of methods of models, in onnxruntime, torch and others, and of what compiled programs have."""
