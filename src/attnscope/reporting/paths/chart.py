"""The picture of a decomposition into paths: all of its charts in one."""

from __future__ import annotations

from typing import Any

from attnscope.charts.path_panels import path_panels
from attnscope.records.paths import PathReport


def chart(report: PathReport) -> Any:
    """Values of heads, share by length, reconstruction, heads by length, and heads beside MLPs."""
    return path_panels(report)
