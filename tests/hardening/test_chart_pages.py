"""The policy of chart pages allows only their own two scripts, no eval and no network."""

from __future__ import annotations

import re
from pathlib import Path

import altair as alt
import pytest
from playwright.sync_api import Browser

from attnscope.commands.scan.chart import gallery
from attnscope.reports.export import digest, save
from tests.reports.charts.sample_model import made_survey, observations

NASTY = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


def chart() -> alt.Chart:
    rows = [{"a": n, "b": n * n, "c": NASTY} for n in range(4)]
    drawn = alt.Chart(alt.InlineData(values=rows)).mark_circle()
    place = alt.X("a:Q", axis=alt.Axis(labelExpr="datum.value > 1 ? 'many' : 'few'"))
    return drawn.encode(x=place, y="b:Q", color="c:N", tooltip=["a:Q", "c:N"]).transform_calculate(d="datum.a + 1")


def policy_of(page: str) -> str:
    found = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert len(found) == 1
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script")
    return str(found[0])


def test_the_policy_names_the_scripts_of_the_page_and_nothing_else(tmp_path: Path) -> None:
    page = save(chart(), tmp_path / "a.html").read_text()
    policy = policy_of(page)
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    assert f"script-src '{digest(scripts[0])}' '{digest(scripts[1])}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe-eval" not in policy
    assert "http" not in policy


@pytest.mark.browser
def test_policy_allows_the_chart_and_no_other_script(browser: Browser, tmp_path: Path) -> None:
    path = save(chart(), tmp_path / "a.html")
    said: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    page.wait_for_selector("#vega-chart svg", timeout=20_000)
    words = page.locator("#vega-chart svg text").all_text_contents()
    assert "many" in words  # Vega interpreted an expression without eval
    assert "few" in words
    assert page.locator("#vega-chart svg path[aria-roledescription=circle]").count() == 4
    assert page.title() != "taken"
    assert said == []
    page.evaluate(
        "() => { const s = document.createElement('script'); s.text = 'window.ran = 1'; document.body.append(s) }"
    )
    assert page.evaluate("() => window.ran") is None
    assert any("Content Security Policy" in line for line in said)
    reached = "() => fetch('https://example.org/').then(() => 'out', () => 'refused')"
    assert page.evaluate(reached) == "refused"
    page.close()


@pytest.mark.browser
def test_policy_allows_the_charts_of_a_survey(browser: Browser, tmp_path: Path) -> None:
    survey = made_survey(observations(4, 3, 2, only=("relative_residual", "entropy")))
    said: list[str] = []
    drawn = list(gallery(survey))
    for name, one in (drawn[0], drawn[len(drawn) // 2], drawn[-1]):
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(save(one, tmp_path / f"{name}.html").as_uri())
        page.wait_for_selector("#vega-chart svg text", timeout=20_000)
        page.close()
    assert said == []
