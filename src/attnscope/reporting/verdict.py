"""The verdict of a record: one sentence that page, terminal and notebook put first, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from attnscope.records.record import Record

Level = Literal["calm", "info", "warning", "critical"]


@dataclass(frozen=True)
class Verdict:
    """`calm` is good news; the other levels are the severities of findings."""

    level: Level
    sentence: str


def verdict(record: Record) -> Verdict:
    """What `reporting/KIND/words.py` concludes from a record."""
    found: Verdict = import_module(f"attnscope.reporting.{record.KIND}.words").verdict(record)
    return found
