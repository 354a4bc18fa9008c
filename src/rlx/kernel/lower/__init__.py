"""Lowering, from graphs to programs: `lowering.py` has the steps, the other files a kind of kernel each.

Importing this package fills the table of kinds (`table.py`).
"""

from rlx.kernel.lower import attention, blocks, contraction, control, elementwise, irregular, lowering, reduce, windows

__all__ = ["attention", "blocks", "contraction", "control", "elementwise", "irregular", "lowering", "reduce", "windows"]
