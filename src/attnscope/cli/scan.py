"""`attnscope scan`: measure every layer and head of a model over a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from attnscope.cli.options import AllowPickle, Device, RandomInit, TrustRemoteCode

if TYPE_CHECKING:
    from attnscope.core.finding import Finding
    from attnscope.records.survey.survey import Survey
    from attnscope.records.survey.thresholds import Thresholds

PARTIAL = "survey.partial.json"

FailOn = Literal["info", "warning", "critical"]


def scan(
    model: Annotated[
        str,
        typer.Argument(
            help="'pocket' (embedded), a model folder, a hub name, a .gguf file, or a config with --random-init."
        ),
    ],
    corpus: Annotated[
        str | None,
        typer.Argument(
            help="Text: a .txt, .jsonl, .gz or .parquet file, a folder, or - for standard input. "
            "Default: a public-domain text inside the package."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for survey.json and report.html. Default: attnscope-MODEL.", metavar="FOLDER"),
    ] = None,
    measures: Annotated[
        str, typer.Option(help="Sets (default, deep, all) and names, separated by commas.", metavar="LIST")
    ] = "default",
    samples: Annotated[int, typer.Option(help="Sequences to scan, at most.", min=1)] = 64,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens in a sequence, at most. Default: 256, or what the model takes.", min=2),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Sequences in a batch; halves itself when memory runs out.", min=1)
    ] = 8,
    seed: Annotated[int, typer.Option(help="For random weights and for drawing sequences.")] = 0,
    dtype: Annotated[
        str, typer.Option(help="float32, float64, bfloat16, float16, or auto for the stored one.")
    ] = "float32",
    device: Device = "cpu",
    field: Annotated[str, typer.Option(help="The text field of .jsonl and .parquet corpora.")] = "text",
    threshold: Annotated[
        list[str] | None,
        typer.Option(help="Change a threshold of the findings; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(help="Exit with code 1 when a finding is this severe or worse (for CI gates)."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted scan in --out.")] = False,
    random_init: RandomInit = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON on standard output, and nothing else.")
    ] = False,
) -> None:
    """Measure every layer and head of MODEL over CORPUS; write a survey and an HTML report."""
    from attnscope.cli.output import folder_for, output_folder
    from attnscope.cli.progress import reporting
    from attnscope.records.survey.thresholds import Thresholds

    thresholds = Thresholds.parse(threshold or [])
    place = folder_for(model, random_init) if out is None else out
    try:
        with output_folder(place) as folder, reporting() as progress:
            if not resume:
                (folder / PARTIAL).unlink(missing_ok=True)  # of an earlier scan: not what this one did
            progress("loading", 0, 0, 0)  # torch and transformers take seconds to import: say so first
            from attnscope.scanning.scan import scan as run_scan

            survey = run_scan(
                model,
                corpus,
                measures=measures,
                samples=samples,
                max_tokens=max_tokens,
                batch_size=batch_size,
                seed=seed,
                dtype=dtype,
                device=device,
                field=field,
                random_init=random_init,
                allow_pickle=allow_pickle,
                trust_remote_code=trust_remote_code,
                checkpoint=folder / PARTIAL,
                resume=resume,
                progress=progress,
            )
            progress("drawing the report", 0, 0, 0)
            findings = _write(survey, folder, thresholds)
    except KeyboardInterrupt:  # the bar is gone by now, and the line is free
        kept = (place / PARTIAL).exists()
        hint = "what is done is kept: run the same command with --resume" if kept else "nothing was done yet"
        typer.echo(f"attnscope: interrupted; {hint}.", err=True)
        raise typer.Exit(130) from None
    _say(survey, findings, place, thresholds, as_json)
    if fail_on and any(finding.at_least(fail_on) for finding in findings):
        raise typer.Exit(1)


def _write(survey: Survey, folder: Path, thresholds: Thresholds) -> tuple[Finding, ...]:
    from attnscope.records.survey.diagnose import diagnose

    survey.save(folder / "survey.json")
    findings = diagnose(survey, thresholds)
    survey.write_page(folder / "report.html", findings=findings, thresholds=thresholds)
    (folder / PARTIAL).unlink(missing_ok=True)
    return findings


def _say(survey: Survey, findings: tuple[Finding, ...], folder: Path, thresholds: Thresholds, as_json: bool) -> None:
    if as_json:
        from attnscope.cli.output import print_json

        print_json(
            {
                "survey": str(folder / "survey.json"),
                "report": str(folder / "report.html"),
                "provenance": survey.provenance,
                "findings": [finding.to_json() for finding in findings],
            }
        )
    else:
        from attnscope.reporting.terminal import print_record

        print_record(survey, files={"Report": folder / "report.html"}, findings=findings, thresholds=thresholds)
