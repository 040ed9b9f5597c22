"""`attnscope scan`: measure every block and head of a model over a corpus."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.help import in_flags
from attnscope.cli.options import (
    KeepText,
    Model,
    ScanCorpus,
    Threshold,
    json_option,
    max_tokens_option,
    out_option,
    resume_option,
    seed_option,
    with_requests,
)
from attnscope.cli.output import print_json, say
from attnscope.cli.runner import Output, Run, running
from attnscope.core.errors import RefusalError
from attnscope.core.finding import Severity
from attnscope.core.locks import refuse_in_use
from attnscope.core.words import clean
from attnscope.engine.crew import Workers, part
from attnscope.hf.loading.options import Loading, Sampling, ScanOptions

if TYPE_CHECKING:
    from attnscope.commands.scan.diagnose import Thresholds
    from attnscope.commands.scan.survey.survey import Survey
    from attnscope.core.finding import Finding

PARTIAL, SHARDS = "survey.partial.json", "survey.partial.shards"
LOCK = "survey.lock"  # held by whatever writes survey.json
Gate = Annotated[
    Severity | None, typer.Option(help="Exit with code 1 if a finding has at least this severity (for CI).")
]


@with_requests(
    ScanOptions,
    max_tokens=max_tokens_option("256, or the model's maximum length if that is shorter"),
    seed=seed_option("random weights and for drawing sequences"),
    workers=typer.Option(
        help="Processes that share the work, each with its own copy of the model; or tasks of --engine ray."
    ),
    engine=typer.Option(help="local, or ray for a cluster."),
    address=typer.Option(help="Address of the Ray cluster. Default: start one here."),
    gpus_per_worker=typer.Option(help="GPUs of each Ray task, such as 0.5."),
    out=out_option("survey.json and report.html", "MODEL"),
    as_json=json_option("the findings"),
)
def scan(
    model: Model,
    corpus: ScanCorpus = None,
    measures: Annotated[
        str, typer.Option(help="Sets (default, deep, all) and names, separated by commas.", metavar="LIST")
    ] = "default",
    sampling: Sampling = Sampling(samples=64),
    loading: Loading = Loading(),
    keep_text: KeepText = True,
    view: Annotated[
        bool,
        typer.Option(
            "--view", help="Also write a view of each sequence that a finding refers to; the report links to it."
        ),
    ] = False,
    threshold: Threshold = None,
    fail_on: Gate = None,
    resume: Annotated[bool, resume_option("an interrupted scan in --out")] = False,
    team: Workers = Workers(),
    store: Annotated[
        str | None,
        typer.Option(
            help="Folder or URL for finished shards; shards that are already there are not computed again.",
            metavar="FOLDER|URL",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            help="Compute only part I of N (3/64 is the third of 64) into --store; env takes I and N from the "
            "environment variables of a batch system.",
            metavar="I/N|env",
        ),
    ] = None,
    output: Output = Output(),
) -> None:
    """Measure every block and head of MODEL while it reads CORPUS; write the numbers to a survey and what is wrong to a
    page."""
    from attnscope.cli.files import model_folder
    from attnscope.cli.options import check_corpus, check_measures, check_model
    from attnscope.commands.scan.diagnose import Thresholds
    from attnscope.commands.scan.survey.shards import remove_store
    from attnscope.hf.loading.options import read_device_map

    thresholds = Thresholds.parse(threshold or [])
    check_measures(measures)
    check_corpus(corpus, drawn=True)
    if loading.device_map is not None:
        read_device_map(loading.device_map)
    check_model(model, loading)
    folder = output.out or model_folder(model, loading.random_init)
    if shard is not None:
        part(shard)
        _refuse_what_parts_lack(store, view, fail_on, output.out)
        folder = Path()
    else:
        refuse_in_use(folder, LOCK)
    earlier = None if resume else _unfinished(folder)
    if resume and _unfinished(folder) is None and store is None:
        say(f"there is no interrupted scan in {folder}: starting a new one.")
    # removed once the new scan has loaded its model and corpus, so that a typo does not lose it
    if earlier is not None:
        say(f"the interrupted scan in {folder} will be replaced; --resume would continue it.")

    def kept() -> str:
        return f"interrupted; {_what_is_kept(_unfinished(folder), earlier, store)}"

    with running(output, folder, counted="sequences", kept=kept, lock=LOCK if shard is None else None) as run:
        from attnscope.commands.scan.run import scan as twin

        survey = twin(
            model,
            corpus,
            measures=measures,
            loading=loading,
            sampling=sampling,
            keep_text=keep_text,
            checkpoint=folder / PARTIAL if shard is None else None,
            resume=resume,
            team=team,
            store=store,
            shard=shard,
            progress=run.progress,
        )
        if shard is not None:
            _tell_part(survey, shard, str(store), output.as_json)
            return
        survey.save(folder / "survey.json")
        views = _views(run, model, survey, thresholds, loading) if view else ()
        findings = write_report(run, survey, thresholds, views)
        (folder / PARTIAL).unlink(missing_ok=True)
        remove_store(folder / SHARDS)
    if views:
        from attnscope.commands.scan.survey.provenance import view_name

        say(f"views: {', '.join(str(folder / view_name(sample)) for sample in views)}")
    tell_survey(run, survey, findings, thresholds, fail_on)


def _unfinished(folder: Path) -> tuple[int, ...] | None:
    """Return the inode and mtime of an unfinished scan, or None."""
    from attnscope.commands.scan.survey.shards import PLAN

    stats: list[int] = []
    for path in (folder / PARTIAL, folder / SHARDS / PLAN, folder / SHARDS):
        with contextlib.suppress(OSError):
            stats += [(there := path.stat()).st_ino, there.st_mtime_ns]
    return tuple(stats) or None


def _what_is_kept(now: tuple[int, ...] | None, earlier: tuple[int, ...] | None, store: str | None) -> str:
    if store is not None:
        return f"finished shards are kept in {store}: run the same command again"
    if now is None:
        return "nothing was done yet"
    if now == earlier:
        return "nothing was done yet, and the earlier interrupted scan is kept"
    return "finished shards are kept: run the same command with --resume"


def _refuse_what_parts_lack(store: str | None, view: bool, fail_on: Severity | None, out: Path | None) -> None:
    if store is None:
        raise RefusalError("The parts of a job array are collected in a store: name its folder with --store.")
    if view or fail_on or out is not None:
        raise RefusalError(
            "A part of a job array writes shards into --store and nothing else: leave --out, --view and --fail-on to "
            "`attnscope merge`."
        )


def _tell_part(survey: Survey, shard: str, store: str, as_json: bool) -> None:
    read, which = survey.provenance["corpus"], str(part(shard))  # the part that `env` means
    if as_json:
        print_json({"store": store, "shard": which, "sequences": read["sequences"], "tokens": read["tokens"]})
    else:
        done = f"is in {store}: {read['sequences']:,} sequences, {read['tokens']:,} tokens"
        if not read["sequences"]:
            done = f"has nothing to do: there are fewer shards than parts in {store}"
        typer.echo(clean(f"Part {which} {done}. When all parts are done: attnscope merge {store} --out FOLDER"))


def _views(run: Run, model: str, survey: Survey, thresholds: Thresholds, loading: Loading) -> tuple[int, ...]:
    """Write a view of each sequence that findings refer to; say which cannot be viewed."""
    from attnscope.commands.scan.diagnose import diagnose
    from attnscope.commands.scan.survey.provenance import samples_behind, view_name
    from attnscope.commands.view.run import view
    from attnscope.hf.loading.load import load

    wanted = [sample for sample in samples_behind(diagnose(survey, thresholds)) if sample in survey.sequences]
    if not wanted:
        return ()
    loaded = load(model, loading=loading)
    made = []
    for number, sample in enumerate(wanted):
        run.progress("viewing", number, len(wanted))
        try:
            view(loaded, survey=survey, sample=sample).write_page(run.folder / view_name(sample))
            made.append(sample)
        except RefusalError as refusal:
            say(f"sample {sample} has no view: {in_flags(refusal.sentence)}")
    return tuple(made)


def write_report(run: Run, survey: Survey, thresholds: Thresholds, views: tuple[int, ...] = ()) -> tuple[Finding, ...]:
    """Draw the page of the survey saved in the run's folder; return its findings."""
    from attnscope.commands.scan.diagnose import diagnose

    run.progress("drawing the report", 0, 0)
    findings = diagnose(survey, thresholds)
    run.files = {"Report": run.folder / "report.html", "Survey": run.folder / "survey.json"}
    page: dict[str, Any] = {"findings": findings, "thresholds": thresholds, "views": views}
    survey.write_page(run.folder / "report.html", kept_in=str(run.folder / "survey.json"), **page)
    return findings


def tell_survey(
    run: Run, survey: Survey, findings: tuple[Finding, ...], thresholds: Thresholds, fail_on: Severity | None
) -> None:
    """Print the findings of a survey, and exit with code 1 if one is as severe as `fail_on`."""

    def printed(files: dict[str, str | None]) -> dict[str, Any]:
        files.pop("chart")
        return files | {"provenance": survey.provenance, "findings": [finding.to_json() for finding in findings]}

    run.tell(survey, printed=printed, findings=findings, thresholds=thresholds)
    if fail_on and any(finding.at_least(fail_on) for finding in findings):
        raise typer.Exit(1)
