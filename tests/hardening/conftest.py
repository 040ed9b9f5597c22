"""The browser of the reports' tests, for the pages of charts."""

from __future__ import annotations

from tests.reports.conftest import browser

__all__ = ["browser"]
