"""What all tests share: shapes checked at run time, hypothesis profiles, and which tests `make test-all` adds.

Shapes and types are checked in tests only, so the hook must be in place before attnscope is imported.

`make test` runs every test that is not marked `thorough`, with few hypothesis examples. `make test-all` (`--thorough`)
runs the rest: tests marked `thorough`, and every hypothesis test again with many examples.
"""

from __future__ import annotations

import os

import pytest

from tests.checking import install

install("attnscope")

from attnscope.core.amx_check import LIMIT, LIMITED_TO, half_precision_crashes  # noqa: E402

if half_precision_crashes():
    os.environ[LIMIT] = LIMITED_TO  # before torch's first product, here and in every child

import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

torch.set_num_threads(1)
for name, examples in (("quick", 12), ("thorough", 100)):
    settings.register_profile(
        name,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=True,
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="Run what `make test` leaves out (see tests/conftest.py).")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("thorough" if config.getoption("--thorough") else "quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    thorough = config.getoption("--thorough")
    chosen: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        marked = item.get_closest_marker("thorough") is not None
        drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        (chosen if (marked or drawn if thorough else not marked) else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = chosen
