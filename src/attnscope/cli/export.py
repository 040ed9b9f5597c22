"""`attnscope export`: the table of a record as parquet, CSV or JSON, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from attnscope.cli.options import json_option


def export(
    record: Annotated[
        Path,
        typer.Argument(help="A record such as survey.json, or the folder that holds it.", metavar="FILE"),
    ],
    format: Annotated[
        Literal["parquet", "csv", "json"] | None,
        typer.Option(help="Default: the suffix of --out, or parquet."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the table. Default: beside the record.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, json_option("the path of the table")] = False,
) -> None:
    """Write the table of FILE for other programs: one row for each measure, part, place and head of a survey."""
    from attnscope.cli.files import checked_file
    from attnscope.cli.output import print_json
    from attnscope.commands.records import FORMATS, format_of
    from attnscope.commands.records import export as export_table
    from attnscope.core.words import clean

    format_of(out, format)
    if out is not None:
        checked_file(out, "--out", (out.suffix.lower() if format else "", *(f".{name}" for name in FORMATS)))
    written = export_table(record, out, format=format)
    if as_json:
        print_json({"table": str(written)})
    else:
        typer.echo(clean(f"Table: {written}"))
