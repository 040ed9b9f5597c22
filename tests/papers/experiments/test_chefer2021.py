"""`chefer2021`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.chefer2021 import chefer2021

TINY = replace(chefer2021.presets["quick"], words=4, tokens=4, steps=2, texts=3)


def test_the_rules_of_relevance_hold_whatever_was_learned() -> None:
    claims = {claim.name: claim.verdict for claim in chefer2021.judged(chefer2021.run(TINY, (0,), UnsavedSession()))}
    exact = ("one_layer", "layers_add_up", "never_negative", "identity_without_support")
    assert [claims[name] for name in exact] == ["reproduced"] * 4
    assert claims["deciding_token_comes_first"] == "not run"  # nothing is learned in two steps, so nothing is judged


def test_the_answer_begins_whole_and_every_order_ends_alike() -> None:
    (figure,) = chefer2021.run(TINY, (0,), UnsavedSession()).figures
    assert {row.y for row in figure.rows if row.x == 0} == {1.0}
    ends = [row.y for row in figure.rows if row.x == 100]
    assert max(ends) - min(ends) < 1e-9  # all tokens are removed, in any order
