"""Read, export and draw the records of all commands: `attnscope.load`, `attnscope.export`, `attnscope.report`."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError, did_you_mean
from attnscope.core.files import named_path, read_document, write_atomically
from attnscope.core.names import files_named
from attnscope.reports.export import thumbnail
from attnscope.reports.page import page
from attnscope.reports.record import HEADS, Kind, Record, kind_of, read_record
from attnscope.reports.words import Verdict

if TYPE_CHECKING:
    import pandas

# load(path) -> Record: read any record that a command wrote.
#
#     attnscope.load("out/survey.json"), attnscope.load("out")       a survey, a collapse, paths, ...
#     attnscope.load("head.safetensors")                             a compiled head
#
# The kind is read from the file (`"format": "attnscope-collapse"`), not from its name. A folder must hold one record.

# kind -> module and class
KINDS = MappingProxyType(
    {
        "survey": "attnscope.commands.scan.survey.survey:Survey",
        "comparison": "attnscope.commands.compare.record:Comparison",
        "collapse": "attnscope.commands.collapse.record:Collapse",
        "paths": "attnscope.commands.paths.record:PathReport",
        "task_paths": "attnscope.commands.task_paths.record:TaskPaths",
        "logit_paths": "attnscope.commands.logit_paths.record:LogitReport",
        "faithfulness": "attnscope.commands.evaluate.record:Faithfulness",
        "explanation": "attnscope.commands.explain.record:Explanation",
        "view": "attnscope.commands.view.record:View",
        "operator_map": "attnscope.commands.operator.record:OperatorMap",
        "compiled": "attnscope.commands.compile.record:Compiled",
        "capacity": "attnscope.commands.capacity.record:Capacity",
        "head_widths": "attnscope.commands.head_widths.record:HeadWidths",
        "treatment": "attnscope.commands.treat.record:Treatment",
        "reproduction": "attnscope.commands.reproduce.record:Reproduction",
        "timeline": "attnscope.commands.timeline.record:Timeline",
        "atlas": "attnscope.commands.atlas.record:Atlas",
        "placement": "attnscope.commands.place.record:Placement",
    }
)


def load(path: Path | str) -> Record:
    """Read the record in a file, or the only record in a folder.

    Parameters
    ----------
    path : str or Path
        A file that `save` wrote, or a folder that holds one. The kind of record is read from the file.

    Returns
    -------
    Record
        A survey, a collapse, a compiled head, ...

    Raises
    ------
    RefusalError
        If the path holds no record, several records, or a damaged one.

    Examples
    --------
    >>> path = attnscope.scan("pocket", samples=4).save("survey.json")
    >>> survey = attnscope.load(path)
    """
    file = file_of(named_path(path, "file"))
    if file.suffix.lower() == HEADS:
        return class_of("compiled").load(file)
    data = read_document(file, _wanted())
    kind = kind_of(data)
    if kind not in KINDS:
        raise RefusalError(f"{file} is not a record: give {_wanted()}.")
    return read_record(class_of(kind), data, file)


def opened(record: object, kind: type[Kind]) -> Kind:
    """Return a record unchanged, or read it from a path."""
    if isinstance(record, kind):
        return record
    if isinstance(record, str | Path):
        return kind.load(record)
    raise RefusalError(f"A {kind.KIND} or the path of one is needed, not {type(record).__name__}.")


def class_of(kind: str) -> type[Record]:
    module, _, name = KINDS[kind].partition(":")
    record: type[Record] = getattr(import_module(module), name)
    return record


def file_of(path: Path) -> Path:
    """Return the file itself, or the only record in a folder."""
    files = files_of(path)
    if len(files) > 1:
        raise RefusalError(f"{path} holds {' and '.join(file.name for file in files)}: name the file itself.")
    return files[0]


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the file itself, or all records in a folder; refuse a folder without any."""
    if not path.is_dir():
        return (path,)
    names = _file_names()
    packed = (f"{name}.gz" for name in names)
    files = tuple(file for name in (*names, *packed) for file in files_named(path, name) if file.is_file())
    if not files:
        raise RefusalError(f"{path} holds no record: give a folder with {' or '.join(names)}.")
    return files


def _file_names() -> list[str]:
    return [class_of(kind).FILE for kind in KINDS]


