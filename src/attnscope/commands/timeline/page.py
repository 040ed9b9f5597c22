"""The page of a timeline: alarms in sentences, the loss with alarms as marks, every measure over layers and steps.

Numbers stay packed in the page and are unfolded by its script when a measure is chosen; small maps of all measures are
drawn when the page is written and need no script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnscope.commands.compare.chart import distinct
from attnscope.commands.timeline.chart import telling
from attnscope.commands.timeline.maps import StepMap, step_maps, thinning
from attnscope.commands.timeline.record import Key, Spell, Timeline
from attnscope.commands.timeline.step_curves import loss_chart
from attnscope.commands.timeline.words import TROUBLE, about, loss_sentences, trend_words, trends, verdict, when
from attnscope.commands.watch.look import Alarm
from attnscope.core.errors import RefusalError
from attnscope.core.words import count, numeral
from attnscope.reports.document import rows
from attnscope.reports.export import Drawn, drawn_to_fit
from attnscope.reports.page import page
from attnscope.reports.words import card_range

POINTS = 100  # of the loss: each is drawn three times, with its sentence
MOST_ALARMS = 60


@dataclass(frozen=True)
class Shown:
    """An alarm and what the page says of it."""

    alarm: Alarm
    severity: str
    run: str
    when: str
    sentence: str
    value: str
    threshold: str


def render(timeline: Timeline) -> str:
    """The page as text. Equal records give equal pages."""
    names = distinct([run.name for run in timeline.runs])
    maps = step_maps(timeline)
    loss = _loss(timeline)
    alarms = [_shown(name, spell) for run, name in zip(timeline.runs, names, strict=True) for spell in run.alarms]
    cards = {name: card for run in timeline.runs for name, card in run.header.measures.items()}
    opened = telling(timeline)
    return page(
        "timeline.html",
        verdict=verdict(timeline),
        figures=loss,
        styles=("timeline.css",),
        scripts=("timeline.js",),
        names=names,
        model=timeline.header.model,
        about=[about(run) for run in timeline.runs],
        alarms=alarms[:MOST_ALARMS],
        hidden=max(0, len(alarms) - MOST_ALARMS),
        loss=loss,
        loss_words=_each(timeline, names, loss_sentences),
        trends=_each(timeline, names, lambda run: tuple(trend_words(run, one) for one in trends(run))),
        headlines=[line for run, name in zip(timeline.runs, names, strict=True) for line in _headlines(run, name)],
        maps=maps,
        small=[(one, list(zip(names, one.drawings(), strict=True))) for one in maps],
        thinned=thinning(maps),
        notes=[note for run in timeline.runs for note in run.notes],
        data=_data(timeline, names, maps, opened),
        provenance=[row for run, name in zip(timeline.runs, names, strict=True) for row in _provenance(run, name)],
        cards=[(card, card_range(card)) for card in cards.values()],
    )


def _data(timeline: Timeline, names: Sequence[str], maps: tuple[StepMap, ...], opened: Key | None) -> dict[str, Any]:
    """What the page's script needs."""
    columns = maps[0].columns if maps else ()
    return {
        "opened": next((n for n, one in enumerate(maps) if one.key == opened), 0),
        "runs": [
            {
                "name": name,
                "steps": run.steps[each.begins].tolist(),
                "until": run.steps[each.ends - 1].tolist(),
                "loss": [float(f"{v:.4g}") if np.isfinite(v) else None for v in each.thin(run.losses)],
                "alarms": [
                    {
                        "step": spell.alarm.step,
                        "severity": spell.alarm.severity,
                        "sentence": spell.alarm.sentence,
                        "stack": spell.alarm.stack,
                        "site": spell.alarm.site,
                        "layers": sorted({layer for one in spell.told for layer in one.layers}),
                        "heads": [list(pair) for pair in sorted({pair for one in spell.told for pair in one.heads})],
                    }
                    for spell in run.alarms[:MOST_ALARMS]
                ],
            }
            for run, name, each in zip(timeline.runs, names, columns, strict=bool(columns))
        ],
        "maps": [one.to_json() for one in maps],
    }


def _loss(timeline: Timeline) -> list[Drawn]:
    try:
        loss_chart(timeline, 600)
    except RefusalError:
        return []
    marked = any(spell.alarm.severity != "note" for run in timeline.runs for spell in run.alarms)
    marks = " Triangles are alarms, at the step at which they began; notes are in the list above." if marked else ""
    thinned = " ".join(
        f"Of {count(len(run.looks), 'look')} at most {POINTS} points are drawn, of neighbours the"
        " farthest from the median."
        for run in timeline.runs[:1]
        if len(run.looks) > POINTS
    )
    return [
        drawn_to_fit(
            lambda width: loss_chart(timeline, width, most=POINTS),
            "loss",
            title="Loss",
            caption=f"The loss at each look.{marks} {thinned}".strip(),
            summary=" ".join(line for run in timeline.runs for line in loss_sentences(run)),
        )
    ]


def _each(timeline: Timeline, names: Sequence[str], say: Callable[[Timeline], tuple[str, ...]]) -> list[str]:
    """Sentences of every run, with its name before them where there are several."""
    return [
        f"{name}: {line}" if timeline.beside else line
        for run, name in zip(timeline.runs, names, strict=True)
        for line in say(run)
    ]


def _shown(name: str, spell: Spell) -> Shown:
    alarm = spell.alarm
    return Shown(
        alarm,
        alarm.severity,
        name,
        when(spell),
        spell.sentence,
        numeral(alarm.value),
        numeral(alarm.threshold),
    )


def _headlines(run: Timeline, name: str) -> list[dict[str, str]]:
    if not run.looks:
        return []
    last = run.looks[-1]
    lines = [{"label": f"Looks, {name}", "value": f"{len(run.looks):,}", "note": f"up to step {last.step:,}"}]
    speed = run.tokens_a_second
    if np.isfinite(speed).any() and last.tokens:
        lines.append(
            {
                "label": f"Tokens a second, {name}",
                "value": numeral(float(np.nanmedian(speed)), 3),
                "note": f"median between looks; {last.tokens:,} tokens in all",
            }
        )
    cost = sum(look.cost for look in run.looks)
    if cost > 0 and last.seconds > 0:
        lines.append(
            {
                "label": f"Cost of looking, {name}",
                "value": f"{100 * cost / last.seconds:.2g}%",
                "note": f"of the time of training: {numeral(cost, 3)} of {numeral(last.seconds, 3)} s",
            }
        )
    return lines


def _provenance(run: Timeline, name: str) -> list[tuple[str, str]]:
    header = run.header
    told = {
        "model": header.model,
        "structure": header.fingerprint[:16],
        "stacks": [{"name": s.name, "layers": s.layers, "heads": s.heads} for s in header.stacks],
        "settings": header.settings,
        "attnscope": header.attnscope,
        "created": header.created,
        "resumed after step": list(header.resumed),
        "trouble of the loss": f"{TROUBLE:.0%} above its running minimum",
    }
    return [(f"{name} {label}", value) for label, value in rows(told)]
