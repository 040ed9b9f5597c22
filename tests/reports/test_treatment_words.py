"""The first sentence of a treatment reports both the findings and the loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnscope.commands.treat.outcomes import Judgement, Outcome
from attnscope.commands.treat.record import Treatment
from attnscope.commands.treat.words import cost_words, verdict
from attnscope.core.finding import Finding
from tests.commands.sample_treatment import LOSSES, sample_pruning, sample_treatment

NOTHING = "had no effect beyond chance"


def sinks(heads: int) -> Finding:
    return Finding(
        kind="sink",
        severity="note",
        stack="decoder",
        layers=(0,),
        heads=tuple((0, head) for head in range(heads)),
        sentence="Sinks.",
        value=0.5,
        threshold=0.3,
        threshold_name="sink_mass",
        citation="arXiv:2410.10781",
        advice="None.",
        details={"measure": "sink_mass", "site": "self"},
    )


def told(judgement: Judgement, apart: float, spread: float, *, answered: bool = True) -> Treatment:
    """Return a treatment with a verdict on sinks and a difference of losses with a spread."""
    found = sample_treatment()
    control = found.arms["control"].losses
    losses = tuple(one + apart + spread * (-1) ** n for n, one in enumerate(control))
    arms = {**found.arms, "treated": replace(found.arms["treated"], losses=losses)}
    made = replace(found, arms=arms)
    now = {"helped": 2, "harmed": 9, "unknown": 2, "changed": 5, "no effect": 5}[judgement]
    outcome = Outcome("sink", "decoder", answered, judgement, sinks(5), sinks(5), sinks(now))
    vars(made)["outcomes"] = (outcome,)  # as if it had been concluded
    return made


@pytest.mark.parametrize(
    ("judgement", "apart", "level", "words"),
    [
        ("no effect", 0.0, "note", [f"{NOTHING} (heads that sink: 5 in the control and 5 treated"]),
        ("no effect", 0.5, "warning", ["changed no finding (heads that sink: 5", "but held-out loss is 0.5 nats high"]),
        ("no effect", -0.5, "note", ["changed no finding", ", but held-out loss is 0.5 nats lower"]),
        ("helped", 0.0, "calm", ["helped (heads that sink: 5 in the control, 2 treated); held-out loss cannot"]),
        ("helped", -0.5, "calm", ["helped (", ", and held-out loss is 0.5 nats lower"]),
        ("helped", 0.5, "warning", ["helped (", ", but held-out loss is 0.5 nats higher"]),
        ("helped", 0.05, "note", ["helped (", ", but held-out loss is 0.05 nats higher"]),
        ("harmed", 0.0, "warning", ["harmed (heads that sink: 5 in the control, 9 treated); held-out"]),
        ("harmed", 0.5, "warning", ["harmed (", ", and held-out loss is 0.5 nats higher"]),
        ("unknown", 0.0, "note", ["was measured on too little text to tell a change from chance (heads that sink: 5"]),
    ],
)  # fmt: skip
def test_findings_and_loss_are_both_in_the_first_sentence(
    judgement: Judgement, apart: float, level: str, words: list[str]
) -> None:
    said = verdict(told(judgement, apart, 0.001))
    assert said.level == level
    assert all(word in said.sentence for word in words), said.sentence
    assert "loss" in said.sentence


def test_a_verdict_on_what_the_remedy_was_not_meant_for_says_why() -> None:
    said = verdict(told("harmed", 0.0, 0.001, answered=False))
    assert "harmed (heads that sink: 5 in the control, 9 treated)" in said.sentence


def test_the_time_of_few_steps_is_left_out_and_of_many_has_its_spread() -> None:
    few = sample_treatment()
    assert not any("step of training took" in told for told in cost_words(few))
    arms = {
        name: replace(arm, seconds=0.5, quartiles=(0.45, 0.6)) if name != "before" else arm
        for name, arm in few.arms.items()
    }
    many = [told for told in cost_words(replace(few, arms=arms)) if "step of training took" in told]
    assert many == [
        "A step of training took 0.5 s (half of them 0.45 to 0.6) treated and 0.5 s (half of them 0.45 to 0.6) in the "
        "control."
    ]


def test_pruning_says_what_it_cost() -> None:
    found = sample_pruning()
    assert len(found.arms["treated"].losses) == len(LOSSES)
    assert verdict(found).sentence.startswith("Without 2 heads of 4 held-out loss")
