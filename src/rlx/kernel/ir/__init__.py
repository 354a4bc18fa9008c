"""The kernel IR: data only. A `Program` is a list of kernels over buffers; each kernel binds a `Work` to buffers.

`index.py` says where elements lie, `work.py` what generic code asks of every kind of work, and `loops.py`,
`contraction.py`, `winograd.py`, `attention.py`, `irregular.py` and `control.py` are the kinds. `verify.py` states what
must hold, `text.py` prints a program.
"""
