"""`attnscope explain`: which part of the input decided, by several methods side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    max_tokens_option,
    out_option,
    samples_option,
    seed_option,
)

if TYPE_CHECKING:
    from attnscope.reports.record import Record

DATA, PAGE = "explanation.json", "explanation.html"
JUDGED, JUDGED_PAGE = "faithfulness.json", "faithfulness.html"


def explain(
    model: Model,
    text: Annotated[
        str,
        typer.Argument(
            help="What the model reads: a text, a file of one, - for standard input, a picture (photo.png) or a sound "
            "(speech.wav)."
        ),
    ],
    beside: Annotated[
        str | None,
        typer.Argument(
            help="A second input: the text beside a picture, what is said in a sound, the target of an "
            "encoder-decoder, or for encoders another text or picture to be compared."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="A token (with its leading space) or a class, by name or number; several words are a continuation. "
            "Default: what the model says is most likely.",
            metavar="TOKEN",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="A second token or class: the difference is explained. For models without a head, a second text: how "
            "alike they are is explained.",
            metavar="TOKEN",
        ),
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(help="Token at which the model is asked. Default: the last one, or the first mask.", metavar="P"),
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option(help="Explain the next N tokens that the model writes, together and one by one.", metavar="N"),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="A linear head for a model that has none: a .safetensors file with weight, bias and labels.",
            metavar="FILE",
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            "--method",
            help="Explanations or sets of them, with commas: default, slow (a run for every token), all, or names such "
            "as relevance,occlusion.",
            metavar="NAMES",
        ),
    ] = "default",
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate",
            help="Judge the methods instead: TEXT is then a corpus (a file or a folder), and tokens are taken away in "
            "the order each method gives.",
        ),
    ] = False,
    labels: Annotated[
        str | None,
        typer.Option(
            help="Of --evaluate: the field of a .jsonl corpus that holds the true class of each text, which is then "
            "followed in place of what the model says.",
            metavar="FIELD",
        ),
    ] = None,
    samples: Annotated[int | None, samples_option("of --evaluate: 16")] = None,
    max_tokens: Annotated[int | None, max_tokens_option("of --evaluate: 48")] = None,
    dtype: LoadedDtype = "float32",
    device: Device = "cpu",
    bos: Bos = "auto",
    seed: Annotated[int, seed_option("random weights and the random floor")] = 0,
    random_init: RandomInit = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    out: Annotated[Path | None, out_option("explanation.json and explanation.html", "MODEL")] = None,
    chart: Annotated[Path | None, chart_option("the map of tokens by methods")] = None,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("the explanation")] = False,
) -> None:
    """Which part of TEXT (or of a picture, or of a sound) decided what MODEL says? Several methods side by side, with
    fused attention on."""
    from attnscope.cli.files import checked_file, model_folder, text_or_medium
    from attnscope.cli.options import check_corpus, check_methods, check_model
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing

    if chart is not None:
        checked_file(chart, "--chart", (".html", ".json", ".png", ".svg"))
    check_methods(methods)
    if evaluate:
        _refuse_what_one_answer_needs(target, against, position, beside, generate, head)
        check_corpus(text)
        _refuse_without_labels(text, labels)
    else:
        _refuse_what_evaluation_needs(labels, samples, max_tokens)
    words = text if evaluate else text_or_medium(text)
    second = None if beside is None else text_or_medium(beside)
    if not evaluate:
        _refuse_before_loading(words, second, generate)
    check_model(
        model, dtype=dtype, random_init=random_init, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    place = model_folder(model, random_init) if out is None else out
    data, page = (JUDGED, JUDGED_PAGE) if evaluate else (DATA, PAGE)
    shared: dict[str, Any] = {
        "methods": methods,
        "dtype": dtype,
        "device": device,
        "bos": bos,
        "random_init": random_init,
        "seed": seed,
        "allow_pickle": allow_pickle,
        "trust_remote_code": trust_remote_code,
    }
    saved: Path | None = None
    try:
        with output_folder(place) as folder, showing() as progress:
            progress("loading", 0, 0)  # torch and transformers take seconds to import: say so first
            found: Record
            if evaluate:
                from attnscope.commands.evaluate.run import evaluate as judge

                asked_of = {"labels": labels, "samples": samples, "max_tokens": max_tokens}
                cut: dict[str, Any] = {name: value for name, value in asked_of.items() if value is not None}
                found = judge(model, words, progress=progress, **cut, **shared)
            else:
                from attnscope.commands.explain.run import explain as run

                asked: dict[str, Any] = {"target": target, "against": against, "position": position}
                asked |= {"generate": generate, "head": head}
                found = run(model, words, second, progress=progress, **asked, **shared)
            saved = found.save(folder / data)  # before anything is drawn: a drawing can fail, and be made again
            progress("drawing the page", 0, 0)
            found.write_page(folder / page)
    except KeyboardInterrupt:
        from attnscope.core.words import clean

        unfinished = "interrupted before the explanation was done; nothing is written"
        kept = f"interrupted; {clean(str(saved))} is written, the page is not"
        typer.echo(f"attnscope: {unfinished if saved is None else kept}.", err=True)
        raise typer.Exit(130) from None
    from attnscope.cli.output import tell

    tell(found, data=place / data, page=place / page, chart=chart, as_json=as_json, verbose=verbose)


def _refuse_what_evaluation_needs(labels: str | None, samples: int | None, max_tokens: int | None) -> None:
    from attnscope.core.errors import RefusalError

    if labels is not None:
        raise RefusalError("--labels belongs to --evaluate: add it, or name one class with --target.")
    if samples is not None or max_tokens is not None:
        lone = "--samples" if samples is not None else "--max-tokens"
        raise RefusalError(f"{lone} belongs to --evaluate: add it, or leave {lone} out.")


def _refuse_before_loading(text: str | Path, beside: str | Path | None, generate: int | None) -> None:
    """What no model is needed for to know, and no torch."""
    from attnscope.core.errors import RefusalError
    from attnscope.core.explanation import LONGEST_CONTINUATION as MOST
    from attnscope.data.medium import readable

    for side in (text, beside):
        if side is not None and (isinstance(side, Path) or not side.strip()):
            readable(side)
    if generate is not None and not 1 <= generate <= MOST:
        raise RefusalError(f"--generate takes 1 to {MOST} tokens, not {generate}: choose such a number.")


def _refuse_without_labels(corpus: str, labels: str | None) -> None:
    """A corpus without the classes that are asked for is known before any model is."""
    from attnscope.core.places import is_address

    if labels is not None and corpus != "-" and not is_address(corpus):
        from attnscope.data.prompts import labelled

        labelled(corpus, labels)


def _refuse_what_one_answer_needs(*given: object) -> None:
    if any(one is not None for one in given):
        from attnscope.core.errors import RefusalError

        raise RefusalError(
            "--evaluate follows what the model itself says of every text: leave --target, --against and --position out"
            ", and --generate, --head and a second input too."
        )
