"""Pictures that words hardly look at are said, against what even attention would give them."""

from __future__ import annotations

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.registry import measures
from tests.commands.scan.survey.sample import sample_provenance


def looking(shares: list[float], even: float) -> Survey:
    card: Card = measures()["media_attention"].card
    book = SurveyBuilder({card.name: card})
    for layer, share in enumerate(shares):
        for part, value in (("from_text", share), ("from_media", 0.5), ("from_text_if_uniform", even)):
            book.observe(card.name, part, "language", "self", layer, np.full((2, 4), value), {}, np.arange(2))
    return book.survey(sample_provenance(len(shares)))


def test_deep_blocks_that_look_away_are_named() -> None:
    (finding,) = diagnose(looking([0.5, 0.3, 0.04, 0.1], even=0.6))
    assert (finding.kind, finding.severity, finding.layers) == ("media_ignored", "note", (2, 3))
    assert finding.sentence == (
        "In blocks 2-3 words give tokens of pictures or sound less than 25% of what attention without preference would;"
        " least in block 2: 4% of their attention, where that would be 60%."
    )


def test_few_pictures_are_no_neglect() -> None:
    assert not diagnose(looking([0.04, 0.05], even=0.06))
    assert not diagnose(looking([0.5, 0.16], even=0.6))
    assert diagnose(looking([0.5, 0.16], even=0.6), Thresholds(media_share=0.5))
