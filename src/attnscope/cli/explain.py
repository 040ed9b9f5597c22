"""`attnscope explain`: which part of the input decided the output, tried on the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import (
    Model,
    chart_option,
    json_option,
    max_tokens_option,
    out_option,
    samples_option,
    seed_option,
    with_requests,
)
from attnscope.cli.runner import Output, running
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.options import Loading, Sampling, TextOptions

if TYPE_CHECKING:
    from attnscope.reports.record import Record


@with_requests(
    TextOptions,
    seed=seed_option("random weights and the random baseline"),
    out=out_option("explanation-TEXT.json and explanation-TEXT.html", "MODEL"),
    chart=chart_option("the map of tokens by methods"),
    as_json=json_option("the explanation"),
)
def explain(
    model: Model,
    text: Annotated[
        str,
        typer.Argument(
            help="What the model reads: a text, a text file, - for standard input, a picture (photo.png) or a sound "
            "(speech.wav)."
        ),
    ],
    beside: Annotated[
        str | None,
        typer.Argument(
            help="A second input: the text that goes with a picture or sound, the target of an encoder-decoder, or for "
            "encoders another text or picture to compare with.",
            metavar="SECOND_INPUT",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="A token (with its leading space) or a class, by name or number; several words are a continuation. "
            "Default: the most likely one.",
            metavar="TOKEN",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="A second token or class: explain the difference. For models without a head, a second text: explain "
            "how similar they are.",
            metavar="TOKEN",
        ),
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(help="Token whose output is explained. Default: the last one, or the first mask.", metavar="P"),
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option(help="Explain the next N tokens that the model generates, together and one by one.", metavar="N"),
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
            help="Methods, separated by commas (relevance,occlusion), or a set of them: default, slow (methods that "
            "run the model once for every token) or all.",
            metavar="NAMES",
        ),
    ] = "default",
    trial: Annotated[
        bool,
        typer.Option(
            "--trial/--no-trial",
            help="Replace the words that methods name, and run the model on each text: only this names what decided. "
            "Without it there is no verdict.",
        ),
    ] = True,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate",
            help="Judge the methods instead, by removing tokens in the order each method gives. TEXT is then a corpus: "
            "a file or a folder.",
        ),
    ] = False,
    labels: Annotated[
        str | None,
        typer.Option(
            help="With --evaluate: the field of a .jsonl corpus that holds the true class of each text. Methods are "
            "then judged by the probability of that class, not of the class that the model chose.",
            metavar="FIELD",
        ),
    ] = None,
    replacement: Annotated[
        str | None,
        typer.Option(
            help="With --evaluate: what replaces a removed token. auto: a token that the language model itself finds "
            "likely there, or the mask; neutral: the neutral vector of explain.",
            metavar="auto|neutral",
        ),
    ] = None,
    samples: Annotated[int | None, samples_option("16", "With --evaluate")] = None,
    max_tokens: Annotated[int | None, max_tokens_option("48", "With --evaluate")] = None,
    loading: Loading = Loading(),
    sampling: Sampling = Sampling(),
    output: Output = Output(),
) -> None:
    """Which part of TEXT (or of a picture, or of a sound) decided the answer of MODEL? Several methods name
    candidates, and replacing each of them in the real model decides."""
    from attnscope.cli.files import model_folder, text_or_medium
    from attnscope.cli.options import check_corpus, check_model, listed
    from attnscope.core.registry import refuse_unknown_methods

    refuse_unknown_methods(listed(methods))
    answer: dict[str, Any] = {"target": target, "against": against, "position": position}
    answer |= {"generate": generate, "head": head}
    cut: dict[str, Any] = {"labels": labels, "replacement": replacement, "samples": samples, "max_tokens": max_tokens}
    cut = {name: value for name, value in cut.items() if value is not None}
    second = None if beside is None else text_or_medium(beside)
    first: str | Path = text
    if evaluate:
        if beside is not None or any(value is not None for value in answer.values()):
            raise RefusalError(
                "--evaluate follows the model's own answer to every text: omit --target, --against, --position, "
                "--generate, --head and the second input."
            )
        check_corpus(text)
        _check_labels(text, labels)
    else:
        _refuse_options_of_evaluation(cut)
        first = text_or_medium(text)
        _refuse_before_loading(first, second, generate)
    check_model(model, loading)
    with running(output, output.out or model_folder(model, loading.random_init), "the explanation") as run:
        record: Record
        if evaluate:
            from attnscope.commands.evaluate.run import evaluate as judge

            cut |= {"bos": sampling.bos, "seed": loading.seed}
            record = judge(model, first, methods=methods, loading=loading, progress=run.progress, **cut)
            run.keep(record, "faithfulness.json", "faithfulness.html")
        else:
            from attnscope.commands.explain.run import explain as twin

            answer |= {"methods": methods, "trial": trial, "loading": loading, "sampling": sampling}
            record = twin(model, first, second, progress=run.progress, **answer)
            about = (first, second, target, against, f"next {generate}" if generate else None)
            run.keep(record, "explanation.json", "explanation.html", about=about)
    run.tell(record)


def _refuse_options_of_evaluation(options: dict[str, Any]) -> None:
    if "labels" in options:
        raise RefusalError("--labels works only with --evaluate: add it, or name one class with --target.")
    for name in options:
        flag = f"--{name.replace('_', '-')}"
        raise RefusalError(f"{flag} works only with --evaluate: add it, or omit {flag}.")


def _refuse_before_loading(text: str | Path, beside: str | Path | None, generate: int | None) -> None:
    """Check arguments before torch and the model are loaded."""
    from attnscope.core.explanation import LONGEST_CONTINUATION as MOST
    from attnscope.data.medium import readable

    for side in (text, beside):
        if side is not None and (isinstance(side, Path) or not side.strip()):
            readable(side)
    if generate is not None and not 1 <= generate <= MOST:
        raise RefusalError(f"--generate must be 1 to {MOST} tokens, not {generate}.")


def _check_labels(corpus: str, labels: str | None) -> None:
    """Refuse a corpus without the field of classes."""
    from attnscope.core.folders import is_address

    if labels is not None and corpus != "-" and not is_address(corpus):
        from attnscope.data.prompts import labelled

        labelled(corpus, labels)
