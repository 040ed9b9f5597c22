"""The stamp names versions and the time, and is the end of every provenance."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version

import attnscope
from attnscope.core.stamp import Stamp


def test_a_stamp_says_with_what_and_when() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    data = Stamp.now().to_json()
    assert list(data) == ["versions", "attnscope", "created"]
    assert data["versions"] == {name: version(name) for name in ("torch", "transformers", "numpy")}
    assert data["attnscope"] == attnscope.__version__
    assert before <= datetime.fromisoformat(str(data["created"])) <= datetime.now(UTC)
