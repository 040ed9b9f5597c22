"""The sentences of a timeline: alarms, loss trouble, and the numbers that moved most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.timeline.bands import HELD, LOOKS, Departure, departures
from attnscope.commands.timeline.record import Key, Spell, Timeline
from attnscope.commands.watch.look import ALARM_SEVERITIES, AlarmSeverity
from attnscope.core.card import Card
from attnscope.core.words import count, numeral
from attnscope.reports.words import Verdict

MOST_FIRST = 3  # numbers that are named as having left their band first
TROUBLE = 0.2  # the loss is in trouble when it exceeds its lowest earlier value by this share


@dataclass(frozen=True)
class Trend:
    """The first and last number at one place; `head` is None for measures with one number per block."""

    key: Key
    layer: int
    head: int | None
    first: float
    last: float
    moved: float  # in units of the spread over places at the first look


def loss_trouble(run: Timeline) -> int | None:
    """Return the step at which the loss showed trouble, or None."""
    known = np.isfinite(run.losses)
    if not known.any():
        return None
    steps, losses = run.steps[known], run.losses[known]
    least = np.minimum.accumulate(losses)
    above = losses > least + TROUBLE * np.abs(least)
    return int(steps[above.argmax()]) if above.any() else None


def trends(run: Timeline, most: int = 5) -> tuple[Trend, ...]:
    """Return the places that moved most, one for each measure and site."""
    return tuple(sorted(_largest(run), key=lambda trend: (-trend.moved, trend.key))[:most])


def _largest(run: Timeline) -> Iterator[Trend]:
    for key in run.keys:
        card = run.header.measures.get(key[0])
        if card is not None and key[1] != card.parts[0]:
            continue
        numbers = run.numbers(key)
        first, last = _ends(numbers)
        with np.errstate(invalid="ignore"):
            change = np.abs(last - first)
        if not np.isfinite(change).any():
            continue
        size = float(np.nanmax(np.abs(first)))
        apart = float(np.nanstd(first)) + 0.05 * size  # plus a share of the value, in case all places are equal
        place = np.unravel_index(int(np.nanargmax(change)), change.shape)
        moved = float(change[place]) / apart if apart > 0 else 0.0
        if moved > 0:
            head = int(place[1]) if len(place) > 1 else None
            yield Trend(key, int(place[0]), head, float(first[place]), float(last[place]), moved)


def _ends(numbers: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the first and the last finite number of every place, NaN if there is no such number."""
    known = np.isfinite(numbers)
    if not len(numbers):
        empty = np.full(numbers.shape[1:], np.nan)
        return empty, empty
    first = known.argmax(axis=0)
    last = len(numbers) - 1 - known[::-1].argmax(axis=0)
    begin, end = (np.take_along_axis(numbers, at[None], axis=0)[0] for at in (first, last))
    return begin, end


def verdict(timeline: Timeline) -> Verdict:
    """State the worst alarm of any run, or that there was no alarm."""
    if not any(run.looks for run in timeline.runs):
        return Verdict("note", "There are no looks yet.")
    loud = [(run, spell) for run in timeline.runs for spell in run.alarms if spell.alarm.severity != "note"]
    if not loud:
        notes = sum(len(run.alarms) for run in timeline.runs)
        extra = f" ({count(notes, 'note')})" if notes else ""
        trouble = [run for run in timeline.runs if loss_trouble(run) is not None]
        if trouble:
            return Verdict("warning", f"No alarm, but the loss rose: {_trouble_words(trouble[0])}{extra}")
        return Verdict("calm", f"No alarms in {_looks(timeline)}{extra}.")
    run, worst = max(loud, key=lambda pair: ALARM_SEVERITIES.index(pair[1].alarm.severity))
    whose = f"{run.name}: " if timeline.beside else ""
    counts = _severity_counts([spell.alarm.severity for _, spell in loud])
    return Verdict(worst.alarm.severity, f"{whose}{worst.told[-1].sentence} ({counts})")


def _severity_counts(severities: Sequence[AlarmSeverity]) -> str:
    """Return `1 critical, 2 warnings`."""
    counts = {severity: severities.count(severity) for severity in reversed(ALARM_SEVERITIES)}
    return ", ".join(f"{n} critical" if s == "critical" else count(n, s) for s, n in counts.items() if n)


def sentences(timeline: Timeline) -> tuple[str, ...]:
    """Return the verdict, then for each run its looks, alarms, loss and largest changes."""
    lines = [verdict(timeline).sentence]
    for run in timeline.runs:
        whose = f"{run.name}: " if timeline.beside else ""
        alarms = (f"{when(spell)}: {spell.sentence}" for spell in run.alarms)
        moved = (trend_words(run, trend) for trend in trends(run))
        told = (about(run), *alarms, *moved_first(run), *loss_sentences(run), *moved)
        lines += [f"{whose}{line}" for line in told]
    return tuple(dict.fromkeys(lines))


def about(run: Timeline) -> str:
    """Return `40 looks up to step 2,000; a look took 0.05 s (median).`"""
    if not run.looks:
        return "no looks yet."
    cost = float(np.median([look.cost for look in run.looks]))
    took = f"; a look took {numeral(cost, 2)} s (median)" if cost > 0 else ""
    return f"{count(len(run.looks), 'look')} up to step {run.looks[-1].step:,}{took}."


