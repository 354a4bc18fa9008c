"""Every test that takes `device` runs on the devices of `--device`: by default the reference, and the CPU's code for
every instruction set that this machine runs."""

from __future__ import annotations

import os

import pytest

from rlx.backends.cpu import isa
from rlx.errors import DeviceUnavailable

# programs of tests are compiled once; those that test the cache switch it on
os.environ.setdefault("RLX_CACHE", "0")


def default_devices() -> list[str]:
    """`reference`, `cpu` with the widest instruction set, and `cpu-<name>` for the narrower ones."""
    found = ["reference", "cpu"]
    widest = isa.widest().name
    for name in isa.LEVELS:
        try:
            isa.forced(name)
        except DeviceUnavailable:
            continue
        if name != widest:
            found.append(f"cpu-{name}")
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="", help="comma list of devices that tests with a device run on")


def devices_of(config: pytest.Config) -> list[str]:
    wanted = str(config.getoption("--device"))
    return wanted.split(",") if wanted else default_devices()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    listed = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    own = any("device" in (names.split(",") if isinstance(names, str) else names) for names in listed)
    if "device" in metafunc.fixturenames and not own:
        metafunc.parametrize("device", devices_of(metafunc.config))
