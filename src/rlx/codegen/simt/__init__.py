"""The WGSL renderer: nests and contractions as compute shaders, for whatever speaks WebGPU. It knows nothing of ops.

`nest.py` and `contraction.py` write the loops, `body.py` the scalar expressions in them, `instructions.py` one
instruction on `registers.py`; `types.py` says how elements lie in memory and registers, `ranges.py` which 64-bit
integers fit in 32 bits, `library.py` and `narrow.py` hold functions in WGSL; `code.py` and `shader.py` make the text.
`docs/design/wgsl.md` is the guide.
"""
