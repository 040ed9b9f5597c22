"""The picture of a decomposition into paths: all of its charts in one."""

from __future__ import annotations

from typing import Any

from attnscope.charts.path_panels import path_panels
from attnscope.records.paths import PathReport


def chart(report: PathReport) -> Any:
    """Share by length, reconstruction, values of heads, and heads by length."""
    return path_panels(report)
