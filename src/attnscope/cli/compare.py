"""`attnscope compare`: two surveys side by side, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    a: Annotated[Path, typer.Argument(help="A survey.json, or the folder a scan wrote.")],
    b: Annotated[Path, typer.Argument(help="The one to set beside it.")],
    out: Annotated[Path | None, typer.Option(help="Also write a page with both.", metavar="FILE")] = None,
    threshold: Annotated[
        list[str] | None, typer.Option(help="Change a threshold of the findings; repeatable.", metavar="NAME=VALUE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON, and nothing else.")] = False,
) -> None:
    """Set survey A beside survey B: checkpoints, variants, models."""
    from attnscope.cli.output import page_path, print_json, survey_path
    from attnscope.records.comparison import compare as compare_surveys
    from attnscope.records.survey.survey import Survey
    from attnscope.records.survey.thresholds import Thresholds
    from attnscope.reporting.survey.page import write_report
    from attnscope.reporting.survey.terminal import print_comparison

    thresholds = Thresholds.parse(threshold or [])
    first, second = Survey.load(survey_path(a)), Survey.load(survey_path(b))
    comparison = compare_surveys(first, second, thresholds)
    if out is not None:
        write_report(first, page_path(out), other=second, thresholds=thresholds)
    if as_json:
        print_json(comparison.to_json())
    else:
        print_comparison(comparison, report=out)
