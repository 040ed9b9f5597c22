"""Massive activations list every outlier channel, with its blocks."""

from __future__ import annotations

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.channels import outlier_channels
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding
from attnscope.core.measure import measure_cards

BLOCKS, SEQUENCES = 6, 4
# size of a channel entering each block and after the last one, and its token
CHANNELS = {507: ([5, 5, 9000, 9000, 9000, 9000, 50], 0), 247: ([5, 5, 500, 2500, 2500, 500, 50], 0)}
OTHERS = {14: ([5, 5, 5, 800, 800, 5, 5], 3)}


def survey(channels: dict[int, tuple[list[float], int]], median: float = 2.0, there: int = SEQUENCES) -> Survey:
    """Return a survey in which the channels are above 100 in the first `there` sequences."""
    cards = measure_cards()
    book = SurveyBuilder({name: cards[name] for name in ("spike", "outlier_channels")})
    for layer in range(BLOCKS + 1):
        ranked = sorted(((sizes[layer], channel, token) for channel, (sizes, token) in channels.items()), reverse=True)
        large = [entry for entry in ranked if entry[0] > 100]
        samples = np.arange(SEQUENCES)
        place = ("model", "stream", layer)
        top, channel, token = ranked[0]
        labels = {"channel": np.full(SEQUENCES, channel), "token": np.full(SEQUENCES, token)}
        book.observe("spike", "value", *place, np.full(SEQUENCES, float(top)), labels, samples)
        book.observe("outlier_channels", "value", *place, np.full(SEQUENCES, float(len(large))), None, samples)
        if large:
            book.observe("outlier_channels", "median", *place, np.full(there, median), None, samples[:there])
        for part, (size, channel, token) in zip(("first", "second", "third"), large, strict=False):
            labels = {"channel": np.full(there, channel), "token": np.full(there, token)}
            book.observe("outlier_channels", part, *place, np.full(there, float(size)), labels, samples[:there])
    return book.survey({"model": {"stacks": [{"name": "model", "layers": BLOCKS}]}})


def up(found: Survey, thresholds: Thresholds | None = None) -> Finding:
    (one,) = (f for f in diagnose(found, thresholds) if f.details.get("step") == "up")
    return one


def test_all_massive_channels_are_named_with_their_blocks() -> None:
    finding = up(survey(CHANNELS))
    assert finding.sentence.endswith(" Massive channels: 507 (blocks 2-5) and 247 (blocks 3-4).")
    assert [c["channel"] for c in finding.details["channels"]] == [507, 247]
    assert finding.details["channels"][1] == {
        "channel": 247,
        "massive": True,
        "blocks": [3, 4],
        "token": 0,
        "size": 2500.0,
        "times_median": 1250.0,
    }


def test_other_large_channels_are_named_apart_with_their_token() -> None:
    finding = up(survey({**CHANNELS, **OTHERS}))
    assert finding.sentence.endswith("247 (blocks 3-4). Others above 100: 14 (blocks 3-4, token 3).")
    finding = up(survey({**CHANNELS, **OTHERS}), Thresholds(spike_times=300.0))
    assert "Massive channels: 507 (blocks 2-5), 247 (blocks 3-4) and 14 (blocks 3-4, token 3)." in finding.sentence


def test_a_channel_in_few_sequences_is_not_listed() -> None:
    assert up(survey(CHANNELS, there=1)).details["channels"] == []
    assert len(up(survey(CHANNELS, there=2)).details["channels"]) == 2


def test_size_and_median_decide() -> None:
    listed = outlier_channels(survey(CHANNELS), "model", size=3000.0, times=1000.0)
    assert [(c.channel, c.massive) for c in listed] == [(507, True)]
    listed = outlier_channels(survey(CHANNELS, median=10.0), "model", size=100.0, times=1000.0)
    assert [(c.channel, c.massive) for c in listed] == [(507, False), (247, False)]


def test_surveys_without_the_measure_have_no_list() -> None:
    whole = survey(CHANNELS)
    spikes = {key: cell for key, cell in whole.cells.items() if key.measure == "spike"}
    finding = up(Survey(whole.provenance, {"spike": whole.cards["spike"]}, spikes))
    assert finding.details["channels"] == []
    assert "Massive channels" not in finding.sentence
