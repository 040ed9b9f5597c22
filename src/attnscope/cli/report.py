"""`attnscope report`: draw the page of any record again, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnscope.cli.options import KeepText, Threshold, json_option, with_requests
from attnscope.cli.output import page_path, print_json
from attnscope.cli.runner import Output
from attnscope.core.errors import RefusalError


@with_requests(
    out=typer.Option(
        help="File for the page. Default: the name that the command uses, beside the record.", metavar="FILE"
    ),
    as_json=json_option("the findings"),
)
def report(
    record: Annotated[
        Path,
        typer.Argument(
            help="A record that any command wrote (survey.json, collapse.json, paths-TEXT.json, "
            "explanation-TEXT.json, view-TEXT.json, treatment.json, capacity.json, timeline.json, "
            "results.json, head.safetensors, ...), or the folder that holds it.",
            metavar="FILE",
        ),
    ],
    charts: Annotated[
        Path | None,
        typer.Option(help="Also write every chart into this folder, as PNG, SVG and specification.", metavar="FOLDER"),
    ] = None,
    threshold: Threshold = None,
    keep_text: KeepText = True,
    output: Output = Output(),
) -> None:
    """Draw the page of the record FILE again; for a folder, the pages of all its records."""
    from attnscope.commands.records import files_of, load
    from attnscope.commands.scan.chart import write_gallery
    from attnscope.commands.scan.diagnose import Thresholds, diagnose
    from attnscope.commands.scan.survey.provenance import view_name
    from attnscope.commands.scan.survey.survey import Survey
    from attnscope.reports.terminal import print_record

    files = files_of(record)
    if output.out is not None and len(files) > 1:
        names = " and ".join(file.name for file in files)
        raise RefusalError(f"{record} holds {names}, but --out names one page: name one of these files.")
    records = [load(file) for file in files]
    if (charts is not None or threshold) and not any(isinstance(read, Survey) for read in records):
        raise RefusalError(f"'{files[0]}' is not a survey: leave out --charts and --threshold, which are for surveys.")
    thresholds = Thresholds.parse(threshold or [])
    printed: list[dict[str, Any]] = []
    for file, read in zip(files, records, strict=True):
        page = file.with_name(read.page_name(file)) if output.out is None else page_path(output.out)
        written: dict[str, Path | None] = {"Page": page}
        options: dict[str, Any] = {}
        if isinstance(read, Survey):
            findings = diagnose(read, thresholds)
            options = {"findings": findings, "thresholds": thresholds}
            views = [sample for sample in read.sequences if page.with_name(view_name(sample)).is_file()]
            read.write_page(page, keep_text=keep_text, kept_in=str(file), views=views, **options)
            if charts is not None:
                write_gallery(read, charts, findings=findings)
            written = {"Report": page, "Charts": charts}
            printed.append({"report": str(page), "findings": [finding.to_json() for finding in findings]})
        else:
            read.write_page(page)
            printed.append({"report": str(page), "sentences": list(read.sentences())})
        if not output.as_json:
            print_record(read, files=written, verbose=output.verbose, **options)
    if output.as_json:
        print_json(printed[0] if len(printed) == 1 else printed)
