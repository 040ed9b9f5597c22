"""The record of an explanation: table, order of tokens, agreement of methods, and refusals of damaged files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import attnscope
from attnscope.commands.explain.record import Asked, Explanation, Scored
from tests.reports.sample_explanation import sample_explanation


def test_loaded_record_equals_the_saved_one(tmp_path: Path) -> None:
    for found in (sample_explanation(), sample_explanation(stacks=2)):
        path = found.save(tmp_path / "explanation.json")
        assert attnscope.load(path) == found
        assert Explanation.load(tmp_path) == found


def test_top_sorts_by_score_and_then_by_reading_order() -> None:
    found = sample_explanation()
    assert [token.place for token in found.top("relevance", 3)] == [4, 3, 5]
    assert [token.word for token in found.top("occlusion", 1)] == [" France"]
    with pytest.raises(attnscope.RefusalError, match="Did you mean 'occlusion'"):
        found.top("oclusion")


def test_equal_tokens_are_named_together() -> None:
    found = sample_explanation()
    rows = {
        "one token has the whole score": ((0.0,) * 6 + (1.0,) + (0.0,) * 3, [[6], [6]], 7),
        "BOS has an equal": ((1.0,) + (0.0,) * 6 + (1.0, 0.5, 0.5), [[0, 7], [0, 7, 8, 9]], 1),
        "all scores are equal": ((0.0,) * 10, [[], []], 7),
    }
    for row, named, more in rows.values():
        single = replace(found, methods=(replace(found.methods[0], scores=(row,)),))
        assert [[token.place for token in single.named("relevance", few)] for few in (1, 3)] == named
        assert single.unlisted("relevance", 3) == more  # equal to the third of the list, and not in it
        assert single.unlisted("relevance", 10) == 0


def test_the_table_has_a_row_for_each_method_and_token() -> None:
    found = sample_explanation(stacks=2)
    table = found.table()
    assert list(table.columns) == ["method", "input", "place", "token", "score"]
    assert len(table) == 4 * 20 + 10  # rollout scores the decoder only
    assert set(table[table["method"] == "rollout"]["input"]) == {"decoder"}
    assert found.method("rollout").total == pytest.approx(sum(0.5**n for n in range(10)))


def test_agreement_is_spearmans_rank_correlation() -> None:
    found = sample_explanation()
    own = found.method("relevance")
    opposite = replace(own, name="opposite", scores=tuple(tuple(-x for x in row) for row in own.scores))
    squared = replace(own, name="squared", scores=tuple(tuple(x * x for x in row) for row in own.scores))
    flat = replace(own, name="flat", scores=((1.0,) * 10,))
    known = replace(found, methods=(own, opposite, squared, flat, found.method("random"))).agreement()
    assert known["relevance", "opposite"] == pytest.approx(-1)
    assert known["relevance", "squared"] == pytest.approx(1)
    assert math.isnan(known["relevance", "flat"])
    assert not any("random" in pair for pair in known), "random scores take no part"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["methods"][0]["scores"][0].pop(), r"methods\[0\].scores: a number for every token"),
        (lambda data: data["methods"][1].update(scores=[]), r"methods\[1\].scores"),
        (lambda data: data.update(methods=[]), "at least one method"),
        (lambda data: data["methods"].append(data["methods"][0]), "listed twice"),
        (lambda data: data["asked"].update(kind="wish"), "asked"),
        (lambda data: data["lengths"]["tokens"].pop(), "lengths"),
        (lambda data: data["lengths"]["constants"].pop(), "lengths"),
    ],
)
def test_refusal_names_the_wrong_field(tmp_path: Path, change, message: str) -> None:
    data = sample_explanation().to_json()
    change(data)
    path = tmp_path / "explanation.json"
    path.write_text(json.dumps(data))
    with pytest.raises(attnscope.RefusalError, match=message):
        attnscope.load(path)


def test_words_of_targets() -> None:
    assert Asked("norm").words == "norm of the mean state"
    assert Asked("similarity", other="x").words == "likeness to 'x'"
    assert Asked("difference", "a", "b", "at token 3").words == "logit of 'a' minus that of 'b' at token 3"
    assert Scored("a", "A", "default", False, ((1.0, 2.0), (3.0,))).total == 6.0
