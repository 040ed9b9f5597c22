from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

from attnscope.commands.records import report as write_report
from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.figures import FULL_DETAIL, head_maps
from attnscope.commands.scan.page import gauge
from attnscope.commands.scan.page import render as render_report
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from attnscope.core.finding import Finding
from attnscope.reports.colours import BROKEN, MISSING, strokes
from tests.commands.scan.survey.sample import sample_survey
from tests.reports.charts.sample_model import CARDS, encoder_decoder, made_survey, observations

NASTY = "<script>alert(1)</script>\"'&[x]"
FEW = ("relative_residual", "spike", "entropy", "sink_mass")
VOID = {"meta", "link", "br", "input", "hr", "img"}


class Outline(HTMLParser):
    """Parse a page, and fail if its elements do not nest."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))

    def words(self) -> str:
        return " ".join(" ".join(text for tag, text in self.text if tag not in ("script", "style")).split())

    def find(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.elements if t == tag and all(a.get(k) == v for k, v in wanted.items())]


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    parsed.close()
    assert parsed.open == []
    return parsed


def small(layers: int = 4, heads: int = 3, **more: Any) -> Survey:
    name = more.pop("name", "made/up-model")
    return made_survey(observations(layers, heads, 6, only=FEW, **more), name=name)


def embedded(page: str, name: str = "data") -> dict[str, Any]:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module")
def large() -> Survey:
    return made_survey(observations(broken=((3, 2), (20, 5))))


@pytest.fixture(scope="module")
def page(large: Survey) -> str:
    return render_report(large)


def test_page_is_well_formed_and_has_its_sections(page: str) -> None:
    parsed = outline(page)
    assert [a["id"] for a in parsed.find("section")] == [
        "glance",
        "findings",
        "heads",
        "depth",
        "head-depth",
        "numbers",
        "provenance",
        "glossary",
    ]
    ids = [a["id"] for _, a in parsed.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert "made/up-model" in parsed.words()
    assert parsed.find("html", lang="en")


def test_the_verdict_stands_before_everything_and_is_the_worst_finding(page: str, large: Survey) -> None:
    worst = diagnose(large)[0]
    (strip,) = outline(page).find("p", id="verdict")
    assert strip["class"] == f"verdict {worst.level}"
    assert page.index('id="verdict"') < page.index("<section")
    text = re.sub("<[^>]*>", "", page[page.index('id="verdict"') : page.index("<nav")])
    assert worst.severity == "wrong"
    assert f"Something is wrong: {worst.sentence}" in text
    calm = render_report(small(2, 2), findings=())
    assert "Healthy: nothing is wrong." in outline(calm).words()
    assert outline(calm).find("p", id="verdict")[0]["class"] == "verdict calm"


def test_page_of_thirty_layers_and_nine_heads_is_small(page: str, large: Survey) -> None:
    assert {key.measure for key in large.cells} == set(CARDS)
    assert len(page.encode()) <= 1_000_000  # so that a page with two surveys stays below two


def test_page_loads_nothing(page: str) -> None:
    parsed = outline(page)
    for tag, attributes in parsed.elements:
        assert not {"src", "srcset", "style", "background", "action"} & set(attributes), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        address = attributes.get("href") or attributes.get("xlink:href")
        if address and not address.startswith("#"):
            assert (tag == "a" and address.startswith("https://arxiv.org/abs/")) or (
                tag == "link" and address.startswith("data:image/svg+xml,")
            )
    assert not re.search(r"url\(|@import", page)


def test_policy_allows_this_script_and_this_style_only(page: str) -> None:
    policy = outline(page).find("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"] or ""
    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    for element, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_findings_come_worst_first_with_number_threshold_source_and_advice(page: str) -> None:
    articles = outline(page).find("article")
    severities = [a["data-severity"] for a in articles]
    assert severities == sorted(severities, key=("wrong", "to_know", "note").index)
    assert {"wrong", "to_know", "note"} == set(severities)
    words = outline(page).words()
    assert "NaN or infinity first appears in the attention of block 3" in words
    assert "0.3 threshold sink_mass" in words
    assert outline(page).find("a", href="https://arxiv.org/abs/2410.10781")


def test_every_finding_about_heads_opens_the_map_of_its_measure(page: str, large: Survey) -> None:
    found = [f for f in diagnose(large) if f.heads]
    buttons = [a["data-measure"] for a in outline(page).find("button") if a.get("class") == "show"]
    assert buttons == [f.details["measure"] for f in found]
    assert set(buttons) <= {m["measure"] for m in embedded(page)["maps"]}
    assert len(set(buttons)) > 1


def test_a_sink_elsewhere_opens_the_map_of_most_attended_keys() -> None:
    groups = [
        o._replace(values=np.full_like(o.values, 0.7), where={"key": np.full_like(o.where["key"], 5)})
        if o.measure == "most_received"
        else o._replace(values=np.full_like(o.values, 0.05))
        for o in observations(2, 2, 4, only=("most_received", "sink_mass"))
    ]
    page = render_report(made_survey(groups))
    assert [a["data-measure"] for a in outline(page).find("button") if a.get("class") == "show"] == ["most_received"]


def test_given_findings_are_shown_instead_of_diagnosed_ones() -> None:
    finding = Finding(
        "odd", "to_know", "decoder", (1,), (), "A sentence.", float("nan"), 0.0, "none", "a book", "Rest."
    )
    words = outline(render_report(small(2, 2), findings=(finding,))).words()
    assert "A sentence." in words
    assert "not a number measured" in words
    assert "Nothing crossed a threshold" in outline(render_report(small(2, 2), findings=())).words()


def test_thresholds_are_shown_and_obeyed() -> None:
    strict = render_report(small(), thresholds=Thresholds(sink_mass=0.99))
    assert "sink_mass 0.99" in outline(strict).words()
    assert "Heads that sink 0% put over 0.99 of their mass on the first token" in outline(strict).words()
    lax = outline(render_report(small(), thresholds=Thresholds(sink_mass=0.05))).words()
    assert "Heads that sink 100% put over 0.05 of their mass on the first token" in lax
    assert not [f for f in embedded(strict)["findings"] if "goes to the first token" in f["sentence"]]


def test_numbers_in_the_page_are_the_survey_s(page: str, large: Survey) -> None:
    (sink,) = [m for m in embedded(page)["maps"] if m["measure"] == "sink_mass"]
    values = large.values("sink_mass")
    assert (sink["layers"], sink["heads"], sink["low"], sink["high"]) == (30, 9, 0.0, 1.0)
    assert sink["why"] == "over the whole range of the measure"
    assert sink["mean"][14 * 9 + 3] == float(f"{values[14, 3]:.4g}")
    assert sink["broken"] == {str(3 * 9 + 2): 12, str(20 * 9 + 5): 6}
    assert sink["mean"][3 * 9 + 2] is None
    (received,) = [m for m in embedded(page)["maps"] if m["measure"] == "most_received"]
    assert received["usual"]["mostly on key"][0] == 0


def test_profiles_carry_a_sentence_per_reading(page: str) -> None:
    assert re.search(r'<path aria-label="entering block 12: 2[\d,]+ \(p10 [\d,]+, p90 [\d,]+\)"', page) or re.search(
        r'aria-label="largest activation, entering block 12: 2[\d,]+ ', page
    )
    assert "Relative residual against depth: 0.9" in page
    assert 'fill="var(--' in page
    specifications = embedded(page, "specifications")
    assert specifications["profile-decoder-stream-spike"]["$schema"].endswith(".json")


def test_text_from_a_survey_stays_text() -> None:
    groups = [o._replace(stack=NASTY) for o in observations(3, 2, 4, broken=((1, 1),), only=FEW)]
    survey = made_survey(groups, name=NASTY, corpus=NASTY)
    finding = Finding(NASTY, "note", NASTY, (1,), ((1, 1),), NASTY, 1.0, 0.5, NASTY, NASTY, NASTY, {"site": NASTY})
    page = render_report(survey, findings=(finding,))
    assert "<script>alert" not in page
    assert "alert(1)</script" not in page
    parsed = outline(page)
    assert [a.get("type") for a in parsed.find("script")] == ["application/json", "application/json", None]
    assert NASTY in parsed.words()
    assert embedded(page)["findings"][0]["sentence"] == NASTY


def test_surveys_given_as_paths_are_read(tmp_path: Path) -> None:
    first, second = small(2, 2), small(2, 2, name="other", seed=1)
    (tmp_path / "scan").mkdir()
    folder = second.save(tmp_path / "scan" / "survey.json").parent
    page = write_report(str(first.save(tmp_path / "first.json")), tmp_path / "page.html", other=folder)
    assert page.read_text() == render_report(first, other=second)


def test_surveys_without_a_shared_place_are_refused(tmp_path: Path) -> None:
    first = made_survey(observations(2, 2, only=("entropy",)))
    second = made_survey(observations(2, 2, only=("sink_mass",)))
    with pytest.raises(RefusalError, match="cannot be compared"):
        write_report(first, tmp_path / "a.html", other=second)
    assert list(tmp_path.iterdir()) == []


def test_stacks_and_cross_attention_are_told_apart() -> None:
    page = render_report(encoder_decoder(only=FEW))
    maps = [m["place"] for m in embedded(page)["maps"] if m["measure"] == "entropy"]
    assert maps == ["encoder, self-attention", "decoder, self-attention", "decoder, cross-attention"]
    assert "Blocks × heads (encoder)" in outline(page).words()


SIZE, RESIDUAL, SINKS, SPIKE = "Blocks × heads", "Residual left at the end", "Heads that sink", "Largest activation"


@pytest.mark.parametrize(
    ("survey", "labels", "words", "maps"),
    [
        (
            made_survey(observations(1, 1, 1, only=FEW)),
            [SIZE, RESIDUAL, SINKS, SPIKE],
            "Blocks × heads 1 × 1 1 head in all",
            ["entropy", "sink_mass"],
        ),
        (
            made_survey(observations(3, 2, only=("relative_residual",))),
            ["Blocks", RESIDUAL],
            "Blocks 3 no number per head was taken",
            [],
        ),
        (made_survey(observations(3, 2, only=("entropy",))), [SIZE], "3 × 2 6 heads in all", ["entropy"]),
        (
            made_survey(observations(2, 1, 4, broken=((0, 0), (1, 0)), only=("entropy",))),
            [SIZE, "NaN or infinite"],
            "NaN or infinite 8 observations excluded from every number",
            ["entropy"],
        ),
        (Survey.empty({}, CARDS), [], "unnamed model", []),
    ],
    ids=["one head", "stream only", "attention only", "nothing finite", "empty"],
)
def test_small_and_partial_surveys_have_a_page(survey: Survey, labels: list[str], words: str, maps: list[str]) -> None:
    page = render_report(survey)
    parsed = outline(page)
    summary = page[page.index('<section id="numbers"') :]
    assert re.findall("<dt>(.*?)</dt>", summary[: summary.index("</section>")]) == labels
    assert words in parsed.words()
    assert [m["measure"] for m in embedded(page)["maps"]] == maps
    assert len([a for a in parsed.find("figure") if "data-map" in a]) == len(maps)
    assert bool(parsed.find("section", id="heads")) == bool(maps)


def test_heads_of_self_and_cross_attention_both_count() -> None:
    words = outline(render_report(encoder_decoder(only=FEW))).words()
    assert "Blocks × heads (encoder) 4 × 3 12 heads in all" in words
    assert "Blocks × heads (decoder) 5 × 3 30 heads in all, 15 of them in cross-attention" in words


def test_what_could_not_be_measured_is_said_in_a_sentence() -> None:
    survey = small(2, 2)
    survey.provenance["not_measured"] = {
        "ov_norm": "output_weight not found",
        "qk_spectrum": "output_weight not found",
        "token_cosine": f"no place for {NASTY}.",
        "entropy": "another shard could not",
    }
    page = render_report(survey)
    words = outline(page).words()
    assert "OV norm and QK spectrum were not measured: output_weight not found." in words
    assert f"Token cosine was not measured: no place for {NASTY}." in words
    assert "another shard" not in page  # measured, so it is not listed as missing
    assert "not_measured" not in page
    assert "not measured" not in render_report(small(2, 2))


def test_ninety_six_layers_and_heads_have_a_page() -> None:
    survey = made_survey(observations(96, 96, 1, only=("entropy", "sink_mass", "relative_residual")))
    page = render_report(survey, findings=())
    assert len(page.encode()) < 2_000_000
    (entropy,) = [m for m in embedded(page)["maps"] if m["measure"] == "entropy"]
    assert len(entropy["mean"]) == 96 * 96
    assert FULL_DETAIL > 2 * 96 * 96


def test_equal_surveys_give_equal_pages() -> None:
    assert render_report(small(2, 2)) == render_report(small(2, 2))


def test_maps_are_drawn_by_colour_step() -> None:
    svg = strokes(np.array([[0, 24], [0, BROKEN], [MISSING, 24]]), "q")
    assert 'viewBox="0 -0.5 3 2"' in svg
    assert '<path class="q0" d="M0 0h2"/>' in svg
    assert '<path class="q24" d="M0 1h1M2 1h1"/>' in svg
    assert '<path class="void" d="M1 1h1"/>' in svg
    assert "M2 0" not in svg  # what was not measured has no colour
    survey = sample_survey(4, 3)
    (sink,) = [m for m in head_maps(survey, survey.table()) if (m.card.name, m.part) == ("sink_mass", "value")]
    assert sink.steps()[3, 0] == round(24 * survey.values("sink_mass")[3, 0])


@pytest.mark.parametrize(
    ("value", "threshold", "places"),
    [(0.5, 0.25, (50.0, 25.0)), (float("nan"), 1.0, None), (1.0, 0.0, None), (2.0, 1.0, (87.0, 43.5))],
)
def test_gauge(value: float, threshold: float, places: tuple[float, float] | None) -> None:
    assert gauge(value, threshold) == places


def test_far_numbers_stand_on_the_right_side_of_the_threshold() -> None:
    high, low = gauge(20_000.0, 100.0), gauge(1e-6, 0.1)
    assert high
    assert low
    assert 0 <= high[1] < high[0] <= 100
    assert 0 <= low[0] < low[1] <= 100


def test_writing_replaces_the_page_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    assert write_report(small(2, 2), path) == path
    write_report(small(2, 2, name="again"), path)
    assert "again" in path.read_text("utf-8")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_reports_import_neither_torch_nor_altair_until_needed() -> None:
    code = (
        "import sys, attnscope.commands.scan.page, attnscope.commands.scan.terminal;"
        "assert not {'torch', 'altair', 'vl_convert', 'jinja2', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_finding_shows_the_text_behind_it_unless_it_is_left_out() -> None:
    survey = made_survey(observations(3, 2, 4, only=FEW))
    finding = next(f for f in diagnose(survey) if f.kind == "sink")
    assert isinstance(finding.details["sample"], int)
    kept = replace(survey, excerpts={finding.details["sample"]: (NASTY, " fell", " down")})
    page = render_report(kept)
    assert f"<mark>{escape(NASTY)}</mark> fell down" in page
    assert f"(sample {finding.details['sample']}, token 0 marked)" in page
    assert "This page and the survey contain the texts of 1 sequence behind the findings" in page
    for without in (render_report(kept, keep_text=False), render_report(survey)):
        assert "fell down" not in without
        assert "This page contains no text of the corpus." in without
    several = {**survey.provenance, "corpus": {**survey.provenance["corpus"], "shards": [{}, {}]}}
    assert "fell down" not in render_report(replace(kept, provenance=several))  # numbers of samples are ambiguous


def test_provenance_is_folded_and_says_how_it_was_verified() -> None:
    survey = small(2, 2)
    survey.provenance["verify"] = {"passed": True, "largest_difference": 3.4177010616157125e-07}
    survey.provenance["model"]["model_type"] = "llama"
    survey.provenance["model"]["revision"] = None
    page = render_report(survey)
    words = outline(page).words()
    assert "verified, largest difference 3e-7" in words
    assert "3.418e-7" in words
    assert "model type llama" in words
    for unwanted in (">model model", "not known", "3.4177010616157125e-07", "revision"):
        assert unwanted not in page
    assert page.index("<details", page.index('id="provenance"')) < page.index("model type")
