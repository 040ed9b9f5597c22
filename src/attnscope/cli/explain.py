"""`attnscope explain`: which part of the input decided, by several methods side by side."""

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
    seed=seed_option("random weights and the random floor"),
    out=out_option("explanation.json and explanation.html", "MODEL"),
    chart=chart_option("the map of tokens by methods"),
    as_json=json_option("the explanation"),
)
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
    loading: Loading = Loading(),
    sampling: Sampling = Sampling(),
    output: Output = Output(),
) -> None:
    """Which part of TEXT (or of a picture, or of a sound) decided what MODEL says? Several methods side by side, with
    fused attention on."""
    from attnscope.cli.files import model_folder, text_or_medium
    from attnscope.cli.options import check_corpus, check_model, listed
    from attnscope.core.registry import refuse_unknown_methods

    refuse_unknown_methods(listed(methods))
    answer: dict[str, Any] = {"target": target, "against": against, "position": position}
    answer |= {"generate": generate, "head": head}
    cut: dict[str, Any] = {"labels": labels, "samples": samples, "max_tokens": max_tokens}
    cut = {name: value for name, value in cut.items() if value is not None}
    second = None if beside is None else text_or_medium(beside)
    first: str | Path = text
    if evaluate:
        if beside is not None or any(value is not None for value in answer.values()):
            raise RefusalError(
                "--evaluate follows what the model itself says of every text: leave --target, --against and --position "
                "out, and --generate, --head and a second input too."
            )
        check_corpus(text)
        _check_labels(text, labels)
    else:
        _refuse_options_of_evaluation(cut)
        first = text_or_medium(text)
        _refuse_before_loading(first, second, generate)
    check_model(model, loading)
    with running(output, output.out or model_folder(model, loading.random_init), "the explanation") as run:
        found: Record
        if evaluate:
            from attnscope.commands.evaluate.run import evaluate as judge

            cut |= {"bos": sampling.bos, "seed": loading.seed}
            found = judge(model, first, methods=methods, loading=loading, progress=run.progress, **cut)
            run.keep(found, "faithfulness.json", "faithfulness.html")
        else:
            from attnscope.commands.explain.run import explain as twin

            answer |= {"methods": methods, "loading": loading, "sampling": sampling}
            found = twin(model, first, second, progress=run.progress, **answer)
            run.keep(found, "explanation.json", "explanation.html")
    run.tell(found)


def _refuse_options_of_evaluation(given: dict[str, Any]) -> None:
    if "labels" in given:
        raise RefusalError("--labels belongs to --evaluate: add it, or name one class with --target.")
    for name in given:
        flag = f"--{name.replace('_', '-')}"
        raise RefusalError(f"{flag} belongs to --evaluate: add it, or leave {flag} out.")


def _refuse_before_loading(text: str | Path, beside: str | Path | None, generate: int | None) -> None:
    """Refuse what can be refused without a model and without torch."""
    from attnscope.core.explanation import LONGEST_CONTINUATION as MOST
    from attnscope.data.medium import readable

    for side in (text, beside):
        if side is not None and (isinstance(side, Path) or not side.strip()):
            readable(side)
    if generate is not None and not 1 <= generate <= MOST:
        raise RefusalError(f"--generate takes 1 to {MOST} tokens, not {generate}: choose such a number.")


def _check_labels(corpus: str, labels: str | None) -> None:
    """Refuse a corpus that lacks the field of classes."""
    from attnscope.core.folders import is_address

    if labels is not None and corpus != "-" and not is_address(corpus):
        from attnscope.data.prompts import labelled

        labelled(corpus, labels)
