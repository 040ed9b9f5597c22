"""Findings that read the trial of a scan, on trials built by hand: exact sentences, borders, and healthy trials."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.survey.trial import Exposure, HeadTrial, Part, Rescaled, Trial
from attnscope.commands.scan.words import verdict
from attnscope.core.finding import SEVERITIES
from attnscope.core.registry import findings
from tests.commands.compare.made import made
from tests.commands.scan.survey.tried import LOSS, TWO, found, healthy, only, part, parts

KINDS = (
    "sees_the_future",
    "worse_than_unigram",
    "position_blind",
    "dead_half",
    "misscaled_write",
    "untrained_block",
    "lost_precision",
    "copied_block",
)
LOWER = tuple(loss - shift for loss, shift in zip(LOSS, (0.2, 0.3, 0.2, 0.3, 0.2, 0.3, 0.2, 0.3), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trial", [None, healthy(), Trial("f", None)], ids=["no trial", "healthy", "nothing was tried"])
def test_healthy_trials_have_no_finding(kind: str, trial: Trial | None) -> None:
    assert found(kind, trial) == []


def test_these_are_all_kinds_that_read_a_trial() -> None:
    readers = [name for name, kind in findings().items() if "survey.trial" in inspect.getsource(kind.function)]
    assert sorted(readers) == sorted(KINDS)


def test_every_card_says_which_severities_are_possible_and_why() -> None:
    for name, kind in findings().items():
        assert kind.severity.startswith(SEVERITIES), name
        assert len(kind.severity.split()) > 3, name
        source = inspect.getsource(inspect.getmodule(kind.function) or kind.function)
        yielded = set(re.findall(r'"(note|to_know|wrong)"', source.split("\ndef ", maxsplit=1)[1])) or {"note"}
        assert set(re.findall(r"\b(note|to_know|wrong)\b", kind.severity)) == yielded, name


# sees_the_future


def test_a_model_that_sees_later_tokens() -> None:
    finding = only("sees_the_future", healthy(exposures=(Exposure("decoder", 0.4, 2e-6, 1),)))
    assert finding.sentence == (
        "The model sees later tokens from block 1 on: replacing the second half of a text moves states in the first"
        " half by up to 0.4 of the largest state. Rounding explains 2e-6."
    )
    assert (finding.severity, finding.stack, finding.layers, finding.heads) == ("wrong", "decoder", (1,), ())
    assert (finding.value, finding.threshold, finding.details) == (0.4, 2e-6, {"block": 1})
    assert "Check the attention mask of this block" in finding.advice


@pytest.mark.parametrize(
    ("moved", "layer", "speaks"), [(2e-6, 0, False), (2.1e-6, 0, True), (math.nan, 0, False), (0.4, None, False)]
)
def test_borders_of_later_tokens(moved: float, layer: int | None, speaks: bool) -> None:
    assert bool(found("sees_the_future", healthy(exposures=(Exposure("decoder", moved, 2e-6, layer),)))) == speaks


def test_each_stack_that_sees_later_tokens_is_named() -> None:
    several = healthy(exposures=(Exposure("encoder", 0.1, 2e-6, 0), Exposure("decoder", 0.4, 2e-6, 1)))
    said = [each.sentence for each in found("sees_the_future", several, TWO)]
    assert [words.split(":")[0] for words in said] == [
        "The model sees later tokens from block 0 of the encoder on",
        "The model sees later tokens from block 1 of the decoder on",
    ]


# worse_than_unigram


def test_a_model_that_predicts_no_better_than_frequencies() -> None:
    finding = only("worse_than_unigram", healthy(unigram=4.25))
    assert finding.sentence == (
        "The model predicts no better than token frequencies: its loss is 4.5 nats per token, and a unigram model of"
        " the same text has 4.25."
    )
    assert (finding.severity, finding.layers, finding.value, finding.threshold) == ("wrong", (), 4.5, 4.25)
    assert finding.advice.startswith("Check that the tokenizer belongs to this model")


@pytest.mark.parametrize(("unigram", "speaks"), [(4.5, True), (4.5001, False), (math.nan, False)])
def test_borders_of_the_unigram_loss(unigram: float, speaks: bool) -> None:
    assert bool(found("worse_than_unigram", healthy(unigram=unigram))) == speaks


def test_random_weights_may_predict_nothing() -> None:
    assert found("worse_than_unigram", healthy(unigram=4.0), random=True) == []


def test_windows_count_by_their_predicted_tokens() -> None:
    uneven = healthy(counts=(1, 99), loss=(1.0, 5.0), unigram=4.0)
    assert only("worse_than_unigram", uneven).value == pytest.approx(4.96)


# position_blind


def test_a_model_without_use_of_positions() -> None:
    finding = only("position_blind", healthy(order=1e-6))
    assert finding.sentence == (
        "The model does not use positions: reversing them moves its last states by 1e-6 of their norm. Rounding"
        " explains 2e-6."
    )
    assert (finding.severity, finding.stack, finding.layers) == ("wrong", "decoder", ())
    assert finding.advice.endswith("If the model was trained without positions, ignore this.")


@pytest.mark.parametrize(("order", "speaks"), [(0.0, True), (2e-6, True), (2.1e-6, False), (math.nan, False)])
def test_borders_of_positions(order: float, speaks: bool) -> None:
    assert bool(found("position_blind", healthy(order=order))) == speaks
    assert found("position_blind", healthy(order=order, order_rounding=math.nan)) == []


# dead_half


def test_one_dead_half() -> None:
    finding = only("dead_half", healthy(parts=parts(mlp_2=part(write=0.0004))))
    assert finding.sentence == "The MLP of block 2 writes next to nothing: 4e-4 of the stream."
    assert (finding.severity, finding.stack, finding.layers) == ("wrong", "decoder", (2,))
    assert (finding.value, finding.threshold, finding.threshold_name) == (0.0004, 0.002, "dead_write")
    assert finding.details == {"block": 2, "half": "mlp", "parts": [[2, "mlp"]]}


def test_a_dead_block_and_a_half_that_ignores_its_input() -> None:
    silent = {"attention_1": part("attention", 1, write=0.0, varies=0.0), "mlp_1": part("mlp", 1, write=0.001)}
    finding = only("dead_half", healthy(parts=parts(**silent)))
    assert finding.sentence == (
        "2 half blocks (block 1) write next to nothing: at most 0.001 of the stream. Block 1 is dead as a whole."
    )
    both = only("dead_half", healthy(parts=parts(**silent, attention_3=part("attention", 3, varies=0.0005))))
    assert both.sentence == (
        "2 half blocks (block 1) write next to nothing: at most 0.001 of the stream. The attention of block 3 writes"
        " the same at every token: 5e-4 of the output depends on the token. Block 1 is dead as a whole."
    )
    assert both.layers == (1, 3)


def test_a_half_that_writes_zeros_writes_nothing() -> None:
    trial = healthy(parts=(*parts("encoder"), *parts(mlp_2=part(write=0.0, varies=0.0))))
    finding = only("dead_half", trial, TWO)
    assert finding.sentence == "The MLP of block 2 of the decoder writes nothing."
    assert finding.stack == "decoder"


@pytest.mark.parametrize(
    ("fields", "speaks"),
    [
        ({"write": 0.002}, False),
        ({"write": 0.00199}, True),
        ({"varies": 0.002}, False),
        ({"varies": 0.00199}, True),
        ({"write": math.nan, "varies": math.nan}, False),
    ],
)
def test_borders_of_dead_halves(fields: dict[str, float], speaks: bool) -> None:
    assert bool(found("dead_half", healthy(parts=parts(mlp_2=part(**fields))))) == speaks


def test_the_threshold_of_dead_halves_can_be_changed() -> None:
    assert len(only("dead_half", healthy(), dead_write=0.5).details["parts"]) == 8


# misscaled_write


def rescaled(factor: float, half: Any = "mlp", loss: tuple[float, ...] = LOWER, **fields: Any) -> Part:
    return part(half, rescaled=(Rescaled(factor, loss, 0.1),), **fields)


@pytest.mark.parametrize(
    ("factor", "words", "advice"),
    [
        (0.0, "The MLP of block 2 harms the prediction: without it", "rows that are too large"),
        (0.5, "The MLP of block 2 writes too much: at 0.5 times its size", "a scale that is applied twice"),
        (2.0, "The MLP of block 2 writes too little: at 2 times its size", "rows that are zero or too small"),
    ],
)
def test_a_write_that_is_too_large_or_too_small(factor: float, words: str, advice: str) -> None:
    finding = only("misscaled_write", healthy(parts=parts(mlp_2=rescaled(factor))))
    assert finding.sentence == f"{words} the loss falls by 0.25 nats per token (0.16 to 0.34), from 4.5."
    assert (finding.severity, finding.stack, finding.layers, finding.heads) == ("wrong", "decoder", (2,), ())
    assert finding.value == pytest.approx(0.25)
    assert (finding.threshold, finding.threshold_name) == (0.03, "rescaling_gain")
    assert finding.details == {"block": 2, "half": "mlp", "factor": factor, "slope": 0.5}
    assert advice in finding.advice
    assert "`attnscope compare`" in finding.advice


def test_the_best_part_and_its_head_are_named_and_the_others_counted() -> None:
    better = tuple(loss - 0.2 for loss in LOWER)
    changed = {"attention_2": rescaled(0.0, "attention", better), "mlp_1": rescaled(0.5, layer=1)}
    head = HeadTrial("decoder", 2, 3, 0.4, (Rescaled(0.0, LOWER, 0.1),))
    finding = only("misscaled_write", healthy(parts=parts(**changed), heads=(head,)))
    assert finding.sentence == (
        "The attention of block 2 harms the prediction: without it the loss falls by 0.45 nats per token (0.36 to"
        " 0.54), from 4.5. Without head 3 alone it falls by 0.25. Rescaling another part lowers it too."
    )
    assert finding.heads == ((2, 3),)
    three = parts(**changed, mlp_3=rescaled(0.5, layer=3))
    small = replace(head, rescaled=(Rescaled(0.0, tuple(loss - 0.2 for loss in LOSS), 0.1),))
    other = only("misscaled_write", healthy(parts=three, heads=(small,)))
    assert other.sentence.endswith("from 4.5. Rescaling one of 2 other parts lowers it too.")
    assert other.heads == ()


def test_a_gain_that_one_of_many_tries_shows_by_chance_is_not_told() -> None:
    gains = (0.0, 0.12) * 4  # t = 2.6 on seven degrees of freedom: beyond 95% for one try, and not for four
    loss = tuple(old - gain for old, gain in zip(LOSS, gains, strict=True))
    lone = {"mlp_2": rescaled(0.5, loss=loss)}
    worse = tuple(old + 1.0 for old in LOSS)
    others = {f"mlp_{n}": rescaled(0.5, layer=n, loss=worse) for n in (0, 1, 3)}
    apart: dict[str, Any] = {"loss": LOSS * 2, "counts": (63,) * 16, "tried_from": 8}  # slopes are of other windows
    assert found("misscaled_write", healthy(parts=parts(**lone), **apart))
    assert not found("misscaled_write", healthy(parts=parts(**lone, **others), **apart))
    assert not found("misscaled_write", healthy(parts=parts(**lone)))  # every part was tried on the same windows


@pytest.mark.parametrize(
    ("gains", "speaks"),
    [
        ((0.0301,) * 8, True),
        ((0.0299,) * 8, False),
        ((0.5, -0.4) * 4, False),  # 0.05 on average, and not beyond chance
        ((0.5,), False),  # one window
        ((-0.5,) * 8, False),
        ((), False),
    ],
)
def test_borders_of_rescaling(gains: tuple[float, ...], speaks: bool) -> None:
    loss = tuple(old - gain for old, gain in zip(LOSS, gains, strict=False))
    assert bool(found("misscaled_write", healthy(parts=parts(mlp_2=rescaled(0.5, loss=loss))))) == speaks


@pytest.mark.parametrize(("slope", "speaks"), [(0.12, True), (-0.12, True), (0.119, False), (math.nan, False)])
def test_a_slope_of_healthy_models_is_no_reason_to_speak(slope: float, speaks: bool) -> None:
    assert bool(found("misscaled_write", healthy(parts=parts(mlp_2=rescaled(0.5, slope=slope))))) == speaks


def test_a_trial_of_one_window_says_nothing_about_rescaling() -> None:
    one = healthy(counts=(63,), loss=(4.5,), parts=parts(mlp_2=rescaled(0.5, loss=(1.0,))))
    assert found("misscaled_write", one) == []


def test_rescaling_is_compared_with_the_windows_on_which_it_was_tried() -> None:
    first = (9.0,) * 8  # windows on which slopes were measured
    trial = healthy(
        counts=(63,) * 16, loss=first + LOSS, tried_from=8, parts=parts(mlp_2=rescaled(0.5)), unigram=math.nan
    )
    assert only("misscaled_write", trial).sentence.endswith("falls by 0.25 nats per token (0.21 to 0.29), from 4.5.")


def test_losses_of_windows_that_do_not_exist_are_ignored() -> None:
    longer = healthy(parts=parts(mlp_2=rescaled(0.5, loss=(*LOWER, 0.0, 0.0))))
    assert only("misscaled_write", longer).value == pytest.approx(0.25)
    beyond = healthy(tried_from=8, parts=parts(mlp_2=rescaled(0.5)))
    assert found("misscaled_write", beyond) == []


def test_random_weights_are_at_no_minimum() -> None:
    assert found("misscaled_write", healthy(parts=parts(mlp_2=rescaled(0.0))), random=True) == []


def test_the_stack_of_a_misscaled_write_is_named() -> None:
    trial = healthy(parts=(*parts("encoder", mlp_2=rescaled(0.5, stack="encoder")), *parts()))
    finding = only("misscaled_write", trial, TWO)
    assert finding.sentence.startswith("The MLP of block 2 of the encoder writes too much: ")
    assert finding.stack == "encoder"


# tokens_became_one reads a measure, not a trial


def streams(*means: float) -> Survey:
    factors = {("relative_residual", layer): mean / 0.5 for layer, mean in enumerate(means)}
    return made(factors)


def test_tokens_that_became_one() -> None:
    (finding,) = [each for each in diagnose(streams(0.8, 0.5, 0.1, 0.001, 0.001)) if each.kind == "tokens_became_one"]
    assert re.fullmatch(
        r"All tokens are practically equal entering block 3 and after the last: they differ by \S+ of their norm\.",
        finding.sentence,
    )
    assert (finding.severity, finding.layers, finding.threshold) == ("wrong", (3, 4), 0.01)
    assert "skip connections" in finding.advice


@pytest.mark.parametrize("means", [(0.8, 0.5, 0.1, 0.05, 0.03), (0.8, math.nan, math.nan, math.nan, 0.5)])
def test_tokens_that_stay_apart(means: tuple[float, ...]) -> None:
    assert "tokens_became_one" not in {each.kind for each in diagnose(streams(*means))}


@pytest.mark.parametrize(
    ("fields", "begins"), [({}, "Healthy"), ({"loss": (), "counts": ()}, "Nothing wrong was found")]
)
def test_a_model_of_unknown_loss_is_not_called_healthy(fields: dict[str, Any], begins: str) -> None:
    survey = replace(made({("sink_mass", layer): 0.1 for layer in range(4)}), trial=healthy(**fields))
    said = verdict(survey, findings=())
    assert said.level == "calm"
    assert said.sentence.startswith(begins)
    assert ("The loss is unknown" in said.sentence) == bool(fields)
