"""Passes over programs of kernels: same meaning, other kernels. `driver.py` runs them as graph passes are run."""
