"""Options that two or more commands have in common, each said once: the same name means the same, in the same words.

Where only a few words differ from command to command (what is drawn, what is printed, what the default is), a function
makes the option:

    samples: Annotated[int, samples_option()] = 64
    chart: Annotated[Path | None, chart_option("the curves")] = None
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from attnscope.core.errors import RefusalError, nearest

# Names that a person typed, checked before anything is loaded: torch takes seconds to import, a typo should not.


def check_model(
    model: str,
    *,
    dtype: str = "float32",
    random_init: bool = False,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    shapes: bool = False,
) -> None:
    """The model must be there (a hub name is fetched); with `shapes`, one of the paper's shapes will do as well."""
    from attnscope.core.errors import refuse_without_torch
    from attnscope.hf.loading.options import Loading, refuse_unknown_dtype
    from attnscope.hf.loading.sources import find

    refuse_without_torch()
    refuse_unknown_dtype(dtype)
    if shapes and _is_shape(model) and not Path(model).exists():
        if not random_init:
            raise RefusalError(f"'{model}' is a shape without weights: pass --random-init, or name a model.")
        return
    loading = Loading(dtype, random_init=random_init, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)
    try:
        find(model, loading)
    except KeyboardInterrupt:  # a download may take long
        typer.echo("attnscope: interrupted while the model was fetched; nothing was done yet.", err=True)
        raise typer.Exit(130) from None


def check_corpus(corpus: str | None, *, drawn: bool = False) -> None:
    """`drawn`: whether the command lets a model draw sequences itself."""
    from attnscope.core.places import is_address
    from attnscope.data.read import corpus_path, repeated

    if corpus is not None and corpus != "-" and not is_address(corpus) and not (drawn and repeated(corpus)):
        corpus_path(corpus)


def check_device_map(device_map: str | None) -> None:
    from attnscope.hf.loading.options import read_device_map

    if device_map is not None:
        read_device_map(device_map)


def check_measures(measures: str) -> None:
    from attnscope.core.registry import refuse_unknown_measures

    refuse_unknown_measures(filter(None, map(str.strip, measures.split(","))))


def check_methods(methods: str) -> None:
    from attnscope.core.registry import refuse_unknown_methods

    refuse_unknown_methods(filter(None, map(str.strip, methods.split(","))))


def check_variants(variants: str) -> None:
    from attnscope.commands.collapse.record import VARIANTS

    for name in filter(None, map(str.strip, variants.split(","))):
        if name not in VARIANTS:
            raise RefusalError(f"There is no variant called '{name}'.{nearest(name, VARIANTS)}")


def check_construction(method: str) -> None:
    from attnscope.core.card import names

    known = ("auto", *names("attnscope.constructions"))
    if method not in known:
        raise RefusalError(f"There is no construction called '{method}'.{nearest(method, known)}")


def _is_shape(model: str) -> bool:
    from attnscope.commands.collapse.record import SHAPE_OF

    return model in SHAPE_OF.values()


# what is measured

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
Field = Annotated[str, typer.Option(help="The text field of .jsonl and .parquet corpora.")]
Bos = Annotated[
    Literal["auto", "yes", "no"],
    typer.Option(help="Begin sequences with the BOS token; auto does as the tokenizer or a GGUF header wants it."),
]
BatchSize = Annotated[int, typer.Option(help="Sequences in a batch; halves itself when memory runs out.", min=1)]


def samples_option(default: str = "") -> Any:
    """`default` where the help must say it in words."""
    return typer.Option(help=_words("Sequences, at most.", default), min=1)


def max_tokens_option(default: str) -> Any:
    return typer.Option(help=_words("Tokens in a sequence, at most.", default), min=2)


def stack_option(default: str) -> Any:
    return typer.Option(help=_words("Which stack of a model with several.", default), metavar="NAME")


# how a model is loaded

LoadedDtype = Annotated[str, typer.Option(help="float64, float32, bfloat16, float16, or auto for the stored one.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        help="Spread the model over devices, memory and disk: auto, or a JSON file: parts of it to cpu, disk, cuda:0.",
        metavar="auto|FILE",
    ),
]
StreamWeights = Annotated[
    bool,
    typer.Option(
        "--stream-weights",
        help="Take all sequences through one block after the other, its weights alone in memory.",
    ),
]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Accept pytorch_model.bin weights (tensors only).")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run model code that comes with the weights.")
]
RandomInit = Annotated[
    bool, typer.Option("--random-init", help="Use the configuration alone, with seeded random weights.")
]

# what a compiled head must do

HeadDtype = Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")]
RatioError = Annotated[
    float, typer.Option(help="How far ratios inside a row may be off: 0.1 keeps them within a factor 1.1.")
]
Leak = Annotated[float, typer.Option(help="Share of a row's attention that may fall on zeros.")]


def budget_option(purpose: str) -> Any:
    return typer.Option(help=f"Processor seconds for {purpose}", min=0, metavar="SECONDS")


# chance, findings, and what comes out

SaveRecord = Annotated[
    Path | None,
    typer.Option(help="Also keep the record here, for `attnscope report` and attnscope.load: .json.", metavar="FILE"),
]
Threshold = Annotated[
    list[str] | None, typer.Option(help="Change a threshold of the findings; repeatable.", metavar="NAME=VALUE")
]


Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print the numbers behind the sentences.")]


def seed_option(purpose: str, smallest: int | None = None) -> Any:
    return typer.Option(help=f"For {purpose}.", min=smallest)


def seeds_option(purpose: str) -> Any:
    return typer.Option(help=f"{purpose}: seeds 0, 1, ...", min=1)


def out_option(holds: str, name: str) -> Any:
    """All commands that find something write it, by default into a folder of one kind of name."""
    return typer.Option(help=f"Folder for {holds}. Default: attnscope-{name}.", metavar="FOLDER")


def chart_option(drawn: str) -> Any:
    return typer.Option(help=f"Draw {drawn}: .png, .svg, .html or .json.", metavar="FILE")


def json_option(printed: str) -> Any:
    return typer.Option("--json", help=f"Print {printed} as JSON on standard output, and nothing else.")


def resume_option(what: str) -> Any:
    return typer.Option("--resume", help=f"Go on with {what}.")


def _words(what: str, default: str) -> str:
    """What an option is, and its default in words, or to which other option it belongs."""
    if default.startswith("of "):
        return f"{what} ({default})"
    return f"{what} Default: {default}." if default else what
