"""`attnscope report`: draw the page of a survey, a collapse, paths or a reproduction again, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.core.errors import RefusalError

PAGES = {"collapse": "collapse.html", "paths": "paths.html", "reproduction": "page.html"}


def report(
    survey: Annotated[
        Path, typer.Argument(help="A survey.json, collapse.json, paths.json or results.json, or the folder of one.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the page goes. Default: beside it, called as the command that wrote it calls its page.",
            metavar="FILE",
        ),
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
    """Draw the page of SURVEY again: of what a scan, `collapse`, `paths` or `reproduce` wrote."""
    from attnscope.cli.output import page_path, print_json, survey_path

    if _other_page(survey, out, charts is not None or bool(threshold), as_json):
        return
    from attnscope.records.survey.diagnose import diagnose
    from attnscope.records.survey.survey import Survey
    from attnscope.records.survey.thresholds import Thresholds
    from attnscope.reporting.survey.page import write_report
    from attnscope.reporting.survey.terminal import print_summary

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


def _other_page(given: Path, out: Path | None, more: bool, as_json: bool) -> bool:
    """The page of what `collapse`, `paths` or `reproduce` wrote; False where it is none of them."""
    from attnscope.records.load import KINDS
    from attnscope.reporting.report import kind_of

    kind = kind_of(given)
    if kind not in PAGES:
        return False
    path = given / KINDS[kind][1] if given.is_dir() else given
    if more:
        raise RefusalError(f"'{path}' is no survey: --charts and --threshold are about surveys, leave them out.")
    _draw(kind, path, path.with_name(PAGES[kind]) if out is None else out, as_json)
    return True


def _draw(name: str, path: Path, out: Path, as_json: bool) -> None:
    from attnscope.cli.output import page_path, print_json

    page = page_path(out)
    if name != "paths":
        from attnscope.records.load import load
        from attnscope.reporting.terminal import print_record

        record = load(path)
        record.write_page(page)
        if not as_json:
            print_record(record, files={"Page": page})
    else:
        from attnscope.records.paths import PathReport
        from attnscope.reporting.paths.terminal import print_paths

        report = PathReport.load(path)
        report.write_page(page)
        if not as_json:
            print_paths(report.to_json(), page)
    if as_json:
        print_json({"report": str(page)})
