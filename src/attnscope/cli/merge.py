"""`attnscope merge`: the shards of a store, or several surveys, made one survey."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli.options import Threshold, Verbose, json_option, out_option
from attnscope.core.finding import Severity


def merge(
    parts: Annotated[
        list[str],
        typer.Argument(help="A store of shards (folder or address), shard files, or surveys.", metavar="PART..."),
    ],
    out: Annotated[Path | None, out_option("survey.json and report.html", "merged")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Take the shards that are there; the survey says which are not.")
    ] = False,
    threshold: Threshold = None,
    fail_on: Annotated[
        Severity | None, typer.Option(help="Exit with code 1 when a finding is this severe or worse (for CI gates).")
    ] = None,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("the findings")] = False,
) -> None:
    """Make one survey and its page of the shards that a job array or a cluster wrote, or of several surveys."""
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing
    from attnscope.cli.scan import say, write
    from attnscope.commands.scan.diagnose import Thresholds
    from attnscope.commands.scan.survey.merge import merge as run_merge

    thresholds = Thresholds.parse(threshold or [])
    place = Path("attnscope-merged") if out is None else out
    with output_folder(place) as folder, showing() as progress:
        survey = run_merge(parts, partial=partial, progress=progress)
        survey.save(folder / "survey.json")
        findings = write(survey, folder, place, thresholds)
    say(survey, findings, place, thresholds, as_json, verbose)
    if fail_on and any(finding.at_least(fail_on) for finding in findings):
        raise typer.Exit(1)
