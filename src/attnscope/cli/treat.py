"""`attnscope treat`: try a remedy on a model, beside a control, and measure again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from attnscope.cli.options import (
    Model,
    TextCorpus,
    Threshold,
    chart_option,
    json_option,
    max_tokens_option,
    resume_option,
    seed_option,
    with_requests,
)
from attnscope.cli.output import say
from attnscope.cli.runner import Output, running
from attnscope.core.errors import RefusalError
from attnscope.core.locks import refuse_in_use
from attnscope.core.words import clean
from attnscope.hf.loading.options import Loading, Sampling, SeededCorpusOptions

PARTIAL = "treatment.partial"
REMOVALS = "removals.json"  # in PARTIAL: losses without heads, measured by prune
WEIGHTS = "model"
LOCK = "treatment.lock"


@with_requests(
    SeededCorpusOptions,
    samples=typer.Option(help="Maximum number of held-out sequences to measure on.", min=4),
    max_tokens=max_tokens_option("128, or the model's maximum length if that is shorter"),
    batch_size=typer.Option(help="Sequences in a training step.", min=1),
    seed=seed_option("the order of batches, randomness in training, and random weights"),
    out=typer.Option(
        help="Folder for treatment.json, treatment.html and the treated model. Default: attnscope-MODEL, without the "
        "treated model.",
        metavar="FOLDER",
    ),
    chart=chart_option("what the remedy was meant to change"),
    as_json=json_option("everything but the surveys"),
)
def treat(
    model: Model,
    corpus: TextCorpus = None,
    remedy: Annotated[
        str,
        typer.Option(
            help="A variant, prune, bos, or auto: the remedy for the findings (see `attnscope variants --remedies`).",
            metavar="NAME",
        ),
    ] = "auto",
    steps: Annotated[
        int | None,
        typer.Option(help="Training steps of the control and of the treated model. Default: 200.", min=1),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Learning rate at its peak (AdamW, warm-up, cosine). Default: 1e-4.")
    ] = None,
    no_training: Annotated[
        bool, typer.Option("--no-training", help="Do not train: measure the remedy at its start.")
    ] = False,
    train: Annotated[
        Literal["added", "all"] | None,
        typer.Option(
            help="Train what the remedy adds and the projections of its blocks (added), or all parameters (all). "
            "Default: added."
        ),
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(help="Blocks to change: 3, 0-5, or 2,4,6. Default: all.", metavar="BLOCKS")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="prune: how many heads to remove.", min=1)] = None,
    keep_loss: Annotated[
        float | None,
        typer.Option(help="prune: the loss may rise by at most this, in nats per token. Default: 0.01.", min=0),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the variant; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    sampling: Sampling = Sampling(samples=32, batch_size=4),
    loading: Loading = Loading(),
    threshold: Threshold = None,
    resume: Annotated[bool, resume_option("interrupted training or pruning in --out")] = False,
    output: Output = Output(),
) -> None:
    """Try a remedy on MODEL: diagnose it, change it, train it beside a control, and measure both on held-out text."""
    from attnscope.cli.files import model_folder
    from attnscope.cli.options import check_corpus, check_model
    from attnscope.commands.scan.diagnose import Thresholds
    from attnscope.core.finding import refuse_unknown_remedy

    refuse_unknown_remedy(remedy)
    thresholds, numbers, settings = Thresholds.parse(threshold or []), block_numbers(blocks), _settings(setting or [])
    check_corpus(corpus)
    check_model(model, loading)
    folder = output.out or model_folder(model, loading.random_init)
    refuse_in_use(folder, LOCK)
    begun = _begun(folder)
    if resume and not begun:
        say(f"there is no interrupted work in {folder}: starting anew.")
    if begun and not resume:
        say(f"the interrupted work in {folder} will be replaced; --resume would continue it.")

    def kept() -> str:
        done = "what was done is kept: run the same command with --resume"
        return f"interrupted; {done if _begun(folder) else 'nothing was done yet'}"

    with running(output, folder, counted="steps", kept=kept, lock=LOCK) as run:
        from attnscope.commands.treat.run import treat as twin

        found = twin(
            model,
            corpus,
            remedy=remedy,
            steps=steps,
            rate=rate,
            training=not no_training,
            train=train,
            blocks=numbers,
            heads=heads,
            keep_loss=keep_loss,
            settings=settings,
            loading=loading,
            sampling=sampling,
            thresholds=thresholds,
            save=None if output.out is None else folder / WEIGHTS,
            checkpoint=folder / PARTIAL,
            resume=resume,
            progress=run.progress,
        )
        run.keep(found, "treatment.json", "treatment.html")
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)
    run.files["Model"] = folder / WEIGHTS if (folder / WEIGHTS).exists() else None
    run.tell(found)


def _begun(folder: Path) -> bool:
    """Return whether interrupted training or pruning is kept in the folder."""
    return (folder / PARTIAL).is_dir() and any(
        path.suffix == ".safetensors" or path.name == REMOVALS for path in (folder / PARTIAL).iterdir()
    )


def block_numbers(text: str | None) -> tuple[int, ...] | None:
    """Return 0, 1, 2, 5 for `0-2,5`."""
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise RefusalError(f"'{clean(text)}' does not name blocks: write 3, 0-5, or 2,4,6.")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(numbers))


def _settings(words: list[str]) -> dict[str, Any]:
    """Read `NAME=VALUE`, the value as JSON or else as text."""
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise RefusalError(f"'{clean(word)}' is not a setting: write --set NAME=VALUE.")
        try:
            settings[name.strip()] = json.loads(value)
        except ValueError:
            settings[name.strip()] = value
    return settings
