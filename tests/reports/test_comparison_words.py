"""A comparison in words and on a terminal."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from attnscope.commands.compare.changes import (
    change_place,
    change_sentence,
    labels,
    largest_changes,
    names,
    setting_notes,
    values,
)
from attnscope.commands.compare.differences import Change
from attnscope.commands.compare.finding_rows import row
from attnscope.commands.compare.record import Comparison, compare
from attnscope.commands.compare.verdict import verdict
from attnscope.commands.compare.words import sentences
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from attnscope.reports.terminal import print_record
from tests.commands.compare.made import after, made, with_trial
from tests.commands.scan.survey.sample import CARDS, sample_provenance, sample_survey
from tests.reports.charts.sample_model import encoder_decoder, made_survey, observations

TOP = math.lgamma(65) / 64  # nats: uniform attention over the 64 tokens of the sample, under a causal mask


def entropies(means: list[list[float]], name: str = "sample model") -> Survey:
    ledger = SurveyBuilder(CARDS)
    for layer, line in enumerate(means):
        ledger.observe("entropy", "value", "decoder", "self", layer, np.array([line]))
    return ledger.survey(sample_provenance(len(means), len(means[0]), name=name))


def uniform(number: int, name: str = "sample model") -> Survey:
    """Return the survey of a model of 10 blocks of 4 heads, `number` of which are uniform."""
    flat = [TOP] * number + [1.5] * (40 - number)
    return entropies([flat[4 * layer : 4 * layer + 4] for layer in range(10)], name)


def printed(found: Comparison, width: int = 80, **options: Any) -> str:
    raw = io.StringIO()
    print_record(found, files={"Report": Path("both.html")}, console=Console(file=raw, width=width), **options)
    return raw.getvalue()


def test_only_losses_and_wrong_findings_are_worse_or_better() -> None:
    for old, new in ((4, 24), (24, 4), (24, 0), (0, 4)):
        told = verdict(compare(uniform(old), uniform(new)))
        assert told.level == "note"
        assert told.sentence.startswith("Nothing that is wrong is new (the loss is unknown): 1 finding changed. ")
    same = verdict(compare(uniform(4), uniform(4)))
    said = "Nothing that is wrong is new (the loss is unknown): the findings are the same. Every number is the same."
    assert (same.level, same.sentence) == ("calm", said)


def test_the_verdict_begins_with_the_loss() -> None:
    losses = (4.5, 4.6, 4.7, 4.4, 4.6, 4.5, 4.8, 4.6)
    shifts = (0.0, 0.1, -0.1, 0.05, -0.05, 0.1, -0.1, 0.0)
    base = with_trial(made(), losses)
    raised = tuple(loss + 2 + shift for loss, shift in zip(losses, shifts, strict=True))
    broken = with_trial(made(after(2)), raised, writes={(2, "mlp"): 24.0})
    worse = verdict(compare(base, broken))
    assert worse.level == "critical"
    assert worse.sentence == (
        "Worse: the loss rises by 2.00 nats per token (1.89 to 2.11): 4.59 → 6.59. "
        "Identical up to block 1; the MLP of block 2 writes 80x larger."
    )
    better = verdict(compare(broken, base))
    assert better.level == "calm"
    assert better.sentence.startswith("Better: the loss falls by 2.00 nats per token (1.89 to 2.11): 6.59 → 4.59. ")
    text = printed(compare(base, broken))
    assert text.splitlines()[1].startswith("Worse: the loss rises by 2.00 nats per token")
    assert "Losses" in text
    assert "nats per token" in text
    third = verdict(compare(base, base, broken)).sentence
    name = names(compare(base, base, broken))[2]
    assert third.startswith(f"Worse in {name}: the loss rises by 2.00")


def test_changes_of_the_block_where_models_part_come_first() -> None:
    changed = after(1, factor=1.3) | {("spike", 4): 50.0}
    found = compare(made(), made(changed))
    listed = largest_changes(found, 16)
    assert found.parting is not None
    assert found.parting.layer == 1
    blocks = [change.block for change in listed]
    assert blocks[0] == 1
    assert blocks[1] == 3  # then the largest effect
    assert blocks == [block for block in dict.fromkeys(blocks) for _ in range(blocks.count(block))]  # grouped
    assert max(blocks.count(block) for block in blocks) <= 3


def test_the_verdict_counts_the_others() -> None:
    first, second = (
        made_survey(observations(10, 4, broken=broken, tilt=tilt)) for broken, tilt in (((), 0.0), (((2, 1),), 0.3))
    )
    there, back = verdict(compare(first, second)), verdict(compare(second, first))
    assert there.level == "critical"
    assert there.sentence.startswith("New: NaN or infinity 0 → 1 head (wrong)")
    assert back.level == "note"
    assert "1 finding that was wrong is gone" in back.sentence


def test_rows_say_heads_places_or_the_number() -> None:
    steps = compare(sample_survey(6, 3), sample_survey(6, 3, seed=1))
    told = {pair.kind: row(steps, pair).words for pair in steps.findings if pair.either.details.get("step") != "down"}
    assert told["duplicate_heads"].startswith("Duplicate heads ")
    assert " heads (" in told["sink"]
    assert told["massive_activation"].startswith("Massive activation: ")

    def residuals(*means: float) -> Survey:
        ledger = SurveyBuilder(CARDS)
        for layer, mean in enumerate(means):
            ledger.observe("relative_residual", "value", "decoder", "stream", layer, np.array([mean]))
        return ledger.survey(sample_provenance())

    found = compare(residuals(0.9, 0.05, 0.05), residuals(0.9, 0.5, 0.05))
    assert [row(found, pair).words for pair in found.findings] == ["Token collapse 2 → 1 place (to know)"]
    complete = compare(residuals(0.9, 0.05, 0.05), residuals(0.9, 0.5, 0.005))
    assert [row(complete, pair).words for pair in complete.findings] == [
        "Tokens became one: 0.005 (wrong)",
        "Token collapse 2 → 0 places (was to know)",
    ]


def test_changes_are_sentences() -> None:
    found = compare(entropies([[1.2, 2.0], [3.0, 2.0]]), entropies([[3.4, 2.0], [3.0, 2.0]]))
    assert [change_sentence(found, change) for change in largest_changes(found, 8)] == [
        "Attention entropy in block 0, head 0: 1.2 → 3.4 nats"
    ]
    assert sentences(found)[-1] == "Largest change: Attention entropy in block 0, head 0: 1.2 → 3.4 nats."


@pytest.mark.parametrize(
    ("site", "layer", "head", "words"),
    [
        ("stream", 2, None, "entering block 2 of the decoder"),
        ("stream", 5, None, "after the last block of the decoder"),
        ("middle", 2, None, "inside block 2 of the decoder, after attention"),
        ("self", 2, 1, "in block 2 of the decoder, head 1"),
        ("cross", 2, 1, "in the cross-attention of block 2 of the decoder, head 1"),
    ],
)
def test_places_in_words(site: str, layer: int, head: int | None, words: str) -> None:
    survey = encoder_decoder(only=("entropy",))
    change = Change("entropy", "value", "decoder", site, layer, head, 1.0, 2.0, 1.0, 1.0)
    assert change_place(compare(survey, survey), change) == words


def test_both_numbers_can_be_told_apart() -> None:
    def told(before: float, after: float) -> tuple[str, str]:
        return values(Change("m", "value", "s", "self", 0, 0, before, after, after - before, 1.0))

    assert told(1.0, 2.0) == ("1", "2")
    assert told(1.2344, 1.2349) == ("1.234", "1.235")
    assert told(0.1, 0.1 + 1e-12) == ("0.1", "0.1")


def test_one_block_or_measure_does_not_fill_the_list() -> None:
    found = compare(made_survey(observations(6, 4)), made_survey(observations(6, 4, seed=3), name="b"))
    listed = [(change.block, change.measure) for change in largest_changes(found, 12)]
    assert len(listed) == len(set(listed)) == 12
    blocks = [block for block, _ in listed]
    assert max(blocks.count(block) for block in blocks) == 3


def changed(survey: Survey, **sections: Any) -> Survey:
    provenance = dict(survey.provenance)
    for name, value in sections.items():
        provenance[name] = {**provenance[name], **value} if isinstance(value, dict) else value
    return replace(survey, provenance=provenance)


def test_what_makes_numbers_incomparable_is_told() -> None:
    base = sample_survey()
    assert setting_notes(compare(base, base)) == ()
    assert setting_notes(compare(base, changed(base, model={"hash": "other"}))) == ()  # that is the question

    def note(other: Survey) -> str:
        (only,) = setting_notes(compare(base, other))
        return only

    assert note(changed(base, corpus={"hash": "x", "name": "wiki"})).startswith("The texts differ (sample text; wiki)")
    assert "names are the same" in note(changed(base, corpus={"hash": "x"}))
    assert note(changed(base, corpus={"window": 128})).startswith("Windows differ (64; 128 tokens)")
    assert note(changed(base, corpus={"sequences": 8})) == "Numbers of sequences differ (16; 8 sequences)."
    assert note(changed(base, dtype="bfloat16")).startswith("The precision differs (float32; bfloat16)")
    assert note(changed(base, versions={"torch": "3.0"})) == "Versions of torch differ (2.13.0; 3.0)."
    assert note(changed(base, attnscope="0.2")) == "Versions of attnscope differ (0.1.0; 0.2)."
    assert note(changed(base, model={"class": "Other"})).startswith("The models are built differently (Sample")
    fewer = replace(base, cells={key: cell for key, cell in base.cells.items() if key.measure != "spike"})
    assert note(fewer) == "Skipped, because not every survey measured them: Largest activation."
    card = replace(base.cards["entropy"], summary="Another thing.")
    assert note(replace(base, cards=base.cards | {"entropy": card})).startswith(
        "Defined differently in these surveys: Att"
    )


def test_names_differ() -> None:
    def told(*surveys: Survey) -> tuple[str, ...]:
        return names(compare(*surveys))

    one, two, three = (sample_survey(2, 2, 2, name=name) for name in ("org/a", "org/b", "other/a"))
    assert told(one, two) == ("a", "b")
    assert told(one, three) == ("org/a", "other/a")
    assert told(one, one) == ("a (first)", "a (second)")
    assert told(one, one, two) == ("a (1)", "a (2)", "b (3)")
    assert told(one, changed(one, corpus={"name": "wiki"})) == ("a (sample text)", "a (wiki)")


def test_long_names_lose_their_middle_where_they_still_differ() -> None:
    long = [f"a-checkpoint-of-a-very-long-run-at-step-{n}" for n in (1000, 2000)]
    assert labels(compare(*(uniform(n, name) for n, name in enumerate(long)))) == (
        "a-checkpoint-…n-at-step-1000",
        "a-checkpoint-…n-at-step-2000",
    )
    hidden = [f"a-checkpoint-of-{'run' * n}-of-the-model-at-step-1000" for n in (1, 2)]
    assert labels(compare(*(uniform(n, name) for n, name in enumerate(hidden)))) == tuple(hidden)


def test_the_screen_is_short_and_begins_with_the_verdict() -> None:
    first = made_survey(observations(30, 9, broken=((2, 1),)))
    second = made_survey(observations(30, 9, tilt=0.3, seed=2), name="b", corpus="other text")
    text = printed(compare(first, changed(second, corpus={"hash": "ef"})))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 30
    assert lines[1].startswith(("Nothing that is wrong is new", "Worse:", "New:"))
    for words in ("up-model → b", "Not comparable one to one", "NaN or infinity", "Changes by block", "both.html"):
        assert words in text
    assert sum(" → " in line and ", head " in line for line in lines) <= 8
    assert "--verbose" not in text or "more differences" in text


def test_verbose_shows_the_tables() -> None:
    found = compare(made_survey(observations(8, 3)), made_survey(observations(8, 3, seed=2), name="b"))
    short, long = printed(found), printed(found, verbose=True)
    assert len(long.splitlines()) > len(short.splitlines()) + 20
    assert "Heads that sink" in long
    assert "Heads that sink" not in short
    assert max(map(len, long.splitlines())) <= 80


@pytest.mark.parametrize("number", [3, 4, 6])
def test_many_surveys_on_a_screen(number: int) -> None:
    surveys = [made_survey(observations(6, 3, seed=n, tilt=0.1 * n), name=f"step {1000 * n}") for n in range(number)]
    text = printed(compare(*surveys))
    assert len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) <= 80
    if number <= 4:
        heading = next(line for line in text.splitlines() if line.startswith("    ") and line.strip())
        assert heading.split() == [word for n in range(number) for word in ("step", str(1000 * n))]
        sinks = next(line for line in text.splitlines() if line.startswith("Heads that sink"))
        assert sinks.count("%") == number
    assert "both.html" in text


def test_the_same_survey_twice_changes_nothing() -> None:
    survey = sample_survey()
    text = printed(compare(survey, survey), width=200)
    assert f"Nothing changed: {len(survey.table())} numbers compared, no difference" in text
    assert "No finding changed" in text
    assert "+0.0" not in text
    assert "Largest" not in text
    assert "Not comparable" not in text


def nudged(survey: Survey, amounts: dict[int, float]) -> Survey:
    """Return a survey with the entropies of head 0 changed in these blocks."""
    ledger = SurveyBuilder(survey.cards)
    for layer in range(4):
        moved = np.array([[2.0 + layer + amounts.get(layer, 0.0), 3.0]])
        ledger.observe("entropy", "value", "decoder", "self", layer, moved)
    return ledger.survey(survey.provenance)


def test_changes_too_small_to_show_are_counted_not_listed() -> None:
    base = nudged(sample_survey(), {})
    text = printed(compare(base, nudged(base, {1: 1e-6})), width=200)
    assert "Nothing changed noticeably: 1 of 8 numbers differ, all with an effect below 2" in text
    some = printed(compare(base, nudged(base, {1: 1e-6, 2: 0.5})), width=200)
    assert "Changes by block" in some
    assert some.count("in block") == 1


def test_models_of_different_build_are_compared_with_a_warning() -> None:
    text = printed(compare(sample_survey(4, 3), sample_survey(2, 2, name="small")), verbose=True)
    assert (
        "The models are built differently (SampleForCausalLM, decoder of 4 blocks × 3 heads; SampleForCausalLM, "
        "decoder of 2 blocks × 2 heads): blocks and heads are matched by number, and those that only one model "
        "has are skipped."
    ) in " ".join(text.split())


def test_names_are_neither_markup_nor_control_characters() -> None:
    text = printed(compare(sample_survey(name="[red]x\x1b]0;title\x07"), sample_survey(seed=1, name="b")))
    assert "[red]x" in text
    assert "\x1b]0" not in text


def test_charts_of_a_comparison() -> None:
    found = compare(uniform(4), uniform(24, name="b"))
    main = found.chart().to_dict()
    assert main["title"]["text"] == "Attention entropy"  # what the worst finding was read from
    heads = found.chart("entropy", heads=True).to_dict()
    scale = heads["encoding"]["color"]["scale"]
    assert scale["domain"][1] == 0
    assert scale["domain"][0] == -scale["domain"][2]
    assert "block 9" not in heads["title"]["text"]
    with pytest.raises(RefusalError, match="Did you mean 'entropy'"):
        found.chart("entropi")
    stream = compare(sample_survey(3, 2), sample_survey(3, 2, seed=1))
    with pytest.raises(RefusalError, match="leave heads= out"):
        stream.chart("spike", heads=True)
    assert stream.chart("spike").to_dict()
