"""The first sentence of a treatment reports both the findings and the loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnscope.commands.treat.outcomes import Judgement, Outcome
from attnscope.commands.treat.pruning_record import Order
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
    assert verdict(found).sentence == ("0.0, 1.1 can go: held-out loss −0.135 (−0.156 to −0.114), lower without them.")


def test_a_budget_is_kept_or_the_first_sentence_says_that_it_is_not() -> None:
    found = sample_pruning()
    assert found.pruning is not None
    before = found.arms["before"].losses
    dearer = replace(
        found.arms["treated"], losses=tuple(loss + 0.04 + 0.01 * (-1) ** n for n, loss in enumerate(before))
    )
    for budget, level, words in (
        (0.1, "calm", "0.0, 1.1 can go: held-out loss +0.04 (+0.0216 to +0.0584), within the budget of 0.1."),
        (0.05, "warning", "The budget of 0.05 nats per token is not met: without 0.0, 1.1 held-out loss +0.04 (+0.02"),
    ):
        pruning = replace(found.pruning, budget=budget)
        made = replace(found, arms={**found.arms, "treated": dearer}, pruning=pruning)
        said = verdict(made)
        assert said.level == level
        assert said.sentence.startswith(words)
        assert made.budget_kept is (level == "calm")


def test_a_long_list_of_heads_is_shortened() -> None:
    found = sample_pruning()
    assert found.pruning is not None
    heads = tuple((block, head) for block in range(5) for head in range(4))
    orders = (Order("size", "size of Shapley value", heads, (3.0, 3.1, 3.5)),)
    said = verdict(replace(found, pruning=replace(found.pruning, orders=orders, removed=12, total=20))).sentence
    assert said.startswith("12 of 20 heads can go: 0.0, 0.1, 0.2, 0.3 and 8 more; held-out loss −0.135 (")
    assert said.endswith("; full list in the table.")
