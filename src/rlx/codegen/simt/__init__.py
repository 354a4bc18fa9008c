"""Kernels for GPUs, where many lanes do the same. It knows nothing of ops.

`loops.py`, `rows.py`, `contraction.py`, `attention.py`, `split_kv.py`, `irregular.py` and `bitonic.py` say which lane
does what; `body.py` writes scalar expressions, `code.py` lines, `shared.py` what lanes exchange. `language/` has the
languages that all of it is written in. `module.py` is the way in for those that take pointers. `docs/design/wgsl.md`
is the guide.
"""
