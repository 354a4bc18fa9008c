"""The LLVM renderer: nests and their scalar bodies as LLVM IR text with explicit vectors. It holds no knowledge of ops.

`function.py` writes functions, `body.py` scalar expressions, `nest.py` loop nests.
"""
