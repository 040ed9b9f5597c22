"""`attnscope report`: draw the page of a survey, a collapse or a decomposition into paths again, without torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from attnscope.core.errors import RefusalError


def report(
    survey: Annotated[
        Path, typer.Argument(help="A survey.json, collapse.json or paths.json, or the folder that holds one.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the page goes. Default: report.html, collapse.html or paths.html beside it.", metavar="FILE"
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
    """Draw the page of SURVEY again: of what a scan, `collapse` or `paths` wrote."""
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
    """The page of what `collapse` or `paths` wrote; False where it is neither."""
    for name in ("collapse", "paths"):
        path = given / f"{name}.json" if given.is_dir() and not (given / "survey.json").exists() else given
        if not _is(path, f"attnscope-{name}"):
            continue
        if more:
            raise RefusalError(f"'{path}' is no survey: --charts and --threshold are about surveys, leave them out.")
        _draw(name, path, path.with_suffix(".html") if out is None else out, as_json)
        return True
    return False


def _is(path: Path, kind: str) -> bool:
    """By its first characters: a survey can be large."""
    try:
        with path.open(encoding="utf-8") as file:
            return re.search(rf'"format"\s*:\s*"{kind}"', file.read(200)) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _draw(name: str, path: Path, out: Path, as_json: bool) -> None:
    from attnscope.cli.output import page_path, print_json

    page = page_path(out)
    if name == "collapse":
        from attnscope.records.collapse import Collapse
        from attnscope.reporting.terminal import print_record

        collapse = Collapse.load(path)
        collapse.write_page(page)
        if not as_json:
            print_record(collapse, files={"Page": page})
    else:
        from attnscope.records.paths import PathReport
        from attnscope.reporting.terminal import print_record

        report = PathReport.load(path)
        report.write_page(page)
        if not as_json:
            print_record(report, files={"Report": page})
    if as_json:
        print_json({"report": str(page)})
