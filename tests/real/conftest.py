"""Real weights are unpacked by tools/fetch_models.py, once; a test asks for them by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOOLS = str(Path(__file__).resolve().parents[2] / "tools")
if TOOLS not in sys.path:
    sys.path.insert(0, TOOLS)


@pytest.fixture(scope="session")
def material() -> Callable[[str], Path]:
    """`material("minilm")` is where that model or text is."""
    import fetch_models

    return fetch_models.path
