"""Options that two or more commands share, and checks of what was typed.

A command declares `loading: Loading = Loading()`, `sampling: Sampling = ...` and `output: Output = Output()`;
`with_requests` turns their fields into options and hands the built dataclasses in. Words that differ by command (what
is drawn, what the default means) are given to the decorator:

    @with_requests(TextOptions, seed=seed_option("random weights"), chart=chart_option("the curves"))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_type_hints

import typer

from attnscope.cli.runner import interruptible
from attnscope.core.errors import RefusalError, one_of
from attnscope.hf.loading.options import Loading, expanded

# Checks that run before torch is imported: that takes seconds, and a typo should not.


def check_model(model: str, loading: Loading = Loading(), *, shapes: bool = False) -> None:
    """Refuse a model that cannot be found; a hub name is fetched. `shapes` allows the shapes of the paper."""
    from attnscope.commands.collapse.record import SHAPE_OF
    from attnscope.core.errors import refuse_without_torch
    from attnscope.hf.loading.sources import find

    refuse_without_torch()
    if shapes and model in SHAPE_OF.values() and not Path(model).exists():
        if not loading.random_init:
            raise RefusalError(f"'{model}' is a shape without weights: pass --random-init, or name a model.")
        return
    with interruptible(lambda: "interrupted while the model was fetched; nothing was done yet"):
        find(model, loading)


def check_corpus(corpus: str | None, *, drawn: bool = False) -> None:
    """Refuse a corpus that is not there. `drawn` allows 'repeated', which needs no file."""
    from attnscope.core.folders import is_address
    from attnscope.data.read import corpus_path, repeated

    if corpus is not None and corpus != "-" and not is_address(corpus) and not (drawn and repeated(corpus)):
        corpus_path(corpus)


def listed(words: str) -> list[str]:
    """Return the names in a comma-separated list."""
    return [word.strip() for word in words.split(",") if word.strip()]


def check_measures(measures: str) -> None:
    from attnscope.core.registry import refuse_unknown_measures

    refuse_unknown_measures(listed(measures))


def check_construction(method: str) -> None:
    from attnscope.core.card import names

    one_of(method, ("auto", *names("attnscope.constructions")), "method")


# What is measured

_NAMES = "'pocket' (embedded), a model folder, a hub name, a .gguf file"
Model = Annotated[str, typer.Argument(help=f"{_NAMES}, or a config with --random-init.")]
ModelOrShape = Annotated[
    str,
    typer.Argument(
        help=f"{_NAMES}; with --random-init a config, or a shape of the paper: bert-base, albert-base, xlnet-base."
    ),
]
_TEXT = "Text: a .txt, .jsonl, .gz or .parquet file, a folder, or - for standard input"
_FILES = "a picture, a .wav, or a folder of them"
_TWICE = "or 'repeated': random tokens twice over, which show induction heads"
_USUAL = "Default: a public-domain text inside the package; random tokens without a tokenizer."
TextCorpus = Annotated[str | None, typer.Argument(help=f"{_TEXT}. {_USUAL}")]
Corpus = Annotated[str | None, typer.Argument(help=f"{_TEXT}; {_FILES}. {_USUAL}")]
ScanCorpus = Annotated[str | None, typer.Argument(help=f"{_TEXT}; {_FILES}; {_TWICE}. {_USUAL}")]
KeepText = Annotated[
    bool,
    typer.Option(
        "--text/--no-text",
        help="Show the few sequences that findings point at; --no-text for corpora that must not be passed on.",
    ),
]
HeadDtype = Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")]
RatioError = Annotated[
    float, typer.Option(help="How far ratios inside a row may be off: 0.1 keeps them within a factor 1.1.")
]
Leak = Annotated[float, typer.Option(help="Share of a row's attention that may fall on zeros.")]
Threshold = Annotated[
    list[str] | None, typer.Option(help="Change a threshold of the findings; repeatable.", metavar="NAME=VALUE")
]


def samples_option(default: str = "") -> Any:
    """`default` where the help must say it in words."""
    return typer.Option(help=_words("Sequences, at most.", default), min=1)


def max_tokens_option(default: str) -> Any:
    return typer.Option(help=_words("Tokens in a sequence, at most.", default), min=2)


def stack_option(default: str) -> Any:
    return typer.Option(help=_words("Which stack of a model with several.", default), metavar="NAME")


def budget_option(purpose: str) -> Any:
    return typer.Option(help=f"Processor seconds for {purpose}", min=0, metavar="SECONDS")


def seed_option(purpose: str, smallest: int | None = None) -> Any:
    return typer.Option(help=f"For {purpose}.", min=smallest)


def seeds_option(purpose: str) -> Any:
    return typer.Option(help=f"{purpose}: seeds 0, 1, ...", min=1)


def out_option(holds: str, name: str) -> Any:
    """Commands that find something write it, by default into a folder named attnscope-NAME."""
    return typer.Option(help=f"Folder for {holds}. Default: attnscope-{name}.", metavar="FOLDER")


def chart_option(drawn: str) -> Any:
    return typer.Option(help=f"Draw {drawn}: .png, .svg, .html or .json.", metavar="FILE")


def json_option(printed: str) -> Any:
    return typer.Option("--json", help=f"Print {printed} as JSON on standard output, and nothing else.")


def resume_option(what: str) -> Any:
    return typer.Option("--resume", help=f"Continue {what}.")


SAVE = typer.Option(help="Also keep the record here, for `attnscope report` and attnscope.load: .json.", metavar="FILE")


def _words(what: str, default: str) -> str:
    """What an option is, and its default in words, or to which other option it belongs."""
    if default.startswith("of "):
        return f"{what} ({default})"
    return f"{what} Default: {default}." if default else what


# Fields of Loading, Sampling and Output as options

_KINDS: dict[str, Any] = {
    "device_map": str | None,
    "bos": Literal["auto", "yes", "no"],
    "max_tokens": int | None,
    "out": Path | None,
    "save": Path | None,
    "chart": Path | None,
    "verbose": bool,
    "as_json": bool,
}
_OPTIONS: dict[str, Any] = {
    "dtype": typer.Option(help="float64, float32, bfloat16, float16, or auto for the stored one."),
    "device": typer.Option(help="cpu, cuda, cuda:1, mps, or auto."),
    "random_init": typer.Option("--random-init", help="Use the configuration alone, with seeded random weights."),
    "allow_pickle": typer.Option("--allow-pickle", help="Accept pytorch_model.bin weights (tensors only)."),
    "trust_remote_code": typer.Option("--trust-remote-code", help="Run model code that comes with the weights."),
    "device_map": typer.Option(
        help="Spread the model over devices, memory and disk: auto, or a JSON file: parts of it to cpu, disk, cuda:0.",
        metavar="auto|FILE",
    ),
    "stream_weights": typer.Option(
        "--stream-weights", help="Take all sequences through one block after the other, its weights alone in memory."
    ),
    "samples": samples_option(),
    "batch_size": typer.Option(help="Sequences in a batch; halves itself when memory runs out.", min=1),
    "field": typer.Option(help="The text field of .jsonl and .parquet corpora."),
    "bos": typer.Option(
        help="Begin sequences with the BOS token; auto does as the tokenizer or a GGUF header wants it."
    ),
    "verbose": typer.Option("--verbose", "-v", help="Also print the numbers behind the sentences."),
}

P = ParamSpec("P")
R = TypeVar("R")


def with_requests(options: type | None = None, /, **own: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Expand `loading`, `sampling` and `output` of a command into options.

    `options` is the TypedDict of the keywords that the twin accepts. `own` are options in the words of this command;
    `out`, `save`, `chart` and `as_json` exist only where they are given.
    """
    kinds = {"verbose": bool} if options is None else {"verbose": bool, **get_type_hints(options)}
    kinds |= {name: _KINDS.get(name) or kinds[name] for name in (*kinds, *own)}
    keywords = {name: Annotated[kind, own.get(name) or _OPTIONS[name]] for name, kind in kinds.items()}

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        return expanded(command, keywords, inspect.signature(command, eval_str=True), hidden=True)

    return decorate
