"""The minimal pairs of bench/minimal_pairs: the cause stands once in its text, and no frame is in both halves."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from attnscope.commands.evaluate.record import Faithfulness
from bench.minimal_pairs.pairs import HERE, half_of, pairs

WRITTEN = {name: pairs(HERE / f"{name}.jsonl") for name in ("pairs", "pairs_judging", "sentiment")}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_cause_is_one_word_that_occurs_once(name: str) -> None:
    for pair in WRITTEN[name]:
        edges = (r"(?<!\w)" if pair.cause[0].isalnum() else "", r"(?!\w)" if pair.cause[-1].isalnum() else "")
        found = list(re.finditer(edges[0] + re.escape(pair.cause) + edges[1], pair.text))
        assert [match.start() for match in found] == [pair.start], pair.id
        assert pair.answer != pair.other_answer, pair.id
        assert " " not in pair.cause + pair.exchange, pair.id


@pytest.mark.parametrize("name", WRITTEN)
def test_a_frame_has_at_most_four_pairs_that_differ_only_in_the_cause(name: str) -> None:
    written = WRITTEN[name]
    assert len({pair.id for pair in written}) == len(written)
    assert max(Counter(pair.frame for pair in written).values()) <= 4
    around: dict[str, tuple[str, str]] = {}
    for pair in written:
        assert around.setdefault(pair.frame, (pair.text[: pair.start], pair.text[pair.end :])) == (
            pair.text[: pair.start],
            pair.text[pair.end :],
        )


@pytest.mark.parametrize(
    ("file", "name", "least"), [("usable_smollm2", "pairs", 140), ("usable_minilm", "sentiment", 30)]
)
def test_usable_pairs_are_written_ones_and_lie_in_the_half_of_their_frame(file: str, name: str, least: int) -> None:
    data = json.loads((HERE / f"{file}.json").read_text())
    by_id = {pair.id: pair for pair in WRITTEN[name]}
    assert len(data["usable"]) >= least
    assert {row["id"] for row in data["usable"]} | set(data["left_out"]) == set(by_id)
    for row in data["usable"]:
        assert row["half"] == half_of(by_id[row["id"]].frame)
        assert row["log_odds_exchanged"] < 0 < row["log_odds"]
    assert min(Counter(row["kind"] for row in data["usable"]).values()) >= 12


def test_the_pairs_that_judge_are_new_and_every_kind_has_enough_of_them() -> None:
    usable = json.loads((HERE / "usable_judging.json").read_text())
    assert {row["id"] for row in usable["usable"]} | set(usable["left_out"]) == {p.id for p in WRITTEN["pairs_judging"]}
    assert {row["half"] for row in usable["usable"]} == {"judging"}
    first = Counter(row["kind"] for row in usable["usable"] if row["class"] == "first")
    assert set(first) == {pair.kind for pair in WRITTEN["pairs"]}
    assert min(first.values()) >= 12
    assert not {pair.text for pair in WRITTEN["pairs_judging"]} & {pair.text for pair in WRITTEN["pairs"]}
    assert not {pair.frame for pair in WRITTEN["pairs_judging"]} & {pair.frame for pair in WRITTEN["pairs"]}


def test_both_halves_hold_every_kind() -> None:
    usable = json.loads((HERE / "usable_smollm2.json").read_text())["usable"]
    counts = Counter((row["kind"], row["half"]) for row in usable)
    assert len(counts) == 2 * len({row["kind"] for row in usable})
    assert min(counts.values()) >= 8


def test_cases_of_one_planted_token_lie_in_one_half_and_differ_in_one_token() -> None:
    data = json.loads((HERE / "usable_microformer.json").read_text())
    assert len(data["usable"]) >= 40
    for row in data["usable"]:
        differing = [at for at, (a, b) in enumerate(zip(row["input_ids"], row["exchanged_ids"], strict=True)) if a != b]
        assert differing == row["cause_tokens"]
        assert 0 < differing[0] < row["tokens"] - 1
        assert row["half"] == half_of(row["id"][:-1])
        assert row["log_odds_exchanged"] < 0 < row["log_odds"]
        assert row["flipping_share"] >= 1 / 2


@pytest.mark.parametrize("file", ["recommended_smollm2_tune", "recommended_microformer_both"])
def test_the_method_with_the_widest_gap_names_most_causes_inside_the_text(file: str) -> None:
    """The guide says so (docs/explain.md, "Does it recommend what names most truths?")."""
    kept = json.loads((HERE / f"{file}.json").read_text())
    named = {name: counted["inner"] for name, counted in kept["counted"].items()}
    widest = Faithfulness.from_json(kept["evaluation"]).best.name
    assert named[widest] == max(named.values())