def when(spell: Spell) -> str:
    """Return `Since step 850, still on`, `Steps 850 to 1,350`."""
    if spell.ended is None:
        return f"Since step {spell.alarm.step:,}, still on"
    if spell.ended <= spell.alarm.step:
        return f"Step {spell.alarm.step:,}"
    return f"Steps {spell.alarm.step:,} to {spell.ended:,}"


def loss_sentences(run: Timeline) -> tuple[str, ...]:
    """Return sentences on the loss, its trouble, and how long after the first alarm the trouble began."""
    known = np.isfinite(run.losses)
    if not known.any():
        return ("The loss is unknown.",) if run.looks else ()
    steps, losses = run.steps[known], run.losses[known]
    least = int(losses.argmin())
    first, last, lowest = (numeral(float(loss), 3) for loss in (losses[0], losses[-1], losses[least]))
    lines = (f"The loss went from {first} to {last}; its lowest value is {lowest}, at step {steps[least]:,}.",)
    return lines if loss_trouble(run) is None else (*lines, f"The loss rose: {_trouble_words(run)}")


def _trouble_words(run: Timeline) -> str:
    step = loss_trouble(run)
    assert step is not None
    rose = f"at step {step:,} it was more than {TROUBLE:.0%} above its lowest value before"
    first = next((spell.alarm.step for spell in run.alarms if spell.alarm.severity != "note"), None)
    if first is None:
        return f"{rose}."
    if step == first:
        return f"{rose}, with the first alarm."
    return f"{rose}, {abs(step - first):,} steps {'after' if step > first else 'before'} the first alarm."


def moved_first(run: Timeline) -> tuple[str, ...]:
    """Return which numbers left their bands first, and how long before or after the loss did."""
    if len(run.looks) < LOOKS + HELD:
        return ()
    found = departures(run)
    loss = next((one for one in found if one.name == "loss" and one.key is None), None)
    others = [one for one in found if one is not loss]
    if not others and loss is None:
        return (f"No number left the band of the {LOOKS} looks before it for {HELD} looks.",)
    if loss is not None and (not others or loss.step < others[0].step):
        return (f"The loss leaves its band first, at step {loss.step:,} ({_band_words(loss)}).",)
    return tuple(_departure_words(run, one, loss) for one in others[:MOST_FIRST])


def _departure_words(run: Timeline, one: Departure, loss: Departure | None) -> str:
    name = "The gradient norm of all parameters"
    if one.key is not None and one.layer is not None:
        card = run.header.measures.get(one.key[0])
        name = f"{title_of(card, one.key)} in {place_words(card, one.key, one.layer, None, run)}"
    after = "the loss did not leave its band, which a slow rise widens"
    if loss is not None:
        gap = loss.step - one.step
        after = f"{count(abs(gap), 'step')} {'before' if gap > 0 else 'after'} the loss" if gap else "with the loss"
    return f"{name} leaves its band at step {one.step:,} ({_band_words(one)}); {after}."


def _band_words(one: Departure) -> str:
    return f"{numeral(one.value, 3)}, band {numeral(one.low, 3)} to {numeral(one.high, 3)}"


def trend_words(run: Timeline, trend: Trend) -> str:
    card = run.header.measures.get(trend.key[0])
    verb = "rose" if trend.last > trend.first else "fell"
    unit = f" {card.unit}" if card is not None and card.unit else ""
    return (
        f"{title_of(card, trend.key)} {verb} most in {place_words(card, trend.key, trend.layer, trend.head, run)}:"
        f" from {numeral(trend.first, 3)} to {numeral(trend.last, 3)}{unit}."
    )


def title_of(card: Card | None, key: Key) -> str:
    """Return `Attention entropy`, or `Gradient norm, query` with the name of a part."""
    from attnscope.reports.rows import part_title

    if card is None:
        return key[0] if key[1] == "value" else f"{key[0]}, {key[1]}"
    return card.title if key[1] == card.parts[0] == "value" else f"{card.title}, {part_title(key[1])}"


def place_words(card: Card | None, key: Key, layer: int, head: int | None, run: Timeline) -> str:
    """Return `head 3 of block 2`, `block 2`, `the stream entering block 2`; with the stack if there are several."""
    tail = "" if len(run.header.stacks) < 2 else f" of the {key[2]}"
    if head is not None:
        return f"head {head} of block {layer}{tail}"
    if key[3] == "middle":
        return f"block {layer}{tail}, after attention"
    if key[3] == "stream" and not (card is not None and card.of_block):
        depth = next((stack.layers for stack in run.header.stacks if stack.name == key[2]), None)
        return f"the stream {'after the last block' if layer == depth else f'entering block {layer}'}{tail}"
    return f"block {layer - 1 if card is not None and card.of_block else layer}{tail}"


def _looks(timeline: Timeline) -> str:
    last = max(run.looks[-1].step for run in timeline.runs if run.looks)
    runs = f" of {count(len(timeline.runs), 'run')}" if timeline.beside else ""
    return f"{count(sum(len(run.looks) for run in timeline.runs), 'look')}{runs} up to step {last:,}"
