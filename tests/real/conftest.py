"""Real weights, which tools/fetch_models.py unpacks once. Tests get them by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.fetch_models import path


@pytest.fixture(scope="session")
def material() -> Callable[[str], Path]:
    """Return a function from a name such as "minilm" to the path of that model or text."""
    return path
