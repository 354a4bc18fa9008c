"""Names that have a meaning in graphs."""

from __future__ import annotations

RANDOM_STATE = "rlx.random_state"
"""Of the input u32[4] that `rlx.runtime` brings, a new one for each run, if the caller does not."""
