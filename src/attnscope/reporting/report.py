"""report(record, path): the page of whatever a command found, as one self-contained HTML file.

attnscope.report(survey, "report.html", other=second_survey)
attnscope.report("out/collapse.json", "collapse.html", published="BERT")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.records.load import load
from attnscope.records.record import Record


def report(record: Record | str | Path, path: Path | str, **options: Any) -> Path:
    """Write the page of a record, or of the one that a path names; `options` are those of `reporting/KIND/page.py`."""
    if isinstance(record, str | Path):
        record = load(record)
    if not isinstance(record, Record):
        raise RefusalError(f"A record or the path of one is needed, not {type(record).__name__}.")
    return record.write_page(path, **options)
