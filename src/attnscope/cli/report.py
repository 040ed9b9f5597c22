"""`attnscope report`: draw the report of a survey again, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    survey: Annotated[Path, typer.Argument(help="A survey.json, or the folder a scan wrote.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Where the page goes. Default: report.html beside the survey.", metavar="FILE"),
    ] = None,
    charts: Annotated[
        Path | None,
        typer.Option(help="Also write every chart into this folder, as PNG, SVG and specification.", metavar="FOLDER"),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(help="Change a threshold of the findings; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON, and nothing else.")] = False,
) -> None:
    """Draw the report of SURVEY again."""
    from attnscope.cli.output import page_path, print_json, survey_path
    from attnscope.pages.html import write_report
    from attnscope.pages.terminal import print_summary
    from attnscope.survey.diagnose import diagnose
    from attnscope.survey.survey import Survey
    from attnscope.survey.thresholds import Thresholds

    path = survey_path(survey)
    thresholds = Thresholds.parse(threshold or [])
    read = Survey.load(path)
    findings = diagnose(read, thresholds)
    page = path.with_name("report.html") if out is None else page_path(out)
    write_report(read, page, thresholds=thresholds)
    if charts is not None:
        from attnscope.charts.gallery import write_gallery

        write_gallery(read, charts, findings=findings)
    if as_json:
        print_json({"report": str(page), "findings": [finding.to_json() for finding in findings]})
    else:
        print_summary(read, findings, report=page, thresholds=thresholds)
