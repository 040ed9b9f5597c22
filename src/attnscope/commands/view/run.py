"""view(model, text) -> View: the attention of every head on one text, for a page in a single file.

    view = attnscope.view("pocket", "The dog saw the dog")
    view.save("view.html"); view.attention(layer=3, head=1)
    attnscope.view("pocket", survey="attnscope-pocket", sample=6)      the sequence behind a finding, token by token

The model runs once with its fused attention. The maps of each block are computed in groups of rows from queries and
keys, compared with the model's own output, and stored in eight bits per weight. No whole map exists in floating point.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from attnscope.commands.records import opened
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.view.choosing import Behind, Choice, behind_finding, chosen
from attnscope.commands.view.maps import Gathered, inputs_of, parts_of
from attnscope.commands.view.record import Opened, Part, View
from attnscope.commands.view.settings import ViewOptions, ViewSettings, Words
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.core.words import ranges
from attnscope.data.medium import readable
from attnscope.data.windows import Tokenizer
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.anatomy.example import cut_down, run
from attnscope.hf.intercepting.restoring import (
    ExchangedModulesError,
    evaluating,
    keeping_its_modules,
    looking_at,
    without_cache,
    without_gradients,
)
from attnscope.hf.loading.in_memory import refuse_broken_weights
from attnscope.hf.loading.load import Loaded, load, precision_and_place, refusing_what_does_not_run
from attnscope.hf.loading.memory import refusing_when_memory_runs_out
from attnscope.hf.loading.one_input import reading_of
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.loading.options import Loading, Sampling, with_options
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.tapping.tap import tap
from attnscope.hf.tapping.verify import Verification, verify

VERIFIED_TOKENS = 256  # the verifier is dense in float64, so it only reads the beginning of a longer text

Text = str | Path | tuple[Any, Any] | Mapping[str, Any]


@with_options(ViewOptions)
def view(
    model: str | Path | nn.Module | Loaded,
    text: Text | None = None,
    *,
    settings: ViewSettings = ViewSettings(),
    survey: Survey | str | Path | None = None,
    sample: int | None = None,
    loading: Loading = Loading(),
    sampling: Sampling = Sampling(),
    tokenizer: Tokenizer | None = None,
    processor: Any | None = None,
    progress: Advance = silent,
    **kwargs: Unpack[ViewOptions],
) -> View:
    """Show the attention of every head on one text.

    Parameters
    ----------
    model : str, Path, torch.nn.Module or Loaded
        The model.
    text : str, Path, tuple or mapping, optional
        A text, picture or sound, a pair of inputs, or a ready batch of one sequence. Given the source alone, an
        encoder-decoder writes the target itself.
    block, head : int, str or sequence of int, optional
        A single number says where the page opens, by default at the head that looks most at the first token. Of
        several (`"0-3"`, `[0, 5]`), only these are kept.
    survey, sample : Survey or path, int, optional
        A survey, and a sequence that one of its findings names, instead of `text`.
    max_mb : float
        The largest page, in megabytes.
    settings : ViewSettings
        `block`, `head` and `max_mb` as one object.
    loading, sampling : Loading, Sampling
        How the model is loaded and how the text begins.
    dtype, device, random_init, seed, allow_pickle, trust_remote_code, bos : see `Loading` and `Sampling`
        Fields of both as keywords.
    tokenizer, processor : optional
        The tokenizer of a model in memory, and the processor of pictures and sounds.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    View
        Attention maps in eight bits a weight. `save("view.html")` writes the page.

    Raises
    ------
    RefusalError
        If neither or both of `text` and `survey` are given, the page would exceed `max_mb`, or recomputed attention
        does not agree with the model.

    Examples
    --------
    >>> view = attnscope.view("pocket", "The dog saw the dog", block=3, head=1)
    """
    block, head, max_mb = settings.block, settings.head, settings.max_mb
    _refuse_no_size(max_mb)
    source, behind = _asked(readable(text), survey, sample)
    if behind is not None and block is None and head is None:
        block, head = behind.layer, behind.head
    progress("loading", 0, 0)
    loaded = load(model, loading=loading, tokenizer=tokenizer, cast=False)
    refuse_broken_weights(loaded)
    read = reading_of(loaded, source, sampling.bos, processor=processor, what="Views")
    _refuse_single(read)
    with looking_at(loaded.model), quiet(), _fitting(len(read.words)), without_gradients():
        progress("probing", 0, 0)
        with refusing_what_does_not_run(loaded, "this text"):
            structure = anatomy(loaded.model, read.batch)
            check = _verified(loaded, structure, read)
        blocks = chosen(block, (site.layer for site in structure.sites), "block")
        heads = chosen(head, (number for site in structure.sites for number in range(site.heads)), "head")
        gathered = Gathered(structure, blocks.kept, heads.kept, max_mb, progress)
        gathered.refuse_long_text(read.batch)
        with (
            evaluating(loaded.model),
            without_cache(loaded.model),
            refusing_what_does_not_run(loaded, "this text"),
            tap(loaded.model, structure, gathered.receive),
        ):
            run(loaded.model, read.batch)
    parts = parts_of(gathered, structure)
    notes = [*read.notes, *structure.notes, *_left_out(blocks, heads, block, head)]
    if survey is not None:
        notes += _notes_on_survey(opened(survey, Survey), loaded, behind)
    return View(
        model=loaded.name,
        class_name=loaded.class_name,
        text=_said(source, read),
        dtype=str(precision_and_place(loaded.model)[0]).removeprefix("torch."),
        inputs=inputs_of(gathered, loaded, read),
        parts=parts,
        opened=_opened(parts, blocks, heads),
        checked=_checked(check, gathered.disagreement, len(read.words)),
        notes=tuple(notes),
        provenance=loaded.stamped(
            **_begun(read, survey),
            **({} if behind is None else {"sample": behind.sample}),
            routes=list(structure.routes),
            seed=loading.seed,
        ),
    )


def _refuse_no_size(max_mb: float) -> None:
    if isinstance(max_mb, bool) or not isinstance(max_mb, int | float) or not max_mb > 0:
        raise RefusalError(f"`max_mb=` cannot be {max_mb!r}: give a number of megabytes above 0.")


def _asked(text: Text | None, survey: Survey | str | Path | None, sample: int | None) -> tuple[Text, Behind | None]:
    """Return the text, or the tokens of a sequence of the survey."""
    if survey is None:
        if text is None or sample is not None:
            raise RefusalError("Give a text to view, or a survey and a sample of it (`survey=SURVEY`, `sample=N`).")
        return text, None
    if text is not None:
        raise RefusalError("A text and a survey cannot be viewed together: give one of them.")
    behind = behind_finding(opened(survey, Survey), sample)
    kept = opened(survey, Survey).sequences[behind.sample]
    return {name: torch.tensor([ids]) for name, ids in kept.items()}, behind


def _begun(read: Reading, survey: Survey | str | Path | None) -> dict[str, Any]:
    """Return the note on BOS: from the survey if it has one, else from the reading."""
    noted = None if survey is None else opened(survey, Survey).provenance.get("bos")
    if noted is not None:
        return {"bos": noted}
    return read.bos_note()


def _said(source: Any, read: Reading) -> str:
    """Return the text, or the name of the file, for the record."""
    if read.scenes:
        return read.scenes[0].name
    return source if isinstance(source, str) else source[0] if isinstance(source, tuple) else ""


def _refuse_single(read: Reading) -> None:
    """Refuse a text of one token, which can only attend to itself."""
    rows = [t for name, t in read.batch.items() if name.endswith("input_ids") and isinstance(t, torch.Tensor)]
    if rows and all(row.shape[-1] < 2 for row in rows):
        raise RefusalError("The text is a single token, which can only attend to itself: give at least two tokens.")


def _verified(loaded: Loaded, structure: Anatomy, read: Reading) -> Verification:
    """Verify on this text, or on the beginning of a long one; refuse if numbers disagree."""
    short = len(read.words) <= VERIFIED_TOKENS
    with evaluating(loaded.model), without_cache(loaded.model):
        try:
            with keeping_its_modules(loaded.model):
                batch = read.batch if short else cut_down(loaded.model, read.batch)
                check = verify(loaded.model, batch, structure)
        except ExchangedModulesError:
            check = verify(loaded.model, read.batch, structure)
    if not check.passed:
        raise RefusalError(f"The maps of {loaded.class_name} would be wrong: {check.sentence}")
    return check


def _checked(check: Verification, disagreement: float, tokens: int) -> str:
    where = "" if tokens <= VERIFIED_TOKENS else " (on the beginning of the text)"
    return (
        f"On this text, weights times values agree with the model's output within {disagreement:.1e} of its largest "
        f"entry in every block. The verifier{where}: {check.sentence}"
    )


def _left_out(blocks: Choice, heads: Choice, block: Words, head: Words) -> list[str]:
    notes = []
    for choice, words, what in ((blocks, block, "blocks"), (heads, head, "heads")):
        if words is not None and not isinstance(words, int) and not str(words).strip().isdecimal():
            notes.append(f"Only {what} {ranges(choice.kept)} were kept.")
    return notes


def _notes_on_survey(survey: Survey, loaded: Loaded, behind: Behind | None) -> list[str]:
    surveyed = survey.provenance.get("model", {}).get("hash")
    notes = []
    if behind is not None:
        notes.append(f"Sample {behind.sample} of a survey, token for token. {behind.sentence}".strip())
    if surveyed is not None and surveyed != loaded.sha256:
        notes.append("The survey is of other weights: its findings need not be visible here.")
    return notes


def _opened(parts: tuple[Part, ...], blocks: Choice, heads: Choice) -> Opened:
    """Return the head of which the verdict speaks: in the first part that has the chosen block and head, of those the
    one that looks most at the first token.
    """
    for part in parts:
        fitting = [one for one in part.heads if blocks.opens in (None, one.layer) and heads.opens in (None, one.head)]
        if fitting:
            most = max(fitting, key=lambda one: one.first)
            return Opened(part.name, most.layer, most.head)
    raise RefusalError(f"Block {blocks.opens} has no head {heads.opens}: choose with `block=` and `head=`.")


def _fitting(tokens: int) -> AbstractContextManager[None]:
    """If memory runs out, refuse and suggest a smaller number of tokens."""
    return refusing_when_memory_runs_out(
        f"A view of {tokens} tokens does not fit into memory: give one of {max(tokens // 2, 2)} tokens, or fewer "
        "blocks with `block='0-3'`."
    )
