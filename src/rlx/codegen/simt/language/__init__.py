"""The languages that SIMT kernels are written in: `base.py` says what the generator asks of one."""
