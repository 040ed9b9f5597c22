"""`attnscope view`: the attention of one text, every head, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli.options import (
    AllowPickle,
    Bos,
    Device,
    LoadedDtype,
    Model,
    RandomInit,
    TrustRemoteCode,
    Verbose,
    chart_option,
    json_option,
    out_option,
    seed_option,
)

DATA, PAGE = "view.json", "view.html"


def view(
    model: Model,
    text: Annotated[
        str | None,
        typer.Argument(
            help="What the model reads: a text, a file of one, - for standard input, a picture (photo.png) or a sound "
            "(speech.wav); or see --from."
        ),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Argument(
            help="A second input: the text beside a picture, what is said in a sound, or the target of an "
            "encoder-decoder, which writes it itself where it is left out."
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(help="Where the page opens; several (0-3,7) are all that is written.", metavar="LAYERS"),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="Where the page opens; several (0-3,7) are all that is written.", metavar="HEADS"),
    ] = None,
    survey: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Instead of a text, a sequence that a finding of this survey points at, token for token.",
            metavar="SURVEY",
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="Which sequence of --from; the report names it.", metavar="N", min=0)
    ] = None,
    max_mb: Annotated[float, typer.Option(help="Refuse a page above so many megabytes.", min=0, metavar="MB")] = 64.0,
    dtype: LoadedDtype = "float32",
    device: Device = "cpu",
    bos: Bos = "auto",
    seed: Annotated[int, seed_option("random weights")] = 0,
    random_init: RandomInit = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    out: Annotated[Path | None, out_option("view.json and view.html", "MODEL")] = None,
    chart: Annotated[Path | None, chart_option("the head at which the page opens")] = None,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("what every head does (not the maps)")] = False,
) -> None:
    """Which head of MODEL looks where in TEXT? Every map on one page, as lines or grids, in 8 bits a weight."""
    from attnscope.cli.files import checked_file, model_folder, text_or_medium
    from attnscope.cli.options import check_model
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing

    if chart is not None:
        checked_file(chart, "--chart", (".html", ".json", ".png", ".svg"))
    words = None if text is None else text_or_medium(text)
    second = None if beside is None else text_or_medium(beside)
    kept = _checked_survey(words, survey, sample)
    check_model(
        model, dtype=dtype, random_init=random_init, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    place = model_folder(model, random_init) if out is None else out
    saved: Path | None = None
    try:
        with output_folder(place) as folder, showing() as progress:
            progress("loading", 0, 0)  # torch and transformers take seconds to import: say so first
            from attnscope.commands.view.run import view as run

            found = run(
                model,
                words if words is None or second is None else (words, second),
                layer=layer,
                head=head,
                survey=kept,
                sample=sample,
                max_mb=max_mb,
                dtype=dtype,
                device=device,
                bos=bos,
                random_init=random_init,
                seed=seed,
                allow_pickle=allow_pickle,
                trust_remote_code=trust_remote_code,
                progress=progress,
            )
            saved = found.save(folder / DATA)  # before anything is drawn: a drawing can fail, and be made again
            progress("drawing the page", 0, 0)
            found.write_page(folder / PAGE)
    except KeyboardInterrupt:
        from attnscope.core.words import clean

        unfinished = "interrupted before the view was done; nothing is written"
        said = f"interrupted; {clean(str(saved))} is written, the page is not"
        typer.echo(f"attnscope: {unfinished if saved is None else said}.", err=True)
        raise typer.Exit(130) from None
    from attnscope.cli.output import tell

    tell(found, data=place / DATA, page=place / PAGE, chart=chart, as_json=as_json, verbose=verbose)


def _checked_survey(words: str | Path | None, survey: Path | None, sample: int | None) -> Path | None:
    """What cannot be viewed is refused before torch is imported."""
    from attnscope.core.errors import RefusalError

    if survey is None:
        if words is None or sample is not None:
            raise RefusalError("Give a TEXT to view, or --from SURVEY --sample N for a sequence that a survey keeps.")
        return None
    if words is not None:
        raise RefusalError("A TEXT and --from are two things to view: give one of them.")
    from attnscope.commands.scan.survey.survey import Survey

    Survey.load(survey)
    return survey
