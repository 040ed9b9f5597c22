"""The texts behind a survey's findings: tokens of the few sequences in which the largest values were seen, as words and
as the model was given them.

    survey = with_excerpts(survey, cut, tokenizer)

Findings of the usual thresholds decide which; under others, a finding may point at a sequence whose text was not kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from attnscope.hf.loading.outputs import word
from attnscope.records.survey.diagnose import diagnose
from attnscope.records.survey.evidence import Excerpts, Sequences, samples_behind
from attnscope.records.survey.survey import Survey
from attnscope.trace.batches import Batch
from attnscope.trace.cut import Cut
from attnscope.trace.windows import Tokenizer


def wanted_samples(survey: Survey) -> frozenset[int]:
    """Numbers of the sequences that findings point at. Tokens are counted along the input of the first stack: those of
    a decoder behind an encoder are others."""
    first = survey.stacks[0] if survey.stacks else ""
    return frozenset(samples_behind(finding for finding in diagnose(survey) if finding.stack == first))


def texts_of(wanted: frozenset[int], batches: Iterable[Batch], tokenizer: Tokenizer) -> tuple[Excerpts, Sequences]:
    """The words of these sequences, and what the model was given of them."""
    kept: Excerpts = {}
    given: Sequences = {}
    for batch in batches:
        for row, sample in enumerate(batch.samples):
            if sample in wanted and "input_ids" in batch.inputs:
                given[sample] = _given(batch, row)
                kept[sample] = tuple(word(tokenizer, token) for token in given[sample]["input_ids"])
    return dict(sorted(kept.items())), dict(sorted(given.items()))


def with_excerpts(survey: Survey, cut: Cut, tokenizer: Tokenizer | None) -> Survey:
    """The survey with the texts; unchanged where the corpus is not one of texts."""
    if tokenizer is None:
        return survey
    wanted = wanted_samples(survey)
    kept, given = texts_of(wanted, cut.holding(wanted), tokenizer)
    return replace(survey, excerpts=kept, sequences=given) if kept else survey


def _given(batch: Batch, row: int) -> dict[str, tuple[int, ...]]:
    """The tokens of one sequence without padding, those that a decoder read too: `view` gives them to a model again."""
    masks = {"input_ids": batch.mask, "decoder_input_ids": batch.decoder_mask}
    rows = {name: (batch.inputs[name][row], mask) for name, mask in masks.items() if name in batch.inputs}
    return {name: tuple((ids if mask is None else ids[mask[row]]).tolist()) for name, (ids, mask) in rows.items()}
