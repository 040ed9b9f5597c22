"""Measure arms with only a few measures, because all of them would take minutes."""

from __future__ import annotations

from typing import Any

import pytest

from attnscope.commands.scan.run import scan
from attnscope.commands.treat import arms

MEASURES = ["sink_mass", "entropy", "head_overlap", "spike"]


@pytest.fixture(autouse=True, scope="session")
def few_measures() -> Any:
    def fewer(*given: Any, **options: Any) -> Any:
        return scan(*given, **{"measures": MEASURES, **options})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arms, "scan", fewer)
        yield
