"""`attnscope compare`: two surveys side by side, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli.options import SaveRecord, Threshold, Verbose, json_option


def compare(
    a: Annotated[Path, typer.Argument(help="A survey.json, or the folder a scan wrote.")],
    b: Annotated[Path, typer.Argument(help="The one to set beside it.")],
    out: Annotated[Path | None, typer.Option(help="Also write a page with both.", metavar="FILE")] = None,
    save: SaveRecord = None,
    threshold: Threshold = None,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("the differences")] = False,
) -> None:
    """Set survey A beside survey B: checkpoints, variants, models."""
    from attnscope.cli.files import checked_file
    from attnscope.cli.output import page_path, print_json
    from attnscope.records.comparison import compare as compare_surveys
    from attnscope.records.survey.thresholds import Thresholds
    from attnscope.reporting.terminal import print_record

    if save is not None:
        checked_file(save, "--save", (".json",))
    comparison = compare_surveys(a, b, Thresholds.parse(threshold or []))
    if save is not None:
        comparison.save(save)
    if out is not None:
        comparison.write_page(page_path(out))
    if as_json:
        print_json(comparison.to_json())
    else:
        print_record(comparison, files={"Report": out, "Record": save}, verbose=verbose)
