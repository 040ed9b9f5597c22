"""`attnscope scan`: measure every layer and head of a model over a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import (
    AllowPickle,
    BatchSize,
    Bos,
    Corpus,
    Device,
    FailOn,
    Field,
    KeepText,
    LoadedDtype,
    Model,
    RandomInit,
    Threshold,
    TrustRemoteCode,
    Verbose,
    json_option,
    max_tokens_option,
    out_option,
    resume_option,
    samples_option,
    seed_option,
    severity_of,
)
from attnscope.core.visible import clean

if TYPE_CHECKING:
    from attnscope.core.finding import Finding
    from attnscope.core.progress import Listener
    from attnscope.records.survey.survey import Survey
    from attnscope.records.survey.thresholds import Thresholds

PARTIAL = "survey.partial.json"


def scan(
    model: Model,
    corpus: Corpus = None,
    out: Annotated[Path | None, out_option("survey.json and report.html", "MODEL")] = None,
    measures: Annotated[
        str, typer.Option(help="Sets (default, deep, all) and names, separated by commas.", metavar="LIST")
    ] = "default",
    samples: Annotated[int, samples_option()] = 64,
    max_tokens: Annotated[int | None, max_tokens_option("256, or what the model takes")] = None,
    batch_size: BatchSize = 8,
    seed: Annotated[int, seed_option("random weights and for drawing sequences")] = 0,
    dtype: LoadedDtype = "float32",
    device: Device = "cpu",
    field: Field = "text",
    bos: Bos = "auto",
    keep_text: KeepText = True,
    view: Annotated[
        bool,
        typer.Option("--view", help="Also write the attention of the sequences behind findings; the report links it."),
    ] = False,
    threshold: Threshold = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(help="Exit with code 1 when a finding is this severe or worse (for CI gates)."),
    ] = None,
    resume: Annotated[bool, resume_option("an interrupted scan in --out")] = False,
    random_init: RandomInit = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("the findings")] = False,
) -> None:
    """Look at every head of MODEL as it reads CORPUS, and say what is wrong; write a survey and its page."""
    from attnscope.cli.default_folder import model_folder
    from attnscope.cli.names import check_corpus, check_measures, check_model
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing
    from attnscope.records.survey.thresholds import Thresholds

    thresholds = Thresholds.parse(threshold or [])
    check_measures(measures)
    check_corpus(corpus)
    check_model(
        model, dtype=dtype, random_init=random_init, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    place = model_folder(model, random_init) if out is None else out
    earlier = None if resume else _state(place / PARTIAL)
    try:
        with output_folder(place) as folder, showing("sequences") as progress:
            if resume and _state(folder / PARTIAL) is None:
                _echo(f"there is no interrupted scan in {folder}: this one begins at the beginning.")
            if earlier is not None:  # it goes when the new scan has its model and its corpus, and not for a typo
                _echo(f"the interrupted scan in {folder} will be replaced; --resume would go on with it.")
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
                bos=bos,
                keep_text=keep_text,
                random_init=random_init,
                allow_pickle=allow_pickle,
                trust_remote_code=trust_remote_code,
                checkpoint=folder / PARTIAL,
                resume=resume,
                progress=progress,
            )
            survey.save(folder / "survey.json")
            views: tuple[int, ...] = ()
            if view:
                loading = (dtype, device, random_init, seed, allow_pickle, trust_remote_code)
                views = _views(model, survey, folder, thresholds, loading, progress)
            progress("drawing the report", 0, 0, 0)
            findings = _write(survey, folder, place, thresholds, views)
    except KeyboardInterrupt:  # the bar is gone by now, and the line is free
        _echo(f"interrupted; {_what_is_kept(_state(place / PARTIAL), earlier)}.")
        raise typer.Exit(130) from None
    _say(survey, findings, place, thresholds, as_json, verbose)
    if views:
        from attnscope.records.survey.evidence import view_name

        _echo(f"views: {', '.join(str(place / view_name(sample)) for sample in views)}")
    if fail_on and any(finding.at_least(severity_of(fail_on)) for finding in findings):
        raise typer.Exit(1)


def _state(path: Path) -> tuple[int, int] | None:
    """What tells a file from one that is written in its place; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _what_is_kept(now: tuple[int, int] | None, earlier: tuple[int, int] | None) -> str:
    if now is None:
        return "nothing was done yet"
    if now == earlier:
        return "nothing was done yet, and the scan that was interrupted before is still there"
    return "what is done is kept: run the same command with --resume"


def _echo(sentence: str) -> None:
    typer.echo(clean(f"attnscope: {sentence}"), err=True)


def _views(
    model: str,
    survey: Survey,
    folder: Path,
    thresholds: Thresholds,
    loading: tuple[Any, ...],
    progress: Listener,
) -> tuple[int, ...]:
    """The pages of the sequences that findings point at; a sequence that cannot be viewed is said and left out."""
    from attnscope.core.errors import RefusalError
    from attnscope.hf.loading.load import load_as
    from attnscope.hf.loading.options import Loading
    from attnscope.records.survey.diagnose import diagnose
    from attnscope.records.survey.evidence import samples_behind, view_name
    from attnscope.viewing.view import view as run_view

    wanted = [sample for sample in samples_behind(diagnose(survey, thresholds)) if sample in survey.sequences]
    if not wanted:
        return ()
    loaded = load_as(model, Loading(*loading))
    made = []
    for number, sample in enumerate(wanted):
        progress("viewing", number, len(wanted))
        try:
            run_view(loaded, survey=survey, sample=sample).write_page(folder / view_name(sample))
            made.append(sample)
        except RefusalError as refusal:
            _echo(f"sample {sample} has no view: {refusal}")
    return tuple(made)


def _write(
    survey: Survey, folder: Path, place: Path, thresholds: Thresholds, views: tuple[int, ...]
) -> tuple[Finding, ...]:
    from attnscope.records.survey.diagnose import diagnose

    findings = diagnose(survey, thresholds)
    survey.write_page(
        folder / "report.html",
        findings=findings,
        thresholds=thresholds,
        kept_in=str(place / "survey.json"),
        views=views,
    )
    (folder / PARTIAL).unlink(missing_ok=True)
    return findings


def _say(
    survey: Survey,
    findings: tuple[Finding, ...],
    folder: Path,
    thresholds: Thresholds,
    as_json: bool,
    verbose: bool,
) -> None:
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

        files = {"Report": folder / "report.html", "Survey": folder / "survey.json"}
        print_record(survey, files=files, findings=findings, thresholds=thresholds, verbose=verbose)
