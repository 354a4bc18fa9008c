"""Random programs against the reference: `generate` makes them, `oracle` says what they give and how exactly, `check`
runs them on a device, `shrink` makes a failing one small, `found` writes it down, `run` does it in many processes.

Needs what the core of rlx needs (numpy, ml_dtypes, llvmlite) and the cases of ops in `tests/ops`.
"""
