"""Every test that takes `device` runs on the device of `--device` (default: the NumPy reference)."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="reference", help="backend that tests with a device run on")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--device")
    for item in items:
        marker = item.get_closest_marker("device")
        if marker is not None and wanted not in marker.args:
            item.add_marker(pytest.mark.skip(reason=f"runs on {', '.join(marker.args)} only"))


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Name of the backend under test."""
    return str(request.config.getoption("--device"))
