"""The rows of the collapse chart are correct, and its drawing is valid and needs no torch."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from attnscope.commands.collapse.bounds_words import bound_lines, end_lines, power_of_ten
from attnscope.commands.collapse.chart import bound_rows, collapse_chart, curve_rows, curves_chart, published_rows
from attnscope.commands.collapse.record import Collapse, Curve, Published
from attnscope.core.decoding import encode
from attnscope.core.errors import RefusalError
from attnscope.reports.export import render as draw
from attnscope.reports.record import ask
from attnscope.reports.theme import specification
from tests.reports.sample_collapse import collapse_of, sample_curves


def curve(name: str, title: str, mean: tuple[float, ...]) -> Curve:
    n = tuple(0 if math.isnan(number) else 3 for number in mean)
    return Curve(name, title, mean, mean, mean, mean, n, (), math.nan, 0)


@pytest.fixture
def found() -> Collapse:
    bound = {
        "layer": 0, "sequences": 2, "before": 1.0, "after": 1e-3, "contraction": 1e-2, "cubic": 0.5, "tau": 0.1,
        "tau_bound": 0.2, "residual_before": 2.0, "residual_after": 2e-3, "paper": 400.0, "spread": 3.0,
        "condition_met": 1, "rounding": 1e-14, "violations": 0,
    }  # fmt: skip
    end = {
        "name": "theorem 2.3", "variant": "san", "of": "residual", "bound": [0.0, 2.6, 152.2],
        "truth": [0.3, -2.7, "-inf"], "applies": False, "why_not": "norms stand between its layers",
    }  # fmt: skip
    document = {
        "format": "attnscope-collapse", "version": 1, "model": "a <b>model</b>", "class_name": "X", "stack": "encoder",
        "norm_placement": "post", "layers": 2, "heads": 2, "tokens": 9, "weights": "random", "norm": "1,inf",
        "floor": 2.2e-16, "order": 3.01, "pairs": 8, "notes": ["One <i>note</i>."], "ends": [end],
        "curves": {},
        "bounds": [bound, {**bound, "layer": 1, "after": 1e-15, "cubic": 1e-30, "paper": None, "violations": 0}],
        "skip_bounds": [{"layer": 0, "sequences": 2, "growth": 1.01, "strength": 0.2, "violations": 0}],
        "provenance": {"corpus": {"name": "text </script>", "sequences": 3}},
    }  # fmt: skip
    curves = {
        "san": curve("san", "attention only", (0.6, 1e-3, 1e-17)),
        "whole": curve("whole", "whole model", (0.6, 0.5, math.nan)),
    }
    return Collapse.from_json({**document, "curves": encode(curves)})


REFERENCE = Published(model="BERT", weights="random", curves={"san": (0.6, 0.02, 0.0, 0.0), "san+mlp": (0.6, 0.1)})


def test_rows_rest_on_the_floor_and_leave_out_what_is_no_number(found: Collapse) -> None:
    rows = curve_rows(found)
    assert [(r["variant"], r["depth"], r["mean"]) for r in rows] == [
        ("attention only", 0, 0.6),
        ("attention only", 1, 1e-3),
        ("attention only", 2, 2.2e-16),
        ("whole model", 0, 0.6),
        ("whole model", 1, 0.5),
    ]
    theirs = published_rows(found, REFERENCE)
    assert [(r["depth"], r["published"]) for r in theirs] == [(0, 0.6), (1, 0.02), (2, 5e-5)]  # ends at its first 0
    assert theirs[2]["label"] == "BERT as published, attention only, entering block 2: below 5e-5"


def test_readings_say_which_block_the_stream_enters_and_where_it_ends(found: Collapse) -> None:
    labels = [row["label"] for row in curve_rows(found)]
    assert labels[0] == "attention only, entering block 0: 0.6 (p10 0.6, p90 0.6)"
    assert labels[2].startswith("attention only, after block 1: 1e-17")  # the number, not the floor it is drawn on
    assert [row["label"] for row in bound_rows(found, "residual")] == [
        "measured, block 0: 0.002",
        "measured, block 1: 0.002",
        "the paper's theorem 2.2, block 0: 400",
    ]


def drawn_texts(width: int) -> list[str]:
    document = specification(curves_chart(collapse_of(sample_curves()), width), "page")
    return re.findall(r"<text[^>]*>([^<]*)</text>", draw(document, ".svg").decode())


def test_names_stand_at_the_ends_of_lines_and_on_a_telephone_above_them() -> None:
    wide, narrow = curves_chart(collapse_of(sample_curves()), 1080), curves_chart(collapse_of(sample_curves()), 326)
    kinds = [[layer["mark"]["type"] for layer in chart.to_dict()["layer"]] for chart in (wide, narrow)]
    assert kinds == [["area", "line", "circle", "text"], ["area", "line", "circle"]]
    for width in (1080, 326):
        assert {"attention only", "attention + MLP", "attention + skip", "whole model", "end"} <= set(
            drawn_texts(width)
        )


@pytest.mark.parametrize("bounds", [False, True])
@pytest.mark.parametrize("published", [None, REFERENCE])
def test_the_chart_draws(found: Collapse, bounds: bool, published: Any) -> None:
    document = specification(collapse_chart(found, published=published, bounds=bounds))
    svg = draw(document, ".svg").decode()
    assert "attention only" in svg
    assert ("theorem 2.2" in svg) == bounds
    assert ("dashed: BERT as published" in svg) == (published is not None)


def test_nothing_to_draw_is_refused(found: Collapse) -> None:
    with pytest.raises(RefusalError, match="no finite number"):
        collapse_chart(replace(found, curves={"san": curve("san", "attention only", (math.nan, math.nan))}))


def test_numbers_too_large_for_floats_are_powers_of_ten() -> None:
    assert power_of_ten(152.2) == "10^152"
    assert power_of_ten(-531441.0) == "10^-531,441"
    assert power_of_ten(-2.0) == "0.01"
    assert power_of_ten(math.inf) == "infinite"  # an infinite bound is not the smallest one
    assert power_of_ten(-math.inf) == "0"


def test_bounds_over_all_blocks_are_listed_where_they_apply(found: Collapse) -> None:
    assert end_lines(found) == []
    applying = replace(found, ends=(replace(found.ends[0], applies=True, bound=(0.0, 2.0)),))
    assert end_lines(applying) == [("the paper's theorem 2.3", "residual of attention only", "0", "100")]


def test_bounds_are_named_in_words_and_columns_that_are_empty_are_left_out(found: Collapse) -> None:
    heading, first, second = bound_lines(found)
    assert heading == (
        "block", "diameter", "bound from the patterns seen", "bound from weights alone", "residual",
        "the paper's theorem 2.2", "note",
    )  # fmt: skip
    assert first[-1].startswith("theorem 2.2 does not apply")
    assert first[-1].endswith("and these spread by 3")
    assert second[-1].endswith("the measured value is rounding")
    calm = replace(found.bounds[0], condition_met=2, cubic=None, paper=None)
    assert bound_lines(replace(found, bounds=(calm,)))[0] == (
        "block", "diameter", "bound from the patterns seen", "residual",
    )  # fmt: skip


def test_the_page_escapes_and_says_when_a_condition_fails(found: Collapse) -> None:
    page = ask(found, "render", published="BERT")
    assert "<b>model</b>" not in page
    assert "<i>note</i>" not in page
    assert "text </script>" not in page
    assert "a &lt;b&gt;model" in page
    assert "theorem 2.2 does not apply" in page
    assert page == ask(found, "render", published="BERT")


def test_the_page_says_what_bands_and_ratios_are_and_uses_no_letters_for_bounds(found: Collapse) -> None:
    page = ask(found, "render", published="BERT")
    assert "bands are from the 10th to the 90th percentile" in page
    assert "means over 3 sequences" in page
    assert "Dashed: BERT as published" in page
    assert "Growth of the diameter when the skip is kept" in page
    assert "Dashed" not in ask(found, "render")
    for letter in "abcd":
        assert f"({letter})" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
