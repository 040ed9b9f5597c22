"""`attnscope report`: draw the page of what any command wrote again, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli.options import KeepText, Threshold, json_option
from attnscope.core.errors import RefusalError

if TYPE_CHECKING:
    from attnscope.records.survey.survey import Survey


def report(
    record: Annotated[
        Path,
        typer.Argument(
            help="What a command wrote (survey.json, collapse.json, paths.json, results.json, ...), or "
            "the folder that holds it.",
            metavar="FILE",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the page goes. Default: beside the file, named as the command names it.",
            metavar="FILE",
        ),
    ] = None,
    charts: Annotated[
        Path | None,
        typer.Option(help="Also write every chart into this folder, as PNG, SVG and specification.", metavar="FOLDER"),
    ] = None,
    threshold: Threshold = None,
    keep_text: KeepText = True,
    as_json: Annotated[bool, json_option("the findings")] = False,
) -> None:
    """Draw the page of FILE again: of what scan, compare, collapse, paths, compile, capacity or reproduce wrote."""
    from attnscope.cli.output import page_path, print_json
    from attnscope.records.load import file_of, load
    from attnscope.records.survey.survey import Survey
    from attnscope.reporting.terminal import print_record

    file = file_of(record)
    read = load(file)
    if isinstance(read, Survey):
        _report_survey(read, file, out, charts, threshold or [], keep_text, as_json)
        return
    if charts is not None or threshold:
        raise RefusalError(f"'{file}' is no survey: --charts and --threshold are about surveys, leave them out.")
    page = read.write_page(file.with_name(read.page_name(file)) if out is None else page_path(out))
    if as_json:
        print_json({"report": str(page), "sentences": list(read.sentences())})
    else:
        print_record(read, files={"Page": page})


def _report_survey(
    survey: Survey,
    file: Path,
    out: Path | None,
    charts: Path | None,
    settings: list[str],
    keep_text: bool,
    as_json: bool,
) -> None:
    from attnscope.cli.output import page_path, print_json
    from attnscope.records.survey.diagnose import diagnose
    from attnscope.records.survey.thresholds import Thresholds
    from attnscope.reporting.terminal import print_record

    thresholds = Thresholds.parse(settings)
    findings = diagnose(survey, thresholds)
    page = file.with_name(survey.page_name(file)) if out is None else page_path(out)
    survey.write_page(page, findings=findings, thresholds=thresholds, text=keep_text)
    if charts is not None:
        from attnscope.charts.gallery import write_gallery

        write_gallery(survey, charts, findings=findings)
    if as_json:
        print_json({"report": str(page), "findings": [finding.to_json() for finding in findings]})
    else:
        print_record(survey, files={"Report": page}, findings=findings, thresholds=thresholds)
