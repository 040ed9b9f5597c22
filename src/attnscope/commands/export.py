"""export(record, out) -> Path: the table of any record as a file for other programs.

    attnscope.export("out/survey.json", "survey.parquet")
    attnscope.export(survey, "survey.csv")

Rows are those of `record.table()`. Columns that hold mappings (where a peak was, the usual token) are JSON text, in all
formats alike. Parquet keeps types; in CSV and JSON what is not a number is an empty cell and null.
"""

from __future__ import annotations

import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.commands.load import file_of, load
from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError, meant
from attnscope.core.files import named_path, write_atomically
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

FORMATS = ("parquet", "csv", "json")


def export(record: Record | str | Path, out: str | Path | None = None, *, format: str | None = None) -> Path:
    """Write the table of a record, or of the file or folder that holds one. `format` is parquet, csv or json; without
    it the ending of `out` says it, and without either it is parquet. Without `out` the file goes beside the record."""
    place = None if out is None else named_path(out, "file")
    chosen = format_of(place, format)
    if chosen == "parquet" and find_spec("pyarrow") is None:
        raise RefusalError(
            "Writing parquet needs pyarrow: pip install 'attnscope[parquet]', or choose the format csv or json."
        )
    if isinstance(record, Record):
        read, beside = record, Path(record.KIND)
    else:
        beside = file_of(named_path(record, "file"))
        read = load(beside)
    target = beside.with_name(f"{beside.name.partition('.')[0]}.{chosen}") if place is None else place
    write_atomically(target, _bytes(_flat(read), chosen))
    return target


def format_of(out: Path | None, format: str | None) -> str:
    """The format that is asked for, or that a name ends in."""
    ending = "" if out is None else out.suffix.lower().removeprefix(".")
    chosen = format or (ending if out is not None else FORMATS[0])
    if chosen not in FORMATS:
        what = f"There is no format '{chosen}'" if format else f"The name '{out}' does not say the format"
        raise RefusalError(f"{what}: choose one of {', '.join(FORMATS)}.{meant(chosen, FORMATS)}")
    if ending in FORMATS and ending != chosen:
        raise RefusalError(f"The file '{out}' would hold {chosen}: let its name end in .{chosen}, or change `format=`.")
    return chosen


def _flat(record: Record) -> pandas.DataFrame:
    try:
        table = record.table()
    except NotImplementedError:
        raise RefusalError(f"A {record.KIND} has no table: export a survey.") from None
    for name in table.columns:
        if any(isinstance(value, dict | list | tuple) for value in table[name]):
            table[name] = [_text(value) for value in table[name]]
    return table


def _text(value: Any) -> str | None:
    return json.dumps(plain(value)) if isinstance(value, dict | list | tuple) else None


def _bytes(table: pandas.DataFrame, format: str) -> bytes:
    if format == "csv":
        return table.to_csv(index=False, lineterminator="\n").encode()
    if format == "json":
        return table.to_json(orient="records", double_precision=15, lines=False).encode()
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()
