"""The headline of a decomposition: heads are named from interventions only, with what happens without them."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnscope.commands.paths.carriers import Head, measured_without
from attnscope.commands.paths.effect_record import EdgeEffect, Effects, HeadEffect, SetEffect
from attnscope.commands.paths.page import render
from attnscope.commands.paths.record import Goal, PathReport
from attnscope.commands.paths.words import edge_lines, effect_lines, html, sentences, verdict
from attnscope.core.decoding import FieldError
from attnscope.reports.terminal import print_record
from tests.reports.sample_paths import sample_effects, sample_paths

FROZEN = "Sums over paths are those of the frozen network (values only)."


def report_with(**changes: Any) -> PathReport:
    report = sample_paths()
    return replace(report, effects=sample_effects(report, **changes))


def heads_with(without: dict[tuple[int, int], float], of: int = 3) -> dict[str, Any]:
    """Return effects of a few heads, without edges and sets; heads that are not given change nothing."""
    heads = tuple(HeadEffect(0, head, 0.1, without.get((0, head), 0.8)) for head in range(of))
    return {"heads": heads, "of_heads": of, "edges": (), "sets": ()}


def test_an_induction_circuit_is_named_with_what_happens_without_it() -> None:
    assert verdict(report_with()).sentence == (
        "Next token ' Rome' (80%). It is carried by an induction circuit: block 0 head 0 writes where block 1 heads 0 "
        f"and 1 look (without it 1%), which copy the answer (without them 2%). {FROZEN}"
    )


def test_another_circuit_says_whose_looking_is_moved() -> None:
    report = report_with(edges=(EdgeEffect((0, 0), (1, 1), "query", 6.0, 0.12),), sets=())
    assert verdict(report).sentence == (
        "Next token ' Rome' (80%). It depends on block 0 head 0 (without it 1%; it moves where block 1 head 1 looks), "
        f"block 1 head 1 (without it 10%) and block 1 head 0 (without it 20%). {FROZEN}"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "No single head carries it: the largest effect is that of block 0 head 0 (without it 80%)."),
        (
            {"sets": (SetEffect(((0, 0), (0, 2)), 3.0, 0.3),)},
            "No single head carries it; taking out block 0 heads 0 and 2 together leaves 30%.",
        ),
        ({"sets": (SetEffect(((0, 0), (0, 2)), 3.0, 0.75),)}, "No single head carries it: the largest effect"),
        (
            {"of_heads": 270},
            "None of the 3 heads that were taken out (1% of 270, chosen by estimates) carries it: the largest effect",
        ),
    ],
)
def test_without_a_head_that_matters_none_is_named_as_carrying(changes: dict[str, Any], words: str) -> None:
    assert words in verdict(report_with(**{**heads_with({}), **changes})).sentence


def test_heads_against_the_answer_are_not_called_carriers() -> None:
    report = report_with(**heads_with({(0, 1): 0.99}))
    said = verdict(report).sentence
    assert "No single head carries it; it would be likelier without block 0 head 1 (99%)." in said
    assert "depends on" not in said


@pytest.mark.parametrize("share", [0.72 + 1e-9, 0.88 - 1e-9])
def test_a_tenth_of_the_probability_is_not_enough(share: float) -> None:
    report = report_with(**heads_with({(0, 1): share}))
    assert "the largest effect is that of block 0 head 1" in verdict(report).sentence


def test_many_heads_are_counted() -> None:
    report = report_with(**heads_with({(0, head): 0.1 + 0.01 * head for head in range(7)}, of=7))
    assert "block 0 head 3 (without it 13%), and on 3 others." in verdict(report).sentence


def test_the_headline_says_which_share_of_heads_was_taken_out() -> None:
    many = {**heads_with({(0, 1): 0.1}), "of_heads": 12}
    said = verdict(report_with(**many)).sentence
    assert "depends on block 0 head 1 (without it 10%); 3 of 12 heads (25%) were taken out." in said
    circuit = verdict(report_with(of_heads=240)).sentence
    assert "which copy the answer (without them 2%); 24 of 240 heads (10%) were taken out." in circuit


def test_a_norm_has_no_probability() -> None:
    heads = (HeadEffect(0, 0, 3.0, None), HeadEffect(0, 1, 0.0, None))
    found = Effects("zero", "zero", 6.0, None, 2, heads)
    said = verdict(replace(sample_paths(), effects=found)).sentence
    assert "It depends on block 0 head 0 (without it 3)." in said


DIFFERENCE = Goal("difference", " Rome", " Paris", "after the last token")


def difference_with(value: float, *totals: float, **changes: Any) -> PathReport:
    """Return a difference of two logits, and how much of it is lost without each head; p stays at 80%."""
    heads = tuple(HeadEffect(0, head, total, 0.8) for head, total in enumerate(totals))
    found = Effects("zero", "zero", value, 0.8, len(heads), heads, follows="target", **changes)
    return replace(sample_paths(), value=value, goal=DIFFERENCE, effects=found)


def test_a_difference_is_what_the_headline_speaks_of() -> None:
    report = difference_with(4.0, 0.39, 1.5, -0.5)
    assert verdict(report).sentence == (
        "After the last token the model says ' Rome' (80%); the logit of ' Rome' minus that of ' Paris' is 4. The "
        f"difference depends on block 0 head 1 (without it 2.5). {FROZEN}"
    )
    assert "The difference would be larger without block 0 head 2 (4.5)." in sentences(report)
    assert effect_lines(report)[0][1] == "difference without it"
    assert effect_lines(report)[1][:2] == ("block 0 head 1", "2.5")
    said = measured_without(report, Head(0, 1, -0.4))
    assert said == " (taken out of the model itself, the difference is 2.5, not 4)"


def test_a_difference_is_not_judged_by_the_probability() -> None:
    found = difference_with(4.0, 0.1, 0.2).effects
    assert found is not None
    less_likely = replace(found, heads=tuple(replace(one, probability=0.01) for one in found.heads))
    assert less_likely.named == []
    assert [one.head for one in replace(less_likely, follows="probability").named] == [0, 1]


@pytest.mark.parametrize(("value", "total", "notable"), [(0.02, 0.09, False), (0.02, 0.11, True), (-9.0, 0.8, False)])
def test_a_small_difference_needs_a_tenth_of_a_logit(value: float, total: float, notable: bool) -> None:
    found = difference_with(value, total).effects
    assert found is not None
    assert bool(found.named) == notable


def test_effects_of_a_difference_survive_a_round_trip(tmp_path: Path) -> None:
    report = report_with(follows="target")
    assert PathReport.load(report.save(tmp_path / "paths.json")) == report
    data = report.to_json()
    del data["effects"]["follows"]  # files of earlier versions
    old = PathReport.from_json(data).effects
    assert old is not None
    assert old.follows == "probability"


def test_a_difference_in_an_old_file_says_whose_probability_moves() -> None:
    report = report_with(**heads_with({(0, 1): 0.1}))
    said = verdict(replace(report, goal=DIFFERENCE)).sentence
    assert "' Rome' depends on block 0 head 1 (without it 10%)." in said


def test_without_effects_the_headline_names_no_head() -> None:
    said = verdict(sample_paths()).sentence
    assert said == f"Next token ' Rome' (80%). {FROZEN}"


def test_values_that_subtract_are_said_beside_what_was_measured() -> None:
    report = report_with()
    said = measured_without(report, Head(0, 0, -0.4))
    assert said == " (taken out of the model itself, ' Rome' has 1%, not 80%)"
    assert measured_without(sample_paths(), Head(0, 0, -0.4)) == ""
    for sentence in sentences(report):
        if "subtract most" in sentence:
            assert "taken out of the model itself" in sentence


def test_tables_have_the_parts_of_every_effect() -> None:
    report = report_with()
    heading, first, *rest = effect_lines(report)
    assert heading == ("head", "p without it", "effect", "values", "patterns", "norms, gates")
    assert first[:3] == ("block 0 head 0", "1%", "+7.9")
    assert len(rest) == 23
    assert edge_lines(report)[1] == ("block 0 head 0", "block 1 head 1", "key", "12%", "+6")
    page, notebook = render(report), html(report)
    for words in ("What happens without a head", "32 windows of 16 tokens from the embedded book", "block 1 head 1"):
        assert words in page
    assert "<td>12%</td>" in notebook
    assert "What happens without a head" not in render(sample_paths())


def test_the_screen_is_short_and_fits_eighty_columns() -> None:
    out = StringIO()
    print_record(report_with(), files={"Report": Path("paths.html")}, console=Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert len(lines) <= 36
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("block 0 head 0") and "1%" in line for line in lines)


def test_effects_survive_a_round_trip_and_old_files_have_none(tmp_path: Path) -> None:
    report = report_with()
    assert PathReport.load(report.save(tmp_path / "paths.json")) == report
    data = sample_paths().to_json()
    del data["effects"]
    assert PathReport.from_json(data).effects is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"heads": (HeadEffect(0, 9, 0.0, 0.5),)}, "blocks and heads of head_values"),
        ({"heads": (HeadEffect(0, 0, 9.0, 0.5, 1.0, 1.0, 1.0),)}, "parts that sum to total"),
        ({"edges": (EdgeEffect((0, 0), (7, 0), "key", 0.0, 0.5),)}, "blocks and heads of head_values"),
    ],
)
def test_impossible_effects_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(FieldError, match=says):
        PathReport.from_json(report_with(**change).to_json())
