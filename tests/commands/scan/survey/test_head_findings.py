"""Findings on heads: dormant heads, large logits, drained sinks, and pictures that words ignore."""

from __future__ import annotations

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.registry import measures
from tests.commands.scan.survey.sample import CARDS, sample_provenance
from tests.commands.scan.survey.test_diagnose import SAMPLES, only, planted


def dormant_heads_survey(*layers):
    book = SurveyBuilder({"inactive_heads": measures()["inactive_heads"].card})
    for layer, ratio in enumerate(layers):
        book.observe("inactive_heads", "value", "decoder", "self", layer, np.array([ratio, ratio]), {}, SAMPLES)
    return book.survey(sample_provenance(len(layers), heads=3, sequences=2))


def test_heads_with_small_output_are_dormant():
    finding = only(dormant_heads_survey([1.5, 1.4, 0.1], [1.0, 0.8, 1.2], [0.2, 1.7, 1.1]))
    assert (finding.kind, finding.severity, finding.heads) == ("dormant_heads", "note", ((0, 2), (2, 0)))
    assert finding.sentence == (
        "In 2 of 9 heads (blocks 0, 2) the output is below 25% of the mean over the heads of their block; lowest in "
        "head 2"
        " of block 0: 10%."
    )


def test_heads_of_usual_output_are_not_dormant():
    assert diagnose(dormant_heads_survey([1.2, 0.8, 1.0])) == ()
    assert diagnose(dormant_heads_survey([1.8, 1.0, 0.2]), Thresholds(inactive_heads=0.1)) == ()


LARGE_LOGITS_CARDS = {"max_logit": measures()["max_logit"].card}


def large_logits_survey(*layers):
    """Return a survey of two sequences with the largest logit of every head in each of them."""
    book = SurveyBuilder(LARGE_LOGITS_CARDS)
    for layer, values in enumerate(layers):
        found = np.array(values, dtype=np.float64)
        book.observe("max_logit", "value", "decoder", "self", layer, found, {"token": np.full(found.shape, 5)}, SAMPLES)
    return book.survey(sample_provenance(len(layers), heads=2, sequences=2))


def test_a_large_logit_in_one_sequence_is_found():
    finding = only(large_logits_survey([[12.0, 20.0], [11.0, 19.0]], [[30.0, 40.0], [30.0, 140.0]]))
    assert (finding.kind, finding.severity, finding.heads, finding.value) == ("large_logits", "to_know", ((1, 1),), 140)
    assert finding.sentence == ("In 1 of 4 heads (block 1) logits pass 100; the largest is 140, in head 1 of block 1.")
    assert (finding.details["sample"], finding.details["token"]) == (1, 5)


def test_logits_below_the_threshold_are_not_found():
    quiet = large_logits_survey([[12.0, 20.0], [11.0, -19.0]])
    assert diagnose(quiet) == ()
    assert only(quiet, Thresholds(max_logit=15.0)).heads == ((0, 1),)


DRAINED_SINKS_BOTH = {**CARDS, "value_drain": measures()["value_drain"].card}


def drained_sinks_survey(mass, drain):
    book = SurveyBuilder(DRAINED_SINKS_BOTH)
    planted("most_received", [mass], site="self", where={"key": [0] * len(mass)}, ledger=book)
    book.observe("value_drain", "value", "decoder", "self", 0, np.array([drain, drain]), {}, np.arange(2))
    return planted("entropy", [[2.0] * len(mass)], site="self", ledger=book)


def drained_sinks_drained(found):
    return [f for f in found if f.kind == "drained_sinks"]


def test_a_drained_value_is_found_in_sink_heads_only():
    (finding,) = drained_sinks_drained(diagnose(drained_sinks_survey([0.8, 0.6, 0.1, 0.9], [0.05, 0.9, 0.01, 0.2])))
    assert (finding.severity, finding.heads, finding.value) == ("note", ((0, 0), (0, 3)), 0.05)
    assert finding.sentence == (
        "2 of 3 heads with a sink have one with a small value: its norm is below 30% of the head's mean, lowest in "
        "head 0 of block 0: 5%."
    )


def test_sinks_with_usual_values_are_not_drained():
    assert not drained_sinks_drained(diagnose(drained_sinks_survey([0.8, 0.1], [0.7, 0.01])))
    assert not drained_sinks_drained(
        diagnose(drained_sinks_survey([0.8, 0.1], [0.2, 0.01]), Thresholds(value_drain=0.1))
    )


def media_ignored_looking(shares: list[float], even: float) -> Survey:
    card: Card = measures()["media_attention"].card
    book = SurveyBuilder({card.name: card})
    for layer, share in enumerate(shares):
        for part, value in (("from_text", share), ("from_media", 0.5), ("from_text_if_uniform", even)):
            book.observe(card.name, part, "language", "self", layer, np.full((2, 4), value), {}, np.arange(2))
    return book.survey(sample_provenance(len(shares)))


def test_blocks_that_ignore_pictures_are_named() -> None:
    (finding,) = diagnose(media_ignored_looking([0.5, 0.3, 0.04, 0.1], even=0.6))
    assert (finding.kind, finding.severity, finding.layers) == ("media_ignored", "note", (2, 3))
    assert finding.sentence == (
        "In blocks 2-3 words give tokens of pictures or sound less than 25% of what uniform attention would; lowest "
        "in block 2: 4% of their attention, where uniform attention would give 60%."
    )


def test_few_pictures_do_not_count_as_ignored() -> None:
    assert not diagnose(media_ignored_looking([0.04, 0.05], even=0.06))
    assert not diagnose(media_ignored_looking([0.5, 0.16], even=0.6))
    assert diagnose(media_ignored_looking([0.5, 0.16], even=0.6), Thresholds(media_share=0.5))
