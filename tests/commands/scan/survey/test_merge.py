"""Shards merge to exactly the survey of the whole, in any order; surveys of other models are refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.provenance import merge_provenance
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError
from tests.commands.scan.survey.sample import CARDS, sample_provenance, sample_survey


def shards() -> list[Survey]:
    found = [sample_survey(2, 2, sequences=n, first_sample=first) for n, first in ((3, 0), (5, 3), (2, 8))]
    corpora: list[dict[str, Any]] = [{}, {"name": "other text", "hash": "d1" * 32}, {}]
    for survey, corpus in zip(found, corpora, strict=True):
        survey.provenance["corpus"].update(corpus)
    found[1].provenance.update(seed=3, created="2026-05-05T00:00:00Z", routes=["sdpa"])
    found[2].provenance["verify"] = {"largest_difference": 2.0e-5}
    found[2].provenance["model"]["name"] = "another folder"
    return found


def test_merging_is_exact_in_any_order() -> None:
    a, b, c = shards()
    whole = a.merge(b).merge(c)
    assert a.merge(b.merge(c)) == whole
    for one, two, three in permutations((a, b, c)):
        assert one | two | three == whole


def test_an_empty_survey_changes_nothing() -> None:
    survey = sample_survey(2, 2)
    empty = Survey.empty(sample_provenance(2, 2, sequences=0), CARDS)
    assert survey | empty == survey
    assert empty | survey == survey


def test_shards_equal_the_whole() -> None:
    a, b = sample_survey(2, 2, 4), sample_survey(2, 2, 4, first_sample=4)
    together = SurveyBuilder.from_survey(a)
    merged = a | b
    assert merged.provenance["corpus"]["sequences"] == 8
    assert merged.provenance["corpus"]["tokens"] == 8 * 64
    assert [s["tokens"] for s in merged.provenance["model"]["stacks"]] == [8 * 64]
    assert "shards" not in merged.provenance["corpus"]  # two shards of one corpus count as one corpus
    assert together.survey(a.provenance) == a
    assert {k: c.moments.count.max() for k, c in merged.cells.items()} == {
        k: 1 if k.measure == "qk_spectrum" else 8 for k in a.cells
    }


def test_provenance_says_what_went_in() -> None:
    a, b, c = shards()
    provenance = (a | b | c).provenance
    corpus = provenance["corpus"]
    assert corpus["sequences"] == 10
    assert corpus["tokens"] == 640
    assert corpus["name"] == "other text + sample text"
    assert [s["sequences"] for s in corpus["shards"]] == [5, 5]
    assert corpus["window"] == 64
    assert provenance["seed"] == [0, 3]
    assert provenance["routes"] == ["interface", "sdpa"]
    assert provenance["created"] == "2026-05-05T00:00:00Z"
    assert provenance["verify"] == {"largest_difference": 2.0e-5}
    assert provenance["model"]["name"] == "another folder"


def test_what_only_one_side_knows_is_kept() -> None:
    assert merge_provenance({"a": 1}, {"b": 2}) == {"a": 1, "b": 2}
    assert merge_provenance({"corpus": {}}, {"corpus": {}}) == {"corpus": {}}
    checks = merge_provenance({"verify": {"causal": True, "x": None}}, {"verify": {"causal": False, "x": 1}})
    assert checks["verify"]["causal"] is False


def stacks_of(*stacks: dict[str, Any]) -> dict[str, Any]:
    return {"model": {"name": "m", "stacks": list(stacks)}}


def test_tokens_of_stacks_add_up_by_name() -> None:
    a = stacks_of({"name": "vision", "tokens": 197}, {"name": "decoder", "causal": True, "tokens": 12})
    b = stacks_of({"name": "vision", "tokens": 394}, {"name": "decoder", "causal": True, "tokens": 30})
    merged = merge_provenance(a, b)
    assert merged["model"]["stacks"] == [
        {"name": "vision", "tokens": 591},
        {"name": "decoder", "causal": True, "tokens": 42},
    ]
    assert merge_provenance(a, a)["model"]["stacks"][0]["tokens"] == 394
    assert merge_provenance(b, merged) == merge_provenance(merge_provenance(b, a), b)


def test_tokens_of_stacks_are_unknown_where_one_side_did_not_count() -> None:
    counted, uncounted = stacks_of({"name": "decoder", "tokens": 12}), stacks_of({"name": "decoder"})
    other = stacks_of({"name": "encoder", "tokens": 5})
    for one, two in ((counted, uncounted), (uncounted, counted)):
        assert merge_provenance(one, two)["model"]["stacks"] == [{"name": "decoder"}]
    for three in permutations((counted, uncounted, other)):
        whole = merge_provenance(merge_provenance(three[0], three[1]), three[2])
        assert whole["model"]["stacks"] == [{"name": "decoder"}, {"name": "encoder", "tokens": 5}]


def test_reasons_why_something_was_not_measured_are_kept() -> None:
    a, b = ({"not_measured": {"ov_norm": "no output weights"}}, {"not_measured": {"spike": "no place for it"}})
    assert merge_provenance(a, b)["not_measured"] == {"ov_norm": "no output weights", "spike": "no place for it"}
    assert merge_provenance(a, {}) == a


def changed(**fields: Any) -> Survey:
    survey = sample_survey(2, 2)
    return replace(survey, provenance={**survey.provenance, **fields})


def test_surveys_of_different_models_are_refused() -> None:
    survey = sample_survey(2, 2)
    other = {**survey.provenance["model"], "hash": "00" * 32}
    with pytest.raises(RefusalError, match=r"different weights .*attnscope compare"):
        survey.merge(changed(model=other))
    with pytest.raises(RefusalError, match="float32 and in bfloat16"):
        survey.merge(changed(dtype="bfloat16"))
    fewer = {name: card for name, card in CARDS.items() if name != "entropy"}
    with pytest.raises(RefusalError, match=r"same measures \(entropy\)"):
        survey.merge(Survey.empty(survey.provenance, fewer))
    with pytest.raises(RefusalError, match="heads at decoder self block 0"):
        survey.merge(sample_survey(2, 3))


def test_provenance_becomes_plain_json() -> None:
    import numpy as np

    thing = {
        "a": (1, np.float32(0.5)),
        2: float("nan"),
        "c": np.arange(2),
        "d": {"y", "x"},
        "e": None,
        "f": complex(1),
    }
    assert plain(thing) == {"a": [1, 0.5], "2": None, "c": [0, 1], "d": ["x", "y"], "e": None, "f": "(1+0j)"}
