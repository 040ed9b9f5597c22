"""`attnscope.place`: place a model, a survey or an entry of the atlas among real models of the same kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from attnscope.commands.atlas.ranges import packaged
from attnscope.commands.atlas.record import Entry, shape_of, stacks_of
from attnscope.commands.compare.run import is_survey
from attnscope.commands.place.record import Placement, placement_of
from attnscope.commands.records import opened
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.words import model_name
from attnscope.core.errors import RefusalError, refuse_missing_torch
from attnscope.core.progress import AdvanceReading, silent
from attnscope.core.words import count
from attnscope.hf.loading.options import Loading, Sampling, SeededCorpusOptions, with_options

if TYPE_CHECKING:
    from torch import nn

    from attnscope.data.windows import Tokenizer
    from attnscope.hf.loading.load import Loaded, Ready, Text

USUAL = Sampling(samples=32, max_tokens=128)  # as all models of the atlas


@with_options(SeededCorpusOptions)
def place(
    source: Survey | Entry | str | Path | nn.Module | Loaded,
    corpus: Text | Ready | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    loading: Loading = Loading(),
    sampling: Sampling = USUAL,
    progress: AdvanceReading | None = None,
    **kwargs: Unpack[SeededCorpusOptions],
) -> Placement:
    """Place a model among real models of the same kind: which of its numbers are usual, and which are not.

    Parameters
    ----------
    source : Survey, Entry, str, Path, nn.Module or Loaded
        A survey or its file, a model (which is scanned first), or an entry of `attnscope.atlas()`.
    corpus : optional
        What a model reads. It should be text like that of its training. Default: a text in the package.
    tokenizer : optional
        The tokenizer of a model in memory.
    loading : Loading
        How a model is loaded.
    sampling : Sampling
        Which sequences a model reads. Default: 32 sequences of 128 tokens, as all models of the atlas.
    dtype, device, random_init, allow_pickle, trust_remote_code : see `Loading`
        Fields of `loading` as keywords.
    samples, max_tokens, batch_size, seed, field, bos : see `Sampling`
        Fields of `sampling` as keywords.
    progress : callable, optional
        Called as `progress(stage, done, total, tokens)`.

    Returns
    -------
    Placement
        For every measure: the numbers of this model, the usual range, and how many models have a smaller median.

    Raises
    ------
    RefusalError
        If the model cannot be scanned, or the atlas has too few models of its kind.

    Examples
    --------
    >>> placement = attnscope.place(attnscope.atlas()["iglm"])
    >>> placement.inside <= 1
    True
    """
    if isinstance(source, Entry):
        return placement_of(source.name, source.parameters, source.stacks, packaged())
    if is_survey(source):
        survey = opened(source, Survey)
    else:
        with refuse_missing_torch():
            from attnscope.commands.scan.run import scan
        given: Any = source
        survey = scan(
            given, corpus, tokenizer=tokenizer, loading=loading, sampling=sampling, progress=progress or silent
        )
    size = shape_of(survey).parameters
    found = placement_of(model_name(survey), size, stacks_of(survey), packaged(), tuple(_cautions(survey)))
    if not found.rows:
        raise RefusalError(
            "The atlas has too few models of this kind to place this one among them: compare it with another model."
        )
    return found


def _cautions(survey: Survey) -> Iterator[str]:
    """Yield why the numbers may differ from those of the atlas without a difference between the models."""
    if survey.provenance.get("model", {}).get("weights") == "random":
        yield "Its weights are random: much of an untrained model is usual too."
    broken = int(survey.table()["nonfinite"].sum())
    if broken:
        yield f"{count(broken, 'number')} {'is' if broken == 1 else 'are'} NaN or infinite and left out."
    window = (survey.provenance.get("corpus") or {}).get("window")
    if isinstance(window, int) and window != USUAL.max_tokens:
        yield (
            f"These sequences have {window} tokens, those of the atlas at most {USUAL.max_tokens}: a head puts more of"
            " its attention on the first token in short texts."
        )
