"""Options that several commands share, and checks of their values.

A command declares `loading: Loading = Loading()`, `sampling: Sampling = ...` and `output: Output = Output()`;
`with_requests` turns their fields into options and passes the dataclasses to the command. Help texts that differ by
command (what is drawn, what the default means) are arguments of the decorator:

    @with_requests(TextOptions, seed=seed_option("random weights"), chart=chart_option("the curves"))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_origin, get_type_hints

import typer

from attnscope.cli.runner import interruptible
from attnscope.core.errors import RefusalError, one_of
from attnscope.hf.loading.options import Loading, expanded

# These checks run before torch is imported, which takes seconds, so that a typo is reported at once.


def check_model(model: str, loading: Loading = Loading(), *, shapes: bool = False) -> None:
    """Refuse a model that cannot be found; download it if it is a hub name. `shapes` allows the shapes of the paper."""
    from attnscope.commands.collapse.record import SHAPE_OF
    from attnscope.core.errors import refuse_without_torch
    from attnscope.hf.loading.sources import find

    refuse_without_torch()
    if shapes and model in SHAPE_OF.values() and not Path(model).exists():
        if not loading.random_init:
            raise RefusalError(f"'{model}' is a shape without weights: pass --random-init, or name a model.")
        return
    with interruptible(lambda: "interrupted while the model was downloaded; nothing was done yet"):
        find(model, loading)


def check_corpus(corpus: str | None, *, drawn: bool = False) -> None:
    """Refuse a corpus that does not exist. `drawn` allows 'repeated', which needs no file."""
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
_TWICE = "or 'repeated': random tokens followed by the same tokens, which show induction heads"
_USUAL = "Default: a public-domain text in the package, or random tokens for a model without a tokenizer."
TextCorpus = Annotated[str | None, typer.Argument(help=f"{_TEXT}. {_USUAL}")]
Corpus = Annotated[str | None, typer.Argument(help=f"{_TEXT}; {_FILES}. {_USUAL}")]
ScanCorpus = Annotated[str | None, typer.Argument(help=f"{_TEXT}; {_FILES}; {_TWICE}. {_USUAL}")]
KeepText = Annotated[
    bool,
    typer.Option(
        "--text/--no-text",
        help="Show the few sequences that findings refer to; use --no-text for confidential corpora.",
    ),
]
HeadDtype = Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")]
RatioError = Annotated[
    float, typer.Option(help="Error allowed in ratios within a row: 0.1 keeps them within a factor of 1.1.")
]
Leak = Annotated[float, typer.Option(help="Share of a row's attention that may fall on zeros.")]
Threshold = Annotated[
    list[str] | None, typer.Option(help="Change a threshold of the findings; repeatable.", metavar="NAME=VALUE")
]


def samples_option(default: str = "", when: str = "") -> Any:
    """Return the option --samples. `default` is the default in words, `when` says where the option is used."""
    return typer.Option(help=_words("Maximum number of sequences.", default, when), min=1)


def max_tokens_option(default: str = "", when: str = "") -> Any:
    return typer.Option(help=_words("Maximum number of tokens in a sequence.", default, when), min=2)


def stack_option(default: str) -> Any:
    return typer.Option(help=_words("The stack to use, if the model has several.", default), metavar="NAME")


def budget_option(purpose: str) -> Any:
    return typer.Option(help=f"Processor seconds for {purpose}", min=0, metavar="SECONDS")


def seed_option(purpose: str, smallest: int | None = None) -> Any:
    return typer.Option(help=f"For {purpose}.", min=smallest)


def seeds_option(purpose: str) -> Any:
    return typer.Option(help=f"{purpose}: seeds 0, 1, ...", min=1)


def out_option(holds: str, name: str) -> Any:
    """Return the option --out, whose default is a folder named attnscope-NAME."""
    return typer.Option(help=f"Folder for {holds}. Default: attnscope-{name}.", metavar="FOLDER")


def chart_option(drawn: str) -> Any:
    return typer.Option(help=f"Draw {drawn}: .png, .svg, .html or .json.", metavar="FILE")


def json_option(printed: str) -> Any:
    return typer.Option("--json", help=f"Print {printed} as JSON on standard output, and nothing else.")


def resume_option(what: str) -> Any:
    return typer.Option("--resume", help=f"Continue {what}.")


SAVE = typer.Option(
    help="Also save the record to this .json file, for `attnscope report` and attnscope.load.", metavar="FILE"
)


def _words(what: str, default: str, when: str = "") -> str:
    """Return the help of an option, with where it is used and its default in words."""
    if when:
        what = f"{when}: {what[0].lower()}{what[1:]}"
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
    "dtype": typer.Option(help="float64, float32, bfloat16, float16, or auto (the dtype of the stored weights)."),
    "device": typer.Option(help="cpu, cuda, cuda:1, mps, or auto."),
    "random_init": typer.Option("--random-init", help="Use the configuration alone, with seeded random weights."),
    "allow_pickle": typer.Option("--allow-pickle", help="Accept pytorch_model.bin weights (tensors only)."),
    "trust_remote_code": typer.Option("--trust-remote-code", help="Run model code that comes with the weights."),
    "device_map": typer.Option(
        help="Spread the model over devices, memory and disk: auto, or a JSON file that maps parts to "
        "cpu, disk or cuda:0.",
        metavar="auto|FILE",
    ),
    "stream_weights": typer.Option(
        "--stream-weights", help="Hold the weights of one block at a time in memory, and run all sequences through it."
    ),
    "samples": samples_option(),
    "batch_size": typer.Option(help="Sequences in a batch; halved when memory runs out.", min=1),
    "field": typer.Option(help="The text field of .jsonl and .parquet corpora."),
    "bos": typer.Option(help="Begin sequences with the BOS token; auto follows the tokenizer or the GGUF header."),
    "verbose": typer.Option("--verbose", "-v", help="Also print the numbers behind the sentences."),
}

P = ParamSpec("P")
R = TypeVar("R")


def with_requests(options: type | None = None, /, **own: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Expand the parameters `loading`, `sampling` and `output` of a command into options.

    `options` is the TypedDict of the keywords that the twin accepts. `own` are options with a help text for this
    command; the options `out`, `save`, `chart` and `as_json` exist only if given. Fields of any other dataclass, such
    as the settings of the command, come with their type: `norm=Annotated[str, typer.Option(...)]`.
    """
    typed = {name: option for name, option in own.items() if get_origin(option) is Annotated}
    own = {name: option for name, option in own.items() if name not in typed}
    kinds = {"verbose": bool} if options is None else {"verbose": bool, **get_type_hints(options)}
    kinds |= {name: _KINDS.get(name) or kinds[name] for name in (*kinds, *own)}
    keywords = {name: Annotated[kind, own.get(name) or _OPTIONS[name]] for name, kind in kinds.items()} | typed

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        return expanded(command, keywords, inspect.signature(command, eval_str=True), hidden=True)

    return decorate
