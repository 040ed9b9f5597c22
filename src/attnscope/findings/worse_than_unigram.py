"""Worse than unigram: the model predicts the text no better than the frequencies of its tokens do.

The unigram model knows the tokens of all other windows. A language model that reads text of its own kind is far better.
One that is not gets the wrong tokens (another tokenizer), the wrong text, or is broken as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import number


@finding(
    order=6,
    reads=(),
    summary="The model predicts no better than the frequencies of tokens.",
    citation="Witten and Bell 1991",
    severity="wrong: the model has learned nothing about this text, or gets the wrong tokens",
)
def worse_than_unigram(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    trial = survey.trial
    random = survey.provenance.get("model", {}).get("weights") == "random"
    if trial is None or random or not trial.loss or not trial.mean_loss >= trial.unigram:
        return
    yield Finding(
        kind=worse_than_unigram.name,
        severity="wrong",
        stack=survey.stacks[-1] if survey.stacks else "",
        layers=(),
        heads=(),
        sentence=(
            f"The model predicts no better than token frequencies: its loss is {number(trial.mean_loss)} nats per"
            f" token, and a unigram model of the same text has {number(trial.unigram)}."
        ),
        value=trial.mean_loss,
        threshold=trial.unigram,
        threshold_name="unigram loss",
        citation=worse_than_unigram.citation,
        advice=(
            "Check that the tokenizer belongs to this model, that the text is of the kind it was trained on, and that"
            " all weights were loaded."
        ),
        details={},
    )
