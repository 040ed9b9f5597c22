"""`attnscope merge`: merge the shards of a store, or several surveys, into one survey."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli.options import Threshold, json_option, out_option, with_requests
from attnscope.cli.runner import Output, running
from attnscope.cli.scan import LOCK, Gate, tell_survey, write_report


@with_requests(out=out_option("survey.json and report.html", "merged"), as_json=json_option("the findings"))
def merge(
    parts: Annotated[
        list[str],
        typer.Argument(help="A store of shards (folder or address), shard files, or surveys.", metavar="PART"),
    ],
    partial: Annotated[
        bool, typer.Option("--partial", help="Merge the shards that exist; the survey says which are missing.")
    ] = False,
    threshold: Threshold = None,
    fail_on: Gate = None,
    output: Output = Output(),
) -> None:
    """Merge the shards that a job array or a cluster wrote, or several surveys, into one survey and its page."""
    from attnscope.commands.scan.diagnose import Thresholds
    from attnscope.commands.scan.survey.merge import merge as twin

    thresholds = Thresholds.parse(threshold or [])
    with running(output, output.out or Path("attnscope-merged"), "the merge", lock=LOCK) as run:
        survey = twin(parts, partial=partial, progress=run.progress)
        survey.save(run.folder / "survey.json")
        findings = write_report(run, survey, thresholds)
    tell_survey(run, survey, findings, thresholds, fail_on)
