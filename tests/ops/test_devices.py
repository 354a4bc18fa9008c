"""The table in `skips.py` says what is so: reasons that no case meets any longer, and names that nothing has, go."""

from __future__ import annotations

import pytest

import skips
from ops.cases import cases_of_every_op
from support import backend


@pytest.mark.devices("cpu", "vulkan", "xla", "mlx", "ane")
def test_every_reason_is_met(device: str) -> None:
    missing = set(skips.of(device).refused)
    for case in cases_of_every_op():
        if not missing:
            return
        missing -= {u.reason for u in backend(device).unsupported(case.graph())}
    assert not missing, f"tests/skips.py lists what {device} refuses no longer: {sorted(missing)}"


def test_names_of_the_table_are_of_cases() -> None:
    names = {str(case) for case in cases_of_every_op()}
    for device, rules in skips.RULES.items():
        cases = {name for name in rules.wrong if not name.startswith("test_")}
        assert cases <= names, device
