"""The page of a timeline. Its script unpacks the numbers of a measure when the reader chooses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnscope.commands.compare.chart import distinct
from attnscope.commands.timeline.chart import telling
from attnscope.commands.timeline.course import course_chart
from attnscope.commands.timeline.maps import StepMap, step_maps, thinning
from attnscope.commands.timeline.record import Key, Spell, Timeline
from attnscope.commands.timeline.words import (
    TROUBLE,
    about,
    loss_sentences,
    moved_first,
    trend_words,
    trends,
    verdict,
    when,
)
from attnscope.commands.watch.look import Alarm
from attnscope.core.words import count, numeral
from attnscope.reports.document import rows
from attnscope.reports.export import Drawn, drawn_to_fit
from attnscope.reports.page import page
from attnscope.reports.words import card_range

POINTS = 100  # most points of a curve
MOST_ALARMS = 60


class Item(NamedTuple):
    """The parts of one alarm that the page shows."""

    alarm: Alarm
    run: str
    when: str
    sentence: str
    value: str
    threshold: str


def render(timeline: Timeline) -> str:
    """Return the page. Equal records give equal pages."""
    names = distinct([run.name for run in timeline.runs])
    runs = list(zip(timeline.runs, names, strict=True))
    maps = step_maps(timeline)
    alarms = [_item(name, spell) for run, name in runs for spell in run.alarms]
    cards = {name: card for run in timeline.runs for name, card in run.header.measures.items()}
    opened = telling(timeline)
    course = _course(timeline, opened)
    return page(
        "timeline.html",
        verdict=verdict(timeline),
        figures=course,
        styles=("timeline.css",),
        scripts=("timeline.js",),
        names=names,
        model=timeline.header.model,
        about=[about(run) for run in timeline.runs],
        alarms=alarms[:MOST_ALARMS],
        hidden=max(0, len(alarms) - MOST_ALARMS),
        course=course,
        course_words=_each(timeline, names, lambda run: (*moved_first(run), *loss_sentences(run))),
        trends=_each(timeline, names, lambda run: tuple(trend_words(run, trend) for trend in trends(run))),
        headlines=[line for run, name in runs for line in _headlines(run, name)],
        maps=maps,
        small=[(step_map, list(zip(names, step_map.drawings(), strict=True))) for step_map in maps],
        thinned=thinning(maps),
        notes=[note for run in timeline.runs for note in run.notes],
        data=_data(timeline, names, maps, opened),
        provenance=[row for run, name in runs for row in _provenance(run, name)],
        cards=[(card, card_range(card)) for card in cards.values()],
    )


def _data(timeline: Timeline, names: Sequence[str], maps: tuple[StepMap, ...], opened: Key | None) -> dict[str, Any]:
    """Return the data of the page's script."""
    columns = maps[0].columns if maps else ()
    return {
        "opened": next((n for n, step_map in enumerate(maps) if step_map.key == opened), 0),
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
                        "sentence": f"{spell.alarm.compared}. {spell.alarm.sentence}",
                        "stack": spell.alarm.stack,
                        "site": spell.alarm.site,
                        "layers": sorted({layer for alarm in spell.told for layer in alarm.layers}),
                        "heads": [
                            list(pair) for pair in sorted({pair for alarm in spell.told for pair in alarm.heads})
                        ],
                    }
                    for spell in run.alarms[:MOST_ALARMS]
                ],
            }
            for run, name, each in zip(timeline.runs, names, columns, strict=bool(columns))
        ],
        "maps": [step_map.to_json() for step_map in maps],
    }


def _course(timeline: Timeline, opened: Key | None) -> list[Drawn]:
    known = any(np.isfinite(run.losses).any() for run in timeline.runs)
    if not known and opened is None:
        return []
    marked = any(spell.alarm.severity != "note" for run in timeline.runs for spell in run.alarms)
    marks = " Triangles are alarms, at the step at which they began; notes are in the list below." if marked else ""
    looks = len(timeline.looks)
    thinned = (
        f"Of {count(looks, 'look')}, at most {POINTS} points are drawn: of neighbours the farthest from the median."
    )
    thinned = thinned if looks > POINTS else ""
    return [
        drawn_to_fit(
            lambda width: course_chart(timeline, opened, width, most=POINTS),
            "course",
            title="Loss and attention over the steps",
            caption=f"All parts share one step axis. The loss is that of each look.{marks} {thinned}".strip(),
            summary=" ".join(line for run in timeline.runs for line in (*moved_first(run), *loss_sentences(run))),
        )
    ]


def _each(timeline: Timeline, names: Sequence[str], say: Callable[[Timeline], tuple[str, ...]]) -> list[str]:
    """Return sentences of every run, after its name if there are several runs."""
    return [
        f"{name}: {line}" if timeline.beside else line
        for run, name in zip(timeline.runs, names, strict=True)
        for line in say(run)
    ]


def _item(name: str, spell: Spell) -> Item:
    alarm = spell.alarm
    return Item(alarm, name, when(spell), spell.sentence, numeral(alarm.value), numeral(alarm.threshold))


def _headlines(run: Timeline, name: str) -> list[dict[str, str]]:
    if not run.looks:
        return []
    last = run.looks[-1]
    lines = [("Looks", f"{len(run.looks):,}", f"up to step {last.step:,}")]
    speed = run.tokens_a_second
    if np.isfinite(speed).any() and last.tokens:
        note = f"median between looks; {last.tokens:,} tokens in total"
        lines.append(("Tokens a second", numeral(float(np.nanmedian(speed)), 3), note))
    cost = sum(look.cost for look in run.looks)
    if cost > 0 and last.seconds > 0:
        note = f"of the training time: {numeral(cost, 3)} of {numeral(last.seconds, 3)} s"
        lines.append(("Cost of looking", f"{100 * cost / last.seconds:.2g}%", note))
    return [{"label": f"{label}, {name}", "value": value, "note": note} for label, value, note in lines]


def _provenance(run: Timeline, name: str) -> list[tuple[str, str]]:
    header = run.header
    data = {
        "model": header.model,
        "structure": header.fingerprint[:16],
        "stacks": [{"name": s.name, "layers": s.layers, "heads": s.heads} for s in header.stacks],
        "settings": header.settings,
        "attnscope": header.attnscope,
        "created": header.created,
        "resumed after step": list(header.resumed),
        "loss trouble": f"{TROUBLE:.0%} above its lowest value before",
    }
    return [(f"{name} {label}", value) for label, value in rows(data)]
