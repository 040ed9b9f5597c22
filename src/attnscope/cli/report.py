"""`attnscope report`: draw the page of what any command wrote again, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import KeepText, Threshold, Verbose, json_option
from attnscope.core.errors import RefusalError

if TYPE_CHECKING:
    from attnscope.commands.scan.survey.survey import Survey
    from attnscope.reports.record import Record


def report(
    record: Annotated[
        Path,
        typer.Argument(
            help="What a command wrote (survey.json, collapse.json, paths.json, explanation.json, view.json, "
            "results.json, head.safetensors), or the folder that holds it.",
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
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("the findings")] = False,
) -> None:
    """Draw the page of FILE again, of whatever command wrote it; of a folder, the pages of all that it holds."""
    from attnscope.cli.output import page_path, print_json
    from attnscope.commands.load import files_of, load
    from attnscope.commands.scan.survey.survey import Survey

    files = files_of(record)
    if out is not None and len(files) > 1:
        names = " and ".join(file.name for file in files)
        raise RefusalError(f"{record} holds {names}, and --out names one page: name the file itself.")
    read = [load(file) for file in files]
    if (charts is not None or threshold) and not any(isinstance(one, Survey) for one in read):
        raise RefusalError(f"'{files[0]}' is no survey: --charts and --threshold are about surveys, leave them out.")
    said = []
    for file, one in zip(files, read, strict=True):
        page = file.with_name(one.page_name(file)) if out is None else page_path(out)
        if isinstance(one, Survey):
            said.append(_survey(one, file, page, charts, threshold or [], keep_text, as_json, verbose))
        else:
            said.append(_other(one, page, as_json, verbose))
    if as_json:
        print_json(said[0] if len(said) == 1 else said)


def _other(record: Record, page: Path, as_json: bool, verbose: bool) -> dict[str, Any]:
    """Write the page of a record; what is said as JSON is given back, and anything else is printed."""
    from attnscope.reports.terminal import print_record

    record.write_page(page)
    if not as_json:
        print_record(record, files={"Page": page}, verbose=verbose)
    return {"report": str(page), "sentences": list(record.sentences())}


def _survey(
    survey: Survey,
    file: Path,
    page: Path,
    charts: Path | None,
    settings: list[str],
    keep_text: bool,
    as_json: bool,
    verbose: bool,
) -> dict[str, Any]:
    from attnscope.commands.scan.diagnose import Thresholds, diagnose
    from attnscope.commands.scan.survey.provenance import view_name
    from attnscope.reports.terminal import print_record

    thresholds = Thresholds.parse(settings)
    findings = diagnose(survey, thresholds)
    views = [sample for sample in survey.sequences if page.with_name(view_name(sample)).is_file()]
    survey.write_page(
        page, findings=findings, thresholds=thresholds, keep_text=keep_text, kept_in=str(file), views=views
    )
    if charts is not None:
        from attnscope.commands.scan.chart import write_gallery

        write_gallery(survey, charts, findings=findings)
    if not as_json:
        files = {"Report": page, "Charts": charts}
        print_record(survey, files=files, findings=findings, thresholds=thresholds, verbose=verbose)
    return {"report": str(page), "findings": [finding.to_json() for finding in findings]}
