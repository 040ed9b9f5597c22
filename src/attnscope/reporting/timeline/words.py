"""What a run says, in sentences: its alarms, when the loss showed the same, and which numbers moved most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnscope.core.card import Card
from attnscope.core.finding import SEVERITIES
from attnscope.core.numerals import numeral
from attnscope.core.words import count
from attnscope.records.timeline.timeline import Key, Spell, Timeline
from attnscope.records.timeline.trends import TROUBLE, Trend, loss_trouble, trends
from attnscope.reporting.survey.words import NAMES
from attnscope.reporting.verdict import Verdict


def verdict(timeline: Timeline) -> Verdict:
    """The worst alarm of any run in its own words, or that there was none."""
    if not any(run.looks for run in timeline.runs):
        return Verdict("info", "Nothing has been looked at yet.")
    told = [(run, spell) for run in timeline.runs for spell in run.alarms if spell.alarm.severity != "info"]
    if not told:
        notes = sum(len(run.alarms) for run in timeline.runs)
        extra = f" ({count(notes, 'note')})" if notes else ""
        trouble = [run for run in timeline.runs if loss_trouble(run) is not None]
        if trouble:
            return Verdict("warning", f"No alarm, but the loss rose: {_trouble_words(trouble[0])}{extra}")
        return Verdict("calm", f"No alarms in {_looks(timeline)}{extra}.")
    run, worst = max(told, key=lambda pair: SEVERITIES.index(pair[1].alarm.severity))
    whose = f"{run.name}: " if timeline.beside else ""
    return Verdict(worst.alarm.severity, f"{whose}{worst.sentence} ({_counts([spell for _, spell in told])})")


def sentences(timeline: Timeline) -> tuple[str, ...]:
    """Verdict first, then run by run: what was looked at, alarms, loss, what moved."""
    said = [verdict(timeline).sentence]
    for run in timeline.runs:
        whose = f"{run.name}: " if timeline.beside else ""
        said += [f"{whose}{line}" for line in (about(run), *alarm_sentences(run), *loss_sentences(run))]
        said += [f"{whose}{trend_words(run, trend)}" for trend in trends(run)]
    return tuple(dict.fromkeys(said))


def about(run: Timeline) -> str:
    """`40 looks up to step 2,000, of a model of 3 layers; a look took 0.05 s`."""
    if not run.looks:
        return "no looks yet."
    cost = float(np.median([look.cost for look in run.looks]))
    took = f"; a look took {numeral(cost, 2)} s (median)" if cost > 0 else ""
    return f"{count(len(run.looks), 'look')} up to step {run.looks[-1].step:,}{took}."


def alarm_sentences(run: Timeline) -> tuple[str, ...]:
    return tuple(f"{when(spell)}: {spell.sentence}" for spell in run.alarms)


def when(spell: Spell) -> str:
    """`Since step 850, still on`, `Steps 850 to 1,350`."""
    if spell.ended is None:
        return f"Since step {spell.alarm.step:,}, still on"
    if spell.ended <= spell.alarm.step:
        return f"Step {spell.alarm.step:,}"
    return f"Steps {spell.alarm.step:,} to {spell.ended:,}"


def loss_sentences(run: Timeline) -> tuple[str, ...]:
    """Where the loss went, and how long before it showed trouble the first alarm was."""
    told = np.isfinite(run.losses)
    if not told.any():
        return ("The loss was not told.",) if run.looks else ()
    steps, losses = run.steps[told], run.losses[told]
    least = int(losses.argmin())
    said = [
        f"The loss went from {numeral(float(losses[0]), 3)} to {numeral(float(losses[-1]), 3)}, its least is"
        f" {numeral(float(losses[least]), 3)} at step {steps[least]:,}."
    ]
    return (*said, *lead_words(run))


def lead_words(run: Timeline) -> tuple[str, ...]:
    """How the first alarm stands to the loss; nothing where the loss never rose."""
    if loss_trouble(run) is None:
        return ()
    return (f"The loss rose: {_trouble_words(run)}",)


def _trouble_words(run: Timeline) -> str:
    step = loss_trouble(run)
    assert step is not None
    said = f"at step {step:,} it stood more than {TROUBLE:.0%} above the least before it"
    first = next((spell.alarm.step for spell in run.alarms if spell.alarm.severity != "info"), None)
    if first is None:
        return f"{said}."
    apart = step - first
    if apart > 0:
        return f"{said}, {apart:,} steps after the first alarm."
    return f"{said}, {'with the first alarm' if apart == 0 else f'{-apart:,} steps before the first alarm'}."


def trend_words(run: Timeline, trend: Trend) -> str:
    card = run.header.measures.get(trend.key[0])
    verb = "rose" if trend.last > trend.first else "fell"
    unit = f" {card.unit}" if card is not None and card.unit else ""
    return (
        f"{title_of(card, trend.key)} {verb} most in {place_words(card, trend.key, trend.layer, trend.head, run)}:"
        f" from {numeral(trend.first, 3)} to {numeral(trend.last, 3)}{unit}."
    )


def title_of(card: Card | None, key: Key) -> str:
    """`Attention entropy`; `Gradient norm, query`: parts are named, but for the value itself where that comes first."""
    from attnscope.charts.rows import part_title

    if card is None:
        return key[0] if key[1] == "value" else f"{key[0]}, {key[1]}"
    return card.title if key[1] == card.parts[0] == "value" else f"{card.title}, {part_title(key[1])}"


def place_words(card: Card | None, key: Key, layer: int, head: int | None, run: Timeline) -> str:
    """`head 3 of block 2`, `block 2`, `the stream entering block 2`; with the stack where there are several."""
    tail = "" if len(run.header.stacks) < 2 else f" of the {key[2]}"
    if head is not None:
        return f"head {head} of block {layer}{tail}"
    if key[3] == "middle":
        return f"block {layer}{tail}, after attention"
    if key[3] == "stream" and not (card is not None and card.of_block):
        depth = next((stack.layers for stack in run.header.stacks if stack.name == key[2]), None)
        return (
            f"the stream after the last block{tail}" if layer == depth else f"the stream entering block {layer}{tail}"
        )
    return f"block {layer - 1 if card is not None and card.of_block else layer}{tail}"


def _looks(timeline: Timeline) -> str:
    last = max(run.looks[-1].step for run in timeline.runs if run.looks)
    runs = f" of {count(len(timeline.runs), 'run')}" if timeline.beside else ""
    return f"{count(sum(len(run.looks) for run in timeline.runs), 'look')}{runs} up to step {last:,}"


def _counts(spells: Sequence[Spell]) -> str:
    counts = {severity: sum(s.alarm.severity == severity for s in spells) for severity in reversed(SEVERITIES)}
    return ", ".join(f"{n} {NAMES[severity][n != 1]}" for severity, n in counts.items() if n)
