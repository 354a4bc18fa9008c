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
