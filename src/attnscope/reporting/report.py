"""report(record, path): the page of whatever a command found, given itself or the file that holds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from attnscope.records.load import KINDS, load
from attnscope.records.record import Record
from attnscope.reporting.survey.page import write_report


def report(record: Any, path: Path | str, **options: Any) -> Path:
    """Write the page. Of a survey, `other` puts a comparison into it, and `thresholds` changes its findings."""
    if isinstance(record, str | Path) and kind_of(Path(record).expanduser()) not in (None, "survey"):
        record = load(record)
    if isinstance(record, Record):
        return record.write_page(path, **options)
    return write_report(record, path, **options)


def kind_of(path: Path) -> str | None:
    """What kind of record a file or folder holds, by its first characters, for a survey can be large; None where that
    does not say it."""
    for kind, (_, name) in KINDS.items():
        file = path / name if path.is_dir() else path
        try:
            with file.open(encoding="utf-8") as stream:
                if re.search(rf'"format"\s*:\s*"attnscope-{kind}"', stream.read(200)):
                    return kind
        except (OSError, UnicodeDecodeError):
            continue
    return None
