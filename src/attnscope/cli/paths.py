"""`attnscope paths`: what paths of each length contribute to what a model says, and what every head is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnscope.cli.options import (
    AllowPickle,
    Bos,
    Device,
    Model,
    RandomInit,
    TrustRemoteCode,
    Verbose,
    chart_option,
    json_option,
    out_option,
    resume_option,
    seed_option,
    stack_option,
)

# `attnscope paths MODEL prompts.jsonl`: which heads carry a task, with error bars over its prompts.

TASK_DATA, TASK_PAGE, PARTIAL = "task_paths.json", "task_paths.html", "task_paths.partial.jsonl"


def is_task(text: str) -> bool:
    """Whether a file of prompts is named: JSON lines, by their ending."""
    from attnscope.data.prompts import SUFFIXES

    return "\n" not in text and text.lower().endswith(SUFFIXES)


def task_paths(
    model: str,
    prompts: str,
    *,
    resume: bool,
    place: Path,
    chart: Path | None,
    as_json: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Values over all prompts; what is done is kept from prompt to prompt."""
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing
    from attnscope.core.words import clean
    from attnscope.data.prompts import prompts as read_prompts

    task = read_prompts(prompts)
    partial = place / PARTIAL
    try:
        with output_folder(place) as folder, showing("prompts") as progress:
            if resume and not partial.exists():
                _echo(f"there is no interrupted run over prompts in {folder}: this one begins at the beginning.")
            if not resume and partial.exists():
                _echo(f"the interrupted run in {folder} will be replaced; --resume would go on with it.")
            progress("loading", 0, 0)
            from attnscope.commands.task_paths.run import task_paths as run

            found = run(model, task, checkpoint=partial, resume=resume, progress=progress, **options)
            found.save(folder / TASK_DATA)
            partial.unlink(missing_ok=True)
            progress("drawing the page", 0, 0)
            found.write_page(folder / TASK_PAGE)
    except KeyboardInterrupt:
        done = max(len(partial.read_bytes().split(b"\n")) - 2, 0) if partial.exists() else 0
        kept = f"{done} of {len(task)} prompts are kept: go on with --resume" if done else "no prompt was done yet"
        _echo(clean(f"interrupted; {kept}."))
        raise typer.Exit(130) from None
    from attnscope.cli.output import tell

    tell(found, data=place / TASK_DATA, page=place / TASK_PAGE, chart=chart, as_json=as_json, verbose=verbose)


def _echo(sentence: str) -> None:
    typer.echo(f"attnscope: {sentence}", err=True)


DATA, PAGE = "paths.json", "paths.html"


def paths(
    model: Model,
    text: Annotated[
        str,
        typer.Argument(
            help="What the model reads: a text, a file of one, or - for standard input. A .jsonl file of prompts with "
            "their targets is a task: values of heads over all of them, with error bars."
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="A token (with its leading space), a class by name or number, residual_norm or stream_norm. Default: "
            "what the model says is most likely.",
            metavar="TOKEN",
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="A second token or class: the target is the difference.", metavar="TOKEN")
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(help="Token at which the model is asked. Default: the last one, or the first mask.", metavar="P"),
    ] = None,
    top: Annotated[int, typer.Option(help="Single paths to list.", min=1)] = 10,
    draws: Annotated[
        int, typer.Option(help="Random signs behind the path energies; 0 leaves them out and is faster.", min=0)
    ] = 16,
    mlp: Annotated[bool, typer.Option("--mlp/--no-mlp", help="Count and value MLPs too; without is faster.")] = True,
    removal: Annotated[
        str,
        typer.Option(
            help="Of a task: what stands in for a head that is really removed, zero, mean, or none (no check)."
        ),
    ] = "zero",
    resume: Annotated[bool, resume_option("an interrupted run over prompts in --out")] = False,
    dtype: Annotated[
        str, typer.Option(help="float64 (exact to 1e-10) or float32 (to 1e-4, half the memory).")
    ] = "float64",
    device: Device = "cpu",
    stack: Annotated[str | None, stack_option("the last")] = None,
    bos: Bos = "auto",
    seed: Annotated[int, seed_option("random weights and random signs")] = 0,
    random_init: RandomInit = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    out: Annotated[Path | None, out_option("paths.json and paths.html", "MODEL")] = None,
    chart: Annotated[Path | None, chart_option("all charts into one file")] = None,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("the report")] = False,
) -> None:
    """Which ways through MODEL lead from TEXT to its answer? What paths of each length and every head contribute."""
    from attnscope.cli.files import checked_file, model_folder, text_or_file
    from attnscope.cli.options import check_model
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing

    if chart is not None:
        checked_file(chart, "--chart", (".html", ".json", ".png", ".svg"))
    many = is_task(text)
    _refuse_what_does_not_go_together(many, resume, target, against, position)
    words = "" if many else text_or_file(text)
    check_model(
        model, dtype=dtype, random_init=random_init, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    place = model_folder(model, random_init) if out is None else out
    if many:
        task_paths(
            model,
            text,
            resume=resume,
            place=place,
            chart=chart,
            as_json=as_json,
            verbose=verbose,
            removal=removal,
            dtype=dtype,
            device=device,
            stack=stack,
            bos=bos,
            random_init=random_init,
            seed=seed,
            allow_pickle=allow_pickle,
            trust_remote_code=trust_remote_code,
        )
        return
    saved: Path | None = None
    try:
        with output_folder(place) as folder, showing() as progress:
            progress("loading", 0, 0)  # torch and transformers take seconds to import: say so first
            from attnscope.commands.paths.run import paths as run

            report = run(
                model,
                words,
                target=target,
                against=against,
                position=position,
                top=top,
                mlp=mlp,
                draws=draws,
                dtype=dtype,
                device=device,
                stack=stack,
                bos=bos,
                random_init=random_init,
                seed=seed,
                allow_pickle=allow_pickle,
                trust_remote_code=trust_remote_code,
                progress=progress,
            )
            saved = report.save(folder / DATA)  # before anything is drawn: a drawing can fail, and be made again
            progress("drawing the page", 0, 0)
            report.write_page(folder / PAGE)
    except KeyboardInterrupt:
        from attnscope.core.words import clean

        unfinished = "interrupted before the decomposition was done; nothing is written"
        kept = f"interrupted; {clean(str(saved))} is written, the page is not"
        typer.echo(f"attnscope: {unfinished if saved is None else kept}.", err=True)
        raise typer.Exit(130) from None
    from attnscope.cli.output import tell

    tell(report, data=place / DATA, page=place / PAGE, chart=chart, as_json=as_json, verbose=verbose)


def _refuse_what_does_not_go_together(
    many: bool, resume: bool, target: str | None, against: str | None, position: int | None
) -> None:
    from attnscope.core.errors import RefusalError

    if resume and not many:
        raise RefusalError("--resume goes on with a task of many prompts: give a .jsonl file of them, or leave it out.")
    if many and any(given is not None for given in (target, against, position)):
        raise RefusalError(
            "The prompts of a task have targets of their own: leave out --target, --against and --position, and write "
            "them into the file."
        )
