"""The texts behind a survey's findings: tokens of the few sequences in which the largest values were seen, as words and
as the model was given them.

    survey = with_excerpts(survey, prepared, tokenizer)

Findings of the usual thresholds decide which; under others, a finding may point at a sequence whose text was not kept.
"""

from __future__ import annotations

from dataclasses import replace

from attnscope.hf.loading.outputs import word
from attnscope.records.survey.diagnose import diagnose
from attnscope.records.survey.evidence import Excerpts, Sequences, samples_behind
from attnscope.records.survey.survey import Survey
from attnscope.trace.batches import Batch, Batches
from attnscope.trace.windows import Tokenizer


def with_excerpts(survey: Survey, prepared: Batches, tokenizer: Tokenizer | None) -> Survey:
    """The survey with the texts; unchanged where the corpus is not one of texts."""
    if tokenizer is None:
        return survey
    # Tokens are counted along the input of the first stack: those of a decoder behind an encoder are others.
    first = survey.stacks[0] if survey.stacks else ""
    wanted = set(samples_behind(finding for finding in diagnose(survey) if finding.stack == first))
    kept: Excerpts = {}
    given: Sequences = {}
    for batch in prepared.batches:
        for row, sample in enumerate(batch.samples):
            if sample in wanted and "input_ids" in batch.inputs:
                given[sample] = _given(batch, row)
                kept[sample] = tuple(word(tokenizer, token) for token in given[sample]["input_ids"])
    if not kept:
        return survey
    return replace(survey, excerpts=dict(sorted(kept.items())), sequences=dict(sorted(given.items())))


def _given(batch: Batch, row: int) -> dict[str, tuple[int, ...]]:
    """The tokens of one sequence without padding, those that a decoder read too: `view` gives them to a model again."""
    masks = {"input_ids": batch.mask, "decoder_input_ids": batch.decoder_mask}
    rows = {name: (batch.inputs[name][row], mask) for name, mask in masks.items() if name in batch.inputs}
    return {name: tuple((ids if mask is None else ids[mask[row]]).tolist()) for name, (ids, mask) in rows.items()}
