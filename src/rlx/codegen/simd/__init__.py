"""LLVM IR for processors, with explicit vectors. It knows nothing of ops.

`module.py` is the way in. `loops.py`, `gemm.py`, `attention.py`, `winograd.py`, `transpose.py`, `irregular.py`,
`top_k.py` and `fourier.py` schedule and write a kind of kernel each; `body.py` writes scalar expressions,
`function.py` functions, `entry_points.py` the calls of kernels in order. `isa.py` describes the target.
"""