def _wanted() -> str:
    return f"a file that attnscope wrote, such as {', '.join(_file_names())}"


# export(record, out) -> Path: write the table of a record for other programs.
#
#     attnscope.export("out/survey.json", "survey.parquet")
#     attnscope.export(survey, "survey.csv")
#
# The rows come from `record.table()`. Columns of mappings (location of a peak, usual token) are JSON text in every
# format. Parquet keeps types; NaN is an empty cell in CSV, and null in JSON.

FORMATS = ("parquet", "csv", "json")


def export(record: Record | str | Path, out: str | Path | None = None, *, format: str | None = None) -> Path:
    """Write the table of a record as parquet, csv or json.

    Parameters
    ----------
    record : Record, str or Path
        A record, or the file or folder that holds one.
    out : str or Path, optional
        The file to write. Default: a file beside the record.
    format : str, optional
        "parquet", "csv" or "json". Default: the suffix of `out`, or parquet.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    RefusalError
        If the record has no table, the format is unknown or contradicts `out`, or parquet is asked for without pyarrow.

    Examples
    --------
    >>> path = attnscope.export(attnscope.scan("pocket", samples=4), "survey.csv")
    """
    path = None if out is None else named_path(out, "file")
    chosen = format_of(path, format)
    if chosen == "parquet" and find_spec("pyarrow") is None:
        raise RefusalError(
            "Writing parquet needs pyarrow: pip install 'attnscope[parquet]', or choose the format csv or json."
        )
    if isinstance(record, Record):
        read, beside = record, Path(record.KIND)
    else:
        beside = file_of(named_path(record, "file"))
        read = load(beside)
    target = beside.with_name(f"{beside.name.partition('.')[0]}.{chosen}") if path is None else path
    write_atomically(target, _bytes(_flat(read), chosen))
    return target


def format_of(out: Path | None, format: str | None) -> str:
    """Return the requested format, or the format that the suffix of the file names."""
    ending = "" if out is None else out.suffix.lower().removeprefix(".")
    chosen = format or (ending if out is not None else FORMATS[0])
    if chosen not in FORMATS:
        what = f"There is no format '{chosen}'" if format else f"The suffix of '{out}' is not a known format"
        raise RefusalError(f"{what}: choose one of {', '.join(FORMATS)}.{did_you_mean(chosen, FORMATS)}")
    if ending in FORMATS and ending != chosen:
        raise RefusalError(
            f"The file '{out}' would contain {chosen}: let its name end in .{chosen}, or change `format=`."
        )
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


def report(record: Record | str | Path, path: Path | str, **options: Any) -> Path:
    """Write the page of a record as one self-contained HTML file.

    Parameters
    ----------
    record : Record, str or Path
        A record, or the path of one.
    path : str or Path
        The page.
    **options
        Options of the page, such as `other=second_survey` for a survey or `published="BERT"` for a collapse.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    RefusalError
        If `record` is neither a record nor the path of one.

    Examples
    --------
    >>> page = attnscope.report(attnscope.scan("pocket", samples=4), "report.html")
    """
    if isinstance(record, str | Path):
        record = load(record)
    if not isinstance(record, Record):
        raise RefusalError(f"A record or the path of one is needed, not {type(record).__name__}.")
    return record.write_page(path, **options)


# An index page: for each record its question, its verdict, the command that made it, and a link to its page.
#
# page = index("pocket", [Linked("Is it healthy?", "scan pocket", "scan.html", verdict(survey), survey.chart()), ...])


@dataclass(frozen=True)
class Linked:
    """A page in an index: its question, the command that made it, its relative path, its verdict, and a chart for its
    thumbnail."""

    question: str
    command: str
    place: str
    verdict: Verdict
    chart: Any = None


def index(subject: str, linked: Sequence[Linked]) -> str:
    """Return the HTML of an index page; its headline is the verdict of the first linked page."""
    thumbnails = [None if one.chart is None else thumbnail(one.chart, f"thumbnail-{n}") for n, one in enumerate(linked)]
    return page(
        "index.html",
        verdict=linked[0].verdict,
        styles=("index.css",),
        subject=subject,
        linked=list(zip(linked, thumbnails, strict=True)),
        provenance=(),
    )
