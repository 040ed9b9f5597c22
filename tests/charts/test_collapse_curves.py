"""What the collapse chart says is decided in rows; the drawing is valid and needs nothing from torch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from attnscope.charts.collapse_curves import collapse_chart, curve_rows, published_rows
from attnscope.charts.export import render as draw
from attnscope.charts.theme import specification
from attnscope.core.errors import RefusalError
from attnscope.records.collapse import Collapse, Curve
from attnscope.records.decoding import encode
from attnscope.records.published import Published
from attnscope.reporting.collapse.page import render
from attnscope.reporting.collapse.words import end_lines, power_of_ten, sentences


def curve(name: str, title: str, mean: tuple[float, ...]) -> Curve:
    return Curve(name, title, mean, mean, mean, mean, (3,) * len(mean), (), math.nan, 0)


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


@pytest.mark.parametrize("bounds", [False, True])
@pytest.mark.parametrize("published", [None, REFERENCE])
def test_the_chart_draws(found: Collapse, bounds: bool, published: Any) -> None:
    document = specification(collapse_chart(found, published=published, bounds=bounds))
    svg = draw(document, ".svg").decode()
    assert "attention only" in svg
    assert ("theorem 2.2" in svg) == bounds
    assert ("as published" in svg) == (published is not None)


def test_nothing_to_draw_is_refused(found: Collapse) -> None:
    with pytest.raises(RefusalError, match="no finite number"):
        collapse_chart(replace(found, curves={"san": curve("san", "attention only", (math.nan, math.nan))}))


def test_sentences(found: Collapse) -> None:
    said = sentences(found)
    assert said[0] == "Attention alone collapses: after 2 layers the residual is below 1e-14, where rounding begins."
    assert said[1].startswith("The whole model keeps its tokens apart: the residual goes from 0.6 to 0.5")
    assert "no finite number after it" in said[1]
    assert "d^3.01" in said[2]
    assert "1 of 1 layer" in said[3]
    fallen = replace(found, curves={"san": curve("san", "attention only", (0.5, 1e-4, 1e-6))}, order=math.nan)
    assert sentences(fallen)[0].endswith("below 0.001 after 1 layer and 1e-6 after all 2.")


def test_numbers_too_large_for_floats_are_powers_of_ten(found: Collapse) -> None:
    assert end_lines(found)[0][2:4] == ("0", "(10^152)")
    assert power_of_ten(-531441.0) == "10^-531,441"
    assert power_of_ten(-2.0) == "0.01"
    assert power_of_ten(math.inf) == "infinite"  # a bound that promises nothing is not the smallest one


def test_the_page_escapes_and_says_when_a_condition_fails(found: Collapse) -> None:
    page = render(found, published="BERT")
    assert "<b>model</b>" not in page
    assert "<i>note</i>" not in page
    assert "</script>" not in page
    assert "a &lt;b&gt;model" in page
    assert "condition violated (spread 3 &gt; 1.256)" in page
    assert "the truth is rounding" in page
    assert "no bound here: norms stand between its layers" in page
    assert page == render(found, published="BERT")


def test_the_page_says_what_bands_and_ratios_are_and_has_no_empty_column(found: Collapse) -> None:
    page = render(found, published="BERT")
    assert "bands reach from the tenth to the ninetieth percentile (p10 to p90)" in page
    assert "means over 3 sequences" in page
    assert "Dashed: BERT as published" in page
    assert "Ratios: the diameter after attention and its skip over the diameter before" in page
    assert "growth of the diameter" in page
    noted = '<th scope="col" class="number">theorem 2.2</th><th scope="col">note</th>'
    assert noted in page
    calm = replace(found.bounds[0], condition_met=2)
    assert noted not in render(replace(found, bounds=(calm,)))
    assert "Dashed" not in render(found)
