"""What the fuzzer draws from must be there: a switch that nothing has switches nothing off."""

from __future__ import annotations

from rlx.device import switches
from tools.fuzz import generate


def test_every_switch_is_one() -> None:
    switches.check(generate.DISABLE)
