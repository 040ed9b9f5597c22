"""`attnscope paths`: how much paths of each length, and each head, contribute to what a model predicts.

With --head it says instead why one head looks where it looks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnscope.cli.options import (
    Model,
    chart_option,
    json_option,
    out_option,
    resume_option,
    seed_option,
    stack_option,
    with_requests,
)
from attnscope.cli.output import say
from attnscope.cli.runner import Output, running
from attnscope.core.errors import RefusalError
from attnscope.core.locks import refuse_in_use
from attnscope.hf.loading.options import Loading, Sampling, TextOptions

PARTIAL = "task_paths.partial.jsonl"
LOCK = "task_paths.lock"


@with_requests(
    TextOptions,
    dtype=typer.Option(help="float64 (exact to 1e-10) or float32 (to 1e-4, half the memory)."),
    seed=seed_option("random weights and random signs"),
    out=out_option("paths-TEXT.json and paths-TEXT.html", "MODEL"),
    chart=chart_option("all charts into one file"),
    as_json=json_option("the report"),
)
def paths(
    model: Model,
    text: Annotated[
        str,
        typer.Argument(
            help="What the model reads: a text, a text file, or - for standard input. A .jsonl file of prompts with "
            "their targets is a task: heads are valued over all prompts, with error bars."
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="A token (with its leading space), a class by name or number, residual_norm or stream_norm. Default: "
            "the model's own prediction.",
            metavar="TOKEN",
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="A second token or class: the target is the difference.", metavar="TOKEN")
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(
            help="Token whose prediction is decomposed. Default: the last one, or the first mask.", metavar="P"
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="Instead say why this head looks where it looks: a block and a head, such as 1.3.", metavar="B.H"
        ),
    ] = None,
    query: Annotated[
        int | None,
        typer.Option("--from", help="With --head: the token that looks. Default: the last.", metavar="I"),
    ] = None,
    key: Annotated[
        int | None,
        typer.Option(
            "--to",
            help="With --head: the token that is looked at. Default: the largest weight that is not a sink.",
            metavar="J",
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="How many single paths (with --head: sources) to list.", min=1)] = 10,
    draws: Annotated[
        int, typer.Option(help="Random signs for estimating path energies; 0 skips the energies and is faster.", min=0)
    ] = 16,
    mlp: Annotated[bool, typer.Option("--mlp/--no-mlp", help="Also count and value MLPs; faster without.")] = True,
    effects: Annotated[
        str,
        typer.Option(
            help="What replaces a head that is taken out: its mean over other texts, its output on other texts "
            "(resample), or zero.",
            metavar="mean|resample|zero",
        ),
    ] = "mean",
    reference: Annotated[
        str | None,
        typer.Option(
            help="Other texts whose outputs replace a head (a file or folder). Default: the embedded book, or texts of "
            "the model's own kind if it does not read English.",
            metavar="FILE",
        ),
    ] = None,
    no_effects: Annotated[bool, typer.Option("--no-effects", help="Take no head out: faster, no heads named.")] = False,
    removal: Annotated[
        str,
        typer.Option(help="For a task: what replaces a head that is actually removed: zero, mean, or none (no check)."),
    ] = "zero",
    resume: Annotated[bool, resume_option("an interrupted run over prompts in --out")] = False,
    stack: Annotated[str | None, stack_option("the last")] = None,
    loading: Loading = Loading(dtype="float64"),
    sampling: Sampling = Sampling(),
    output: Output = Output(),
) -> None:
    """Which paths through MODEL lead from TEXT to its prediction? Shows what each length and head contributes."""
    from attnscope.cli.files import model_folder, text_or_file
    from attnscope.cli.options import check_corpus, check_model

    question: dict[str, Any] = {"target": target, "against": against, "position": position}
    shared: dict[str, Any] = {"stack": stack, "loading": loading, "sampling": sampling}
    is_task = _is_task(text)
    if resume and not is_task:
        raise RefusalError("--resume continues a task of many prompts: give a .jsonl file of them, or leave it out.")
    if is_task and any(value is not None for value in question.values()):
        raise RefusalError(
            "The prompts of a task have their own targets: leave out --target, --against and --position, and write "
            "them into the file."
        )
    if head is None and (query is not None or key is not None):
        raise RefusalError("--from and --to belong to one head: name it with --head, such as --head 1.3.")
    if head is not None and (is_task or any(value is not None for value in question.values())):
        raise RefusalError(
            "--head decomposes an attention logit of one text: leave out --target, --against and --position, and give "
            "a text rather than a task."
        )
    if reference is not None and (is_task or head is not None or no_effects):
        raise RefusalError(
            "--reference gives the texts whose outputs replace a head that is taken out: leave it out with --head, "
            "--no-effects or a task."
        )
    words = "" if is_task else text_or_file(text)
    check_corpus(reference)
    check_model(model, loading)
    folder = output.out or model_folder(model, loading.random_init)
    if is_task:
        _task_paths(model, text, folder, output, resume=resume, removal=removal, **shared)
        return
    if head is not None:
        _logit_paths(model, words, folder, output, head=head, query=query, key=key, top=top, **shared)
        return
    with running(output, folder, "the decomposition") as run:
        from attnscope.commands.paths.run import paths as twin

        question |= {"effects": None if no_effects else effects, "reference": reference}
        decomposition = twin(model, words, top=top, mlp=mlp, draws=draws, progress=run.progress, **question, **shared)
        run.keep(decomposition, "paths.json", "paths.html", about=(words, target, against))
    run.tell(decomposition)


def _is_task(text: str) -> bool:
    """Return whether the text names a file of prompts (by its suffix .jsonl)."""
    from attnscope.data.prompts import SUFFIXES

    return "\n" not in text and text.lower().endswith(SUFFIXES)


def _logit_paths(model: str, text: str, folder: Path, output: Output, **options: Any) -> None:
    """Decompose one attention logit."""
    with running(output, folder, "the decomposition") as run:
        from attnscope.commands.logit_paths.run import logit_paths as twin

        decomposition = twin(model, text, progress=run.progress, **options)
        asked = f"{options['head']} {decomposition.query} {decomposition.key}"
        run.keep(decomposition, "logit_paths.json", "logit_paths.html", about=(text, asked))
    run.tell(decomposition)


def _task_paths(model: str, prompts: str, folder: Path, output: Output, *, resume: bool, **options: Any) -> None:
    """Decompose every prompt of a task; each prompt is saved when it is finished."""
    from attnscope.data.prompts import prompts as read_prompts

    task = read_prompts(prompts)
    partial = folder / PARTIAL

    def kept() -> str:
        done = max(len(partial.read_bytes().split(b"\n")) - 2, 0) if partial.exists() else 0
        words = f"{done} of {len(task)} prompts are kept: continue with --resume" if done else "no prompt was done yet"
        return f"interrupted; {words}"

    refuse_in_use(folder, LOCK)
    if resume and not partial.exists():
        say(f"there is no interrupted run over prompts in {folder}: starting a new one.")
    if not resume and partial.exists():
        say(f"the interrupted run in {folder} will be replaced; --resume would continue it.")
    with running(output, folder, counted="prompts", kept=kept, lock=LOCK) as run:
        from attnscope.commands.task_paths.run import task_paths as twin

        decomposition = twin(model, task, checkpoint=partial, resume=resume, progress=run.progress, **options)
        run.keep(decomposition, "task_paths.json", "task_paths.html")
        partial.unlink(missing_ok=True)
    run.tell(decomposition)
