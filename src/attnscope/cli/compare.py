"""`attnscope compare`: surveys side by side, the first as the baseline, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli.options import SaveRecord, Threshold, Verbose, json_option
from attnscope.core.errors import RefusalError
from attnscope.core.finding import Severity


def compare(
    surveys: Annotated[
        list[Path],
        typer.Argument(
            help="Two surveys or more: survey.json files, or the folders that scans wrote. The first is the baseline.",
            metavar="SURVEY",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Also write a page with all of them.", metavar="FILE")] = None,
    save: SaveRecord = None,
    threshold: Threshold = None,
    fail_on: Annotated[
        Severity | None,
        typer.Option(help="Exit with code 1 when a finding is new or worse, and this severe or more (for CI gates)."),
    ] = None,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("the differences")] = False,
) -> None:
    """Set surveys side by side: checkpoints, variants, models. Says what got worse and better than in the first."""
    from attnscope.cli.files import checked_file
    from attnscope.cli.output import page_path, print_json
    from attnscope.commands.compare.record import compare as compare_surveys
    from attnscope.commands.scan.diagnose import Thresholds
    from attnscope.reports.terminal import print_record

    if len(surveys) < 2:
        raise RefusalError("A comparison is of two surveys or more: name another one.")
    if save is not None:
        checked_file(save, "--save", (".json",))
    found = compare_surveys(*surveys, thresholds=Thresholds.parse(threshold or []))
    if save is not None:
        found.save(save)
    if out is not None:
        found.write_page(page_path(out))
    if as_json:
        print_json(found.to_json())
    else:
        print_record(found, files={"Report": out, "Record": save}, verbose=verbose)
    if fail_on and found.regressions(fail_on):
        raise typer.Exit(1)
