"""Charts of a survey: one measure against depth or as a map of heads, one head among all others, and a gallery.

survey.chart("entropy")    survey.chart("sink_mass", heads=True)    survey.chart("spike", stack="decoder")
head_portrait(survey.table(), survey.cards, HeadPlace("decoder", "self", layer=12, head=3))
write_gallery(survey, "charts")        # charts/decoder-stream-relative_residual.png, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.survey.readings import largest
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.finding import Finding
from attnscope.core.words import numeral
from attnscope.reports.export import save
from attnscope.reports.rows import panels, part_title
from attnscope.reports.survey_charts import depth_profile, head_grid

FIRST_CHOICE = "relative_residual"


def chart(
    survey: Survey,
    measure: str | None = None,
    *,
    heads: bool = False,
    part: str | None = None,
    stack: str | None = None,
    site: str | None = None,
) -> Any:
    """Draw `measure` (default: the residual). `stack` and `site` default to the first place with that measure."""
    card, stack_and_site = card_and_place(survey, measure, stack, site)
    if not heads:
        return depth_profile(survey.table(), card, **stack_and_site)
    if card.scope == "stream":
        raise RefusalError(f"'{card.name}' has one number per block and none per head: leave heads= out.")
    bound = largest(survey, card, stack_and_site["stack"], stack_and_site["site"])
    return head_grid(survey.table(), card, part=part or card.parts[0], bound=bound, **stack_and_site)


def card_and_place(
    survey: Survey, measure: str | None, stack: str | None, site: str | None
) -> tuple[Card, dict[str, Any]]:
    """Return the card of a measure, and a stack and site at which it was taken; refuse unknown ones."""
    if not survey.cells:
        raise RefusalError("The survey holds no number to draw: scan again.")
    seen = {key.measure for key in survey.cells}
    name = measure or (FIRST_CHOICE if FIRST_CHOICE in seen else next(iter(sorted(seen))))
    if name not in survey.cards:
        raise RefusalError(f"This survey has no measure '{name}'.{nearest(name, survey.cards)}")
    card = survey.cards[name]
    places = survey.places(name, card.parts[0])
    fits = [
        stack_and_site
        for stack_and_site in places
        if stack in (None, stack_and_site[0]) and site in (None, stack_and_site[1])
    ]
    if not fits:
        known = ", ".join(" ".join(stack_and_site) for stack_and_site in places) or "no stack"
        raise RefusalError(f"'{name}' was not measured at this stack and site: choose one of {known}.")
    return card, {"stack": fits[0][0], "site": fits[0][1]}


TICKS = 101  # draw this many quantiles instead of one tick per head, so that large models stay cheap


class HeadPlace(NamedTuple):
    """The position of a head in a model."""

    stack: str
    site: str
    layer: int
    head: int


def portrait_rows(table: pd.DataFrame, cards: Mapping[str, Card], place: HeadPlace) -> pd.DataFrame:
    """Return a row for each tick, and a row for each dot (`own` is True): `title, place, own, value, below, text`.

    `place` is 0 at the smallest value of any head and 1 at the largest. `below` is the share of heads with a lower
    value.
    """
    stack, site, layer, head = place
    rows = table[(table["stack"] == stack) & (table["site"] == site) & table["head"].notna()]
    rows = rows[rows["measure"].isin(list(cards))]
    if not ((rows["layer"] == layer) & (rows["head"] == head)).any():
        raise RefusalError(f"The survey has no head {head} in block {layer} at '{site}' in stack '{stack}'.")
    answer: list[dict[str, object]] = []
    for (measure, part), group in rows.groupby(["measure", "part"], sort=False):
        card = cards[str(measure)]
        title = card.title + (f", {part_title(str(part))}" if len(card.parts) > 1 else "")
        means = group["mean"].to_numpy(float)
        finite = np.sort(means[np.isfinite(means)])
        own = means[((group["layer"] == layer) & (group["head"] == head)).to_numpy(bool)]
        if not finite.size or not own.size:
            continue
        low, width = finite[0], finite[-1] - finite[0]
        ticks = finite if finite.size <= TICKS else np.quantile(finite, np.linspace(0, 1, TICKS))
        answer += [
            {"title": title, "place": _place(v, low, width), "own": False, "value": float(v), "text": ""} for v in ticks
        ]
        value = float(own[0])
        dot = {"title": title, "place": _place(value, low, width), "own": True, "value": value}
        text = f"{numeral(value)} {card.unit}".rstrip()
        answer.append({**dot, "below": float((finite < value).mean()), "text": text})
    return pd.DataFrame(answer, columns=["title", "place", "own", "value", "below", "text"]).astype({"own": bool})


def head_portrait(table: pd.DataFrame, cards: Mapping[str, Card], place: HeadPlace) -> alt.LayerChart:
    """Draw one head among all others: for every measure a strip with a tick per head and a dot for this one.

    Units differ, so each strip runs from the smallest value of any head to the largest.
    """
    rows = portrait_rows(table, cards, place)
    order = list(dict.fromkeys(rows["title"]))
    y = alt.Y("title:N", title=None, sort=order, axis=alt.Axis(labelLimit=240, grid=False))
    x = alt.X(
        "place:Q",
        title="smallest to largest value of any head",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(labels=False, ticks=False),
    )
    title = alt.TitleParams(
        f"Block {place.layer}, head {place.head}",
        subtitle=f"{place.stack}, {place.site}-attention, among all its heads",
    )
    own = alt.Chart(rows[rows["own"]])
    tooltip = [
        alt.Tooltip("title:N", title="measure"),
        alt.Tooltip("text:N", title="mean"),
        alt.Tooltip("below:Q", title="heads with less", format=".0%"),
    ]
    return alt.layer(
        alt.Chart(rows[~rows["own"]][["title", "place"]]).mark_tick(style="others", height=10).encode(x=x, y=y),
        own.mark_circle(style="own").encode(x=x, y=y, tooltip=tooltip),
        own.mark_text(align="left", dx=12, style="number").encode(x=alt.value(320), y=y, text="text:N"),
    ).properties(width=320, height=alt.Step(24), title=title)


def _place(value: float, low: float, width: float) -> float:
    return float((value - low) / width) if width > 0 else 0.5


SUFFIXES = (".json", ".svg", ".png")
MOST_PORTRAITS = 12


def gallery(survey: Survey, findings: Sequence[Finding] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield every chart with its file name: profiles, maps of heads, and portraits of the heads that findings name.

    `findings` defaults to the findings at the default thresholds.
    """
    table = survey.table()
    for panel in panels(table, survey.stacks):
        card = survey.cards[panel.measure]
        stem = "-".join((panel.stack, panel.site, panel.measure))
        stack_and_site: dict[str, Any] = {"stack": panel.stack, "site": panel.site}
        yield stem, depth_profile(table, card, **stack_and_site)
        if panel.site != "stream":
            for part in card.parts:
                name = f"{stem}-heads" if part == "value" else f"{stem}-{part}-heads"
                yield name, head_grid(table, card, part=part, **stack_and_site)
    found = diagnose(survey) if findings is None else findings
    for head in islice(_named(found), MOST_PORTRAITS):
        name = f"{head.stack}-{head.site}-block-{head.layer}-head-{head.head}"
        yield name, head_portrait(table, survey.cards, head)


def _named(findings: Sequence[Finding]) -> Iterator[HeadPlace]:
    """Yield the heads of findings, each once: the first head of every finding, then the second, and so on."""
    seen: dict[HeadPlace, None] = {}
    rows = ([HeadPlace(f.stack, str(f.details.get("site", "self")), *place) for place in f.heads] for f in findings)
    for turn in zip_longest(*rows):
        for head in turn:
            if head is not None and head not in seen:
                seen[head] = None
                yield head


def write_gallery(
    survey: Survey, folder: Path | str, *, theme: str = "light", findings: Sequence[Finding] | None = None
) -> tuple[Path, ...]:
    """Write every chart as specification, SVG and PNG; return the files."""
    folder = Path(folder)
    return tuple(
        save(chart, folder / f"{_safe(name)}{suffix}", theme=theme)
        for name, chart in gallery(survey, findings)
        for suffix in SUFFIXES
    )


def _safe(name: str) -> str:
    """Return a file name that stays inside its folder, whatever a survey calls its stacks."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).lstrip(".")
