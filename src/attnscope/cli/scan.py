"""`attnscope scan`: measure every layer and head of a model over a corpus."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import (
    AllowPickle,
    BatchSize,
    Bos,
    Device,
    DeviceMap,
    Field,
    KeepText,
    LoadedDtype,
    Model,
    RandomInit,
    ScanCorpus,
    StreamWeights,
    Threshold,
    TrustRemoteCode,
    Verbose,
    json_option,
    max_tokens_option,
    out_option,
    resume_option,
    samples_option,
    seed_option,
)
from attnscope.core.errors import RefusalError
from attnscope.core.finding import Severity
from attnscope.core.words import clean

if TYPE_CHECKING:
    from attnscope.commands.scan.diagnose import Thresholds
    from attnscope.commands.scan.survey.survey import Survey
    from attnscope.core.finding import Finding
    from attnscope.core.progress import Listener

PARTIAL, SHARDS = "survey.partial.json", "survey.partial.shards"


def scan(
    model: Model,
    corpus: ScanCorpus = None,
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
    device_map: DeviceMap = None,
    stream_weights: StreamWeights = False,
    field: Field = "text",
    bos: Bos = "auto",
    keep_text: KeepText = True,
    view: Annotated[
        bool,
        typer.Option("--view", help="Also write the attention of the sequences behind findings; the report links it."),
    ] = False,
    threshold: Threshold = None,
    fail_on: Annotated[
        Severity | None,
        typer.Option(help="Exit with code 1 when a finding is this severe or worse (for CI gates)."),
    ] = None,
    resume: Annotated[bool, resume_option("an interrupted scan in --out")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Processes that share the work, each with the model; or tasks of --engine ray.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="Folder or address where finished shards gather; those there are not done again.", metavar="S"
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(help="Do part i of n (3/64, or env: from the environment) into --store.", metavar="I/N"),
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster. Default: a new one here.")] = None,
    gpus_per_worker: Annotated[float, typer.Option(help="GPUs of each Ray task, such as 0.5.")] = 0.0,
    random_init: RandomInit = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("the findings")] = False,
) -> None:
    """Look at every head of MODEL as it reads CORPUS, and say what is wrong; write a survey and its page."""
    from attnscope.cli.files import model_folder
    from attnscope.cli.options import check_corpus, check_device_map, check_measures, check_model
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing
    from attnscope.commands.scan.diagnose import Thresholds
    from attnscope.commands.scan.survey.shards import remove_store

    thresholds = Thresholds.parse(threshold or [])
    check_measures(measures)
    check_corpus(corpus, drawn=True)
    check_device_map(device_map)
    check_model(
        model, dtype=dtype, random_init=random_init, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    place = model_folder(model, random_init) if out is None else out
    if shard is not None:
        _refuse_what_parts_lack(store, view, fail_on, out)
        place = Path()
    earlier = None if resume else _state(place)
    try:
        with output_folder(place) as folder, showing("sequences") as progress:
            if resume and _state(folder) is None and store is None:
                _echo(f"there is no interrupted scan in {folder}: this one begins at the beginning.")
            if earlier is not None:  # it goes when the new scan has its model and its corpus, and not for a typo
                _echo(f"the interrupted scan in {folder} will be replaced; --resume would go on with it.")
            progress("loading", 0, 0, 0)  # torch and transformers take seconds to import: say so first
            from attnscope.commands.scan.run import scan as run_scan

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
                device_map=device_map,
                stream_weights=stream_weights,
                field=field,
                bos=bos,
                keep_text=keep_text,
                random_init=random_init,
                allow_pickle=allow_pickle,
                trust_remote_code=trust_remote_code,
                checkpoint=folder / PARTIAL if shard is None else None,
                resume=resume,
                workers=workers,
                store=store,
                shard=shard,
                engine=engine,
                address=address,
                gpus_per_worker=gpus_per_worker,
                progress=progress,
            )
            if shard is not None:
                _say_part(survey, shard, str(store), as_json)
                return
            survey.save(folder / "survey.json")
            views: tuple[int, ...] = ()
            if view:
                loading = (dtype, device, random_init, seed, allow_pickle, trust_remote_code)
                spread = (None, device_map, stream_weights)
                views = _views(model, survey, folder, thresholds, (*loading, *spread), progress)
            progress("drawing the report", 0, 0, 0)
            findings = write(survey, folder, place, thresholds, views)
            (folder / PARTIAL).unlink(missing_ok=True)
            remove_store(folder / SHARDS)
    except KeyboardInterrupt:  # the bar is gone by now, and the line is free
        _echo(f"interrupted; {_what_is_kept(_state(place), earlier, store)}.")
        raise typer.Exit(130) from None
    say(survey, findings, place, thresholds, as_json, verbose)
    if views:
        from attnscope.commands.scan.survey.provenance import view_name

        _echo(f"views: {', '.join(str(place / view_name(sample)) for sample in views)}")
    if fail_on and any(finding.at_least(fail_on) for finding in findings):
        raise typer.Exit(1)


def _state(folder: Path) -> tuple[int, ...] | None:
    """What tells unfinished work from what is done in its place; None where there is none."""
    from attnscope.commands.scan.survey.shards import PLAN

    found: list[int] = []
    for path in (folder / PARTIAL, folder / SHARDS / PLAN, folder / SHARDS):
        with contextlib.suppress(OSError):
            found += [(there := path.stat()).st_ino, there.st_mtime_ns]
    return tuple(found) or None


def _what_is_kept(now: tuple[int, ...] | None, earlier: tuple[int, ...] | None, store: str | None) -> str:
    if store is not None:
        return f"finished shards are kept in {store}: run the same command again"
    if now is None:
        return "nothing was done yet"
    if now == earlier:
        return "nothing was done yet, and the scan that was interrupted before is still there"
    return "what is done is kept: run the same command with --resume"


def _refuse_what_parts_lack(store: str | None, view: bool, fail_on: Severity | None, out: Path | None) -> None:
    if store is None:
        raise RefusalError("The parts of a job array meet in a store: name its folder with --store.")
    if view or fail_on or out is not None:
        raise RefusalError(
            "A part of a job array writes shards into --store and nothing else: leave --out, --view and --fail-on to "
            "`attnscope merge`."
        )


def _say_part(survey: Survey, shard: str, store: str, as_json: bool) -> None:
    from attnscope.engine.crew import part

    read, which = survey.provenance["corpus"], str(part(shard))  # what `env` stood for
    if as_json:
        from attnscope.cli.output import print_json

        print_json({"store": store, "shard": which, "sequences": read["sequences"], "tokens": read["tokens"]})
    else:
        done = f"is in {store}: {read['sequences']:,} sequences, {read['tokens']:,} tokens"
        if not read["sequences"]:
            done = f"has nothing to do: there are fewer shards than parts in {store}"
        typer.echo(clean(f"Part {which} {done}. When all parts are done: attnscope merge {store} --out FOLDER"))


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
    from attnscope.commands.scan.diagnose import diagnose
    from attnscope.commands.scan.survey.provenance import samples_behind, view_name
    from attnscope.commands.view.run import view as run_view
    from attnscope.hf.loading.load import load_as
    from attnscope.hf.loading.options import Loading

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


def write(
    survey: Survey, folder: Path, place: Path, thresholds: Thresholds, views: tuple[int, ...] = ()
) -> tuple[Finding, ...]:
    from attnscope.commands.scan.diagnose import diagnose

    findings = diagnose(survey, thresholds)
    survey.write_page(
        folder / "report.html",
        findings=findings,
        thresholds=thresholds,
        kept_in=str(place / "survey.json"),
        views=views,
    )
    return findings


def say(
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
        from attnscope.reports.terminal import print_record

        files = {"Report": folder / "report.html", "Survey": folder / "survey.json"}
        print_record(survey, files=files, findings=findings, thresholds=thresholds, verbose=verbose)
