"""`attnscope treat`: try a remedy on a model, beside a control, and measure again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from attnscope.cli.options import (
    AllowPickle,
    Bos,
    Device,
    Field,
    LoadedDtype,
    Model,
    RandomInit,
    TextCorpus,
    Threshold,
    TrustRemoteCode,
    Verbose,
    chart_option,
    json_option,
    max_tokens_option,
    out_option,
    resume_option,
    seed_option,
)
from attnscope.core.errors import RefusalError
from attnscope.core.words import clean

PARTIAL = "treatment.partial"
WEIGHTS = "model"


def treat(
    model: Model,
    corpus: TextCorpus = None,
    remedy: Annotated[
        str,
        typer.Option(
            help="A variant, prune, bos, or auto: what the findings ask for (`attnscope variants --remedies`).",
            metavar="NAME",
        ),
    ] = "auto",
    steps: Annotated[
        int | None,
        typer.Option(help="Steps of training, of the control and of the treated model. Default: 200.", min=1),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Learning rate at its peak (AdamW, warm-up, cosine). Default: 1e-4.")
    ] = None,
    no_training: Annotated[
        bool, typer.Option("--no-training", help="Train nothing: a remedy that needs none, or one as it begins.")
    ] = False,
    train: Annotated[
        Literal["added", "all"] | None,
        typer.Option(
            help="Train what the remedy adds and the projections of its blocks, or all parameters. Default: added."
        ),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Blocks to change: 3, 0-5, or 2,4,6. Default: all.", metavar="BLOCKS")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="prune: how many heads to take out.", min=1)] = None,
    keep_loss: Annotated[
        float | None, typer.Option(help="prune: as many heads as cost at most this, in nats per token.", min=0)
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the variant; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    samples: Annotated[int, typer.Option(help="Sequences of held-out text to measure on, at most.", min=4)] = 32,
    max_tokens: Annotated[int | None, max_tokens_option("128, or what the model takes")] = None,
    batch_size: Annotated[int, typer.Option(help="Sequences in a step of training.", min=1)] = 4,
    seed: Annotated[int, seed_option("the order of batches, chance in training, and random weights")] = 0,
    dtype: LoadedDtype = "float32",
    device: Device = "cpu",
    field: Field = "text",
    bos: Bos = "auto",
    threshold: Threshold = None,
    out: Annotated[
        Path | None, out_option("treatment.json and treatment.html, and with --out the treated model", "MODEL")
    ] = None,
    chart: Annotated[Path | None, chart_option("what the remedy was meant to change")] = None,
    resume: Annotated[bool, resume_option("interrupted training in --out")] = False,
    random_init: RandomInit = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("everything but the surveys")] = False,
) -> None:
    """Try a remedy on MODEL: diagnosed, changed, trained beside a control, and measured again on held-out text."""
    from attnscope.cli.files import checked_file, model_folder
    from attnscope.cli.options import check_corpus, check_model
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing
    from attnscope.commands.scan.diagnose import Thresholds
    from attnscope.core.finding import refuse_unknown_remedy

    refuse_unknown_remedy(remedy)
    thresholds, blocks, settings = Thresholds.parse(threshold or []), numbers(layers), _settings(setting or [])
    if chart is not None:
        checked_file(chart, "--chart", (".html", ".json", ".png", ".svg"))
    check_corpus(corpus)
    check_model(
        model, dtype=dtype, random_init=random_init, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    place = model_folder(model, random_init) if out is None else out
    saved: Path | None = None
    try:
        with output_folder(place) as folder, showing("steps") as progress:
            begun = _begun(folder / PARTIAL)
            if resume and not begun:
                _echo(f"there is no interrupted training in {folder}: this one begins at the beginning.")
            if begun and not resume:
                _echo(f"the interrupted training in {folder} will be replaced; --resume would go on with it.")
            progress("loading", 0, 0)
            from attnscope.commands.treat.run import treat as run_treat

            found = run_treat(
                model,
                corpus,
                remedy=remedy,
                steps=steps,
                rate=rate,
                training=not no_training,
                train=train,
                layers=blocks,
                heads=heads,
                keep_loss=keep_loss,
                settings=settings,
                samples=samples,
                max_tokens=max_tokens,
                batch_size=batch_size,
                seed=seed,
                dtype=dtype,
                device=device,
                field=field,
                bos=bos,
                thresholds=thresholds,
                save=None if out is None else folder / WEIGHTS,
                checkpoint=folder / PARTIAL,
                resume=resume,
                random_init=random_init,
                allow_pickle=allow_pickle,
                trust_remote_code=trust_remote_code,
                progress=progress,
            )
            saved = found.save(folder / "treatment.json")
            progress("drawing the page", 0, 0)
            page = found.write_page(folder / "treatment.html")
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
    except KeyboardInterrupt:
        kept = _begun(place / PARTIAL)
        done = "what is trained is kept: run the same command with --resume" if kept else "nothing was trained yet"
        _echo(f"interrupted; {done}.")
        raise typer.Exit(130) from None
    if chart is not None:
        from attnscope.reports.export import save

        save(found.chart(), chart)
    weights = None if out is None else folder / WEIGHTS
    if as_json:
        from attnscope.cli.output import print_json

        files = {"data": saved, "page": page, "chart": chart, "model": weights}
        print_json({**found.to_json(), "files": {name: one and str(one) for name, one in files.items()}})
    else:
        from attnscope.reports.terminal import print_record

        files = {"Page": page, "Record": saved, "Model": weights, "Chart": chart}
        print_record(found, files=files, verbose=verbose)


def _begun(partial: Path) -> bool:
    """Whether training was interrupted there."""
    return partial.is_dir() and any(partial.glob("*.safetensors"))


def _echo(sentence: str) -> None:
    typer.echo(clean(f"attnscope: {sentence}"), err=True)


def numbers(given: str | None) -> tuple[int, ...] | None:
    """`0-2,5` as 0, 1, 2, 5."""
    if given is None:
        return None
    found: list[int] = []
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise RefusalError(f"'{clean(given)}' does not name blocks: write 3, 0-5, or 2,4,6.")
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def _settings(given: list[str]) -> dict[str, Any]:
    """`NAME=VALUE`, the value as JSON reads it, or as text."""
    found: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise RefusalError(f"'{clean(one)}' is no setting: write --set NAME=VALUE.")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value
    return found
