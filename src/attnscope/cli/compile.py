"""`attnscope compile`: the narrowest head for a sparse pattern, with a certificate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli.options import (
    HeadDtype,
    Leak,
    RatioError,
    budget_option,
    chart_option,
    json_option,
    seed_option,
    with_requests,
)
from attnscope.cli.output import say
from attnscope.cli.runner import INTERRUPTED, Output, running
from attnscope.commands.compile.settings import CompileSettings
from attnscope.core.card import names
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path
from attnscope.core.progress import uninterrupted

if TYPE_CHECKING:
    from attnscope.heads.pattern import Pattern

CONSTRUCTIONS = names("attnscope.constructions")


@with_requests(
    ratio_error=RatioError,
    leak=Leak,
    dtype=HeadDtype,
    method=Annotated[str, typer.Option(help=f"auto, {', '.join(CONSTRUCTIONS[:-1])} or {CONSTRUCTIONS[-1]}.")],
    width=Annotated[int | None, typer.Option(help="Build the best head of this width instead of searching.", min=1)],
    universal=Annotated[
        bool,
        typer.Option(
            "--universal",
            help="Use keys that do not depend on the pattern; the certificate says whether they are proved to work for "
            "all patterns.",
        ),
    ],
    seed=Annotated[int, seed_option("generated patterns and for the search", 0)],
    budget=Annotated[
        float,
        budget_option("the search (approximate). If no head is found by then, the search continues until one is."),
    ],
    out=typer.Option(
        help="Folder for head.safetensors and head.html, or a .safetensors file for the head alone. Default: "
        "attnscope-PATTERN.",
        metavar="PLACE",
    ),
    chart=chart_option("target, realised pattern and error"),
    as_json=json_option("the certificate"),
)
def compile(
    pattern: Annotated[
        str | None,
        typer.Argument(
            help="A file (.npz, .npy, .mtx, .json; .txt and .csv with one edge per line: row, column, weight) or a "
            "generator: permutation, union_of_permutations, window, strided, sink_window, block, random_graph, "
            "induction, previous_token.",
            show_default=False,
        ),
    ] = None,
    n: Annotated[int | None, typer.Option("-n", help="Rows of a generated pattern.", min=1)] = None,
    k: Annotated[
        int | None, typer.Option("-k", help="Non-zeros in a row of a generated or observed pattern.", min=1)
    ] = None,
    settings: CompileSettings = CompileSettings(),
    causal: Annotated[
        bool, typer.Option("--causal", help="Queries see no later key: entries above the diagonal are masked.")
    ] = False,
    normalise: Annotated[bool, typer.Option("--normalise", help="Divide every row by its sum first.")] = False,
    model: Annotated[
        str | None, typer.Option(help="Take the pattern from a head of this model while it reads --text.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="What the model reads: a text, or a text file.")] = None,
    block: Annotated[int, typer.Option(help="Block of the observed head, from 0.", min=0)] = 0,
    head: Annotated[int, typer.Option(help="The observed head.", min=0)] = 0,
    output: Output = Output(),
) -> None:
    """Build the narrowest attention head that does what PATTERN says, with a certificate that proves it does."""
    from attnscope.cli.files import HEAD, checked_file, pattern_folder, text_or_file
    from attnscope.cli.options import check_construction, check_model

    out = output.out
    alone = out is not None and out.suffix.lower() == ".safetensors"
    if out is not None and (alone or (out.suffix and not out.is_dir())):
        checked_file(out, "--out", (".safetensors",))
    _check_source(pattern, n, model, text, causal or normalise)
    check_construction(settings.method)
    settings.checked()
    if model:
        check_model(model)
    with running(output, doing="any head") as run:
        if model:
            from attnscope.hf.loading.load import load
            from attnscope.hf.tapping.observed import observed_pattern

            run.progress(f"reading the text with {model}", 0, 0)
            target = observed_pattern(load(model), text_or_file(text or ""), block=block, head=head, k=k or 4)
            name = f"{Path(model).name}-layer{block}-head{head}"
        else:
            target = _pattern(str(pattern), n, k, settings.seed, causal, normalise)
            name = f"{pattern}-n{n}-k{k or 1}" if n is not None else Path(str(pattern)).stem
        if not alone:
            run.enter(out or pattern_folder(name, target))
        from attnscope.commands.compile.run import compile as twin

        compiled = twin(target, settings=settings, progress=run.progress)
        if alone or compiled.interrupted:  # after Ctrl-C, do not make the user wait for a drawing
            with uninterrupted():
                run.files = {"Page": None, "Head": compiled.save(out if alone and out else run.folder / HEAD)}
        else:
            run.keep(compiled, HEAD, "head.html", label="Head")
    run.tell(compiled, printed=lambda files: compiled.to_json() | files)
    where = run.files["Head"]
    if compiled.interrupted:
        say(f"interrupted; the best head so far is in {where}.")
        raise typer.Exit(INTERRUPTED)
    if compiled.out_of_time:
        say("the search was stopped by its time limit: raise it with --budget.")
    if not compiled.reached:
        say(f"the accuracy was not reached; the best head, marked as failing, is in {where}.")
        raise typer.Exit(1)


def _check_source(pattern: str | None, n: int | None, model: str | None, text: str | None, changed: bool) -> None:
    if model == "":
        raise RefusalError("The name after --model is empty: name a folder, a hub name, a .gguf file, or 'pocket'.")
    if model is not None:
        if pattern is not None:
            raise RefusalError("Both a pattern and --model are given: leave one of them out.")
        if text is None:
            raise RefusalError("--model needs a text to read: give it with --text.")
        if n is not None:
            raise RefusalError("-n is for generated patterns: with --model, the text says how many rows there are.")
        if changed:
            raise RefusalError("--causal and --normalise are for given patterns: leave them out with --model.")
        return
    if text is not None:
        raise RefusalError("--text needs a model that reads it: name the model with --model.")
    if not pattern:
        raise RefusalError("No pattern is given: name a file or a generator, or a model with --model and --text.")


def _pattern(source: str, n: int | None, k: int | None, seed: int, causal: bool, normalise: bool) -> Pattern:
    """Generate the pattern if `source` is the name of a generator, else read it as a file."""
    from attnscope.heads.generate import GENERATORS, generate

    path = named_path(source, "pattern")
    if source not in GENERATORS and (path.exists() or path.suffix or os.sep in source):
        from attnscope.heads.read_pattern import read_pattern

        if n is not None or k is not None:
            raise RefusalError(f"-n and -k are for generated patterns: the size of {source} is in the file.")
        return read_pattern(path, causal=causal, normalise=normalise)
    if source in GENERATORS and n is None:
        raise RefusalError(f"A generated pattern needs a size: give {source} a size with -n, such as -n 256.")
    return generate(source, n or 1, 1 if k is None else k, seed=seed, causal=causal)
