"""The texts behind a survey's findings: tokens of the few sequences in which the largest values were seen.

    survey = with_excerpts(survey, prepared, tokenizer)

Findings of the usual thresholds decide which; under others, a finding may point at a sequence whose text was not kept.
"""

from __future__ import annotations

from dataclasses import replace

from attnscope.hf.loading.outputs import word
from attnscope.records.survey.diagnose import diagnose
from attnscope.records.survey.evidence import Excerpts, samples_behind
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
    for batch in prepared.batches:
        for row, sample in enumerate(batch.samples):
            if sample in wanted and "input_ids" in batch.inputs:
                kept[sample] = _texts(batch, row, tokenizer)
    return replace(survey, excerpts=dict(sorted(kept.items()))) if kept else survey


def _texts(batch: Batch, row: int, tokenizer: Tokenizer) -> tuple[str, ...]:
    ids = batch.inputs["input_ids"][row]
    real = ids if batch.mask is None else ids[batch.mask[row]]
    return tuple(word(tokenizer, int(token)) for token in real.tolist())
