"""Real weights are unpacked by tools/fetch_models.py, once; a test asks for them by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.fetch_models import path


@pytest.fixture(scope="session")
def material() -> Callable[[str], Path]:
    """`material("minilm")` is where that model or text is."""
    return path
