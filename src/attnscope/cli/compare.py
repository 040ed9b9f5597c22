"""`attnscope compare`: surveys side by side, the first as the baseline, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli.options import SAVE, Threshold, json_option, with_requests
from attnscope.cli.output import page_path, print_json
from attnscope.cli.runner import Output
from attnscope.core.errors import RefusalError
from attnscope.core.finding import Severity


@with_requests(
    out=typer.Option(help="Also write an HTML page of the comparison.", metavar="FILE"),
    save=SAVE,
    as_json=json_option("the differences"),
)
def compare(
    surveys: Annotated[
        list[Path],
        typer.Argument(
            help="Two or more surveys: survey.json files, or the folders that scans wrote. The first is the baseline.",
            metavar="SURVEY",
        ),
    ],
    threshold: Threshold = None,
    fail_on: Annotated[
        Severity | None,
        typer.Option(help="Exit with code 1 if a finding of at least this severity is new or worse (for CI)."),
    ] = None,
    output: Output = Output(),
) -> None:
    """Compare surveys of checkpoints, variants or models: say what is better and what is worse than in the first."""
    from attnscope.commands.compare.record import compare as twin
    from attnscope.commands.scan.diagnose import Thresholds
    from attnscope.reports.terminal import print_record

    if len(surveys) < 2:
        raise RefusalError("A comparison needs at least two surveys: name another one.")
    comparison = twin(*surveys, thresholds=Thresholds.parse(threshold or []))
    if output.save is not None:
        comparison.save(output.save)
    if output.out is not None:
        comparison.write_page(page_path(output.out))
    if output.as_json:
        print_json(comparison.to_json())
    else:
        print_record(comparison, files={"Report": output.out, "Record": output.save}, verbose=output.verbose)
    if fail_on and comparison.regressions(fail_on):
        raise typer.Exit(1)
