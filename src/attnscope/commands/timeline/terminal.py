"""Screens of a timeline, and of a run in progress (`attnscope timeline RUN --live`)."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.timeline.read import Columns
from attnscope.commands.timeline.record import Timeline
from attnscope.commands.timeline.reduce import card_of, of_heads, worry
from attnscope.commands.timeline.words import (
    about,
    loss_sentences,
    moved_first,
    title_of,
    trend_words,
    trends,
    verdict,
    when,
)
from attnscope.commands.watch.look import ALARM_SEVERITIES
from attnscope.core.words import clean, numeral
from attnscope.reports.terminal import BLOCKS, LEVELS, lines_under, opening, section

MOST_ALARMS = 8
SPARK = 32  # columns
ALARMS = 5  # most alarms on the screen of a run in progress


def show(timeline: Timeline, *, verbose: bool = False) -> RenderableType:
    """Return the screen: verdict, alarms, loss and the largest changes; with `verbose`, every measure as a
    table too.
    """
    lines = [f"{run.name}: {run.header.model}, {about(run)}" for run in timeline.runs]
    parts: list[RenderableType] = opening(verdict(timeline), *lines)
    for run in timeline.runs:
        if timeline.beside:
            parts.append(section(clean(run.name)))
        alarms = run.alarms if verbose else run.alarms[:MOST_ALARMS]
        parts += [
            Text.assemble((f"{when(spell)}: ", LEVELS[spell.alarm.severity]), clean(spell.sentence)) for spell in alarms
        ]
        if len(run.alarms) > len(alarms):
            parts.append(Text(f"{len(run.alarms) - len(alarms)} more alarms: --verbose shows them.", style="dim"))
        parts += [Text(f"· {clean(line)}") for line in (*moved_first(run), *loss_sentences(run))]
        if np.isfinite(run.losses).any():
            parts.append(Text(f"  loss {spark(run.losses)}", style="dim"))
        parts += [Text(f"· {clean(trend_words(run, trend))}") for trend in trends(run, 5 if verbose else 3)]
        parts += [Text(clean(note), style="dim") for note in run.notes]
        if verbose:
            parts += lines_under("Every measure", ("measure", "where", "first", "last", "over the steps"), _lines(run))
    return Group(*parts)


def spark(numbers: np.ndarray, width: int = SPARK) -> str:
    """Return numbers as a line of block characters from smallest to largest, a dot for NaN."""
    thin = Columns.of(len(numbers), width).thin(np.asarray(numbers, float))
    known = np.isfinite(thin)
    if not known.any():
        return "·" * len(thin)
    low, high = float(thin[known].min()), float(thin[known].max())
    share = (np.where(known, thin, low) - low) / (high - low if high > low else 1.0)
    steps = np.rint(share * (len(BLOCKS) - 1)).astype(int)
    return "".join(BLOCKS[step] if there else "·" for step, there in zip(steps, known, strict=True))


def now_of(numbers: np.ndarray) -> str:
    """Return the number of the last look, or a dash."""
    return numeral(float(numbers[-1]), 3) if len(numbers) and np.isfinite(numbers[-1]) else "–"


def one_line(run: Timeline, key: tuple[str, str, str, str]) -> np.ndarray:
    """Return one number for each look: the maximum or minimum over all blocks if the measure has an alarm, else the
    mean."""
    of = worry(card_of(run, key))
    return of_heads(of_heads(run.numbers(key), of)[:, None, :], of)[:, 0]


def _lines(run: Timeline) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for key in run.keys:
        numbers = one_line(run, key)
        known = numbers[np.isfinite(numbers)]
        if len(known):
            card = run.header.measures.get(key[0])
            first = numeral(float(known[0]), 3)
            lines.append((title_of(card, key), key[3], first, now_of(numbers), spark(numbers, 24)))
    return lines


def frame(run: Timeline, *, width: int, height: int, silent: float | None = None, live: bool = True) -> RenderableType:
    """Return the live screen of a run: alarms, loss, every measure, tokens a second. `silent` is the age of the last
    look in seconds; with `live`, the screen names the key that quits.
    """
    name = f"{run.name} · {run.header.model}"
    title = Text(clean(name[: max(width - 2, 10)]), style="bold", no_wrap=True)
    alarms = _alarms(run)
    taken = sum(-(-len(line.plain) // max(width, 1)) + 1 for line in alarms)  # one more: words wrap early
    measures = _measures(run, width, max(4, height - taken - 7))
    leave = [Text("q quits; the training goes on", style="dim")] if live else []
    return Group(title, _status(run, silent), Text(""), *alarms, Text(""), measures, *leave)


def _status(run: Timeline, silent: float | None) -> Text:
    if not run.looks:
        return Text("No look yet.", style="dim")
    last = run.looks[-1]
    words = [f"step {last.step:,}"]
    if np.isfinite(run.losses).any():
        words.append("loss –" if last.loss is None else f"loss {numeral(last.loss, 4)}")
    speed = run.tokens_a_second
    if np.isfinite(speed).any() and last.tokens:
        words.append(f"{numeral(float(speed[np.isfinite(speed)][-1]), 3)} tokens/s")
    looks = [f"{len(run.looks):,} looks"]
    if last.seconds > 0:
        looks.append(f"{100 * sum(look.cost for look in run.looks) / last.seconds:.2g}% of time")
    if silent is not None:
        looks.append(f"last {_ago(silent)} ago")
    words.append(", ".join(looks))
    return Text(" · ".join(words))


def _ago(seconds: float) -> str:
    size, unit = (1, "s") if seconds < 120 else (60, "min") if seconds < 7200 else (3600, "h")
    return f"{seconds / size:.0f} {unit}"


def _alarms(run: Timeline) -> list[Text]:
    """Return active alarms, most severe and newest first, then alarms that ended."""
    rank = ALARM_SEVERITIES.index
    spells = sorted(run.alarms, key=lambda s: (s.ended is not None, -rank(s.alarm.severity), -s.alarm.step))
    if not spells:
        return [Text("No alarms.", style=LEVELS["calm"])]
    lines = [
        Text.assemble((f"step {spell.alarm.step:,} ", LEVELS[spell.alarm.severity]), clean(spell.sentence))
        if spell.ended is None
        else Text(f"ended at step {spell.ended:,}: {clean(spell.sentence)}", style="dim")
        for spell in spells[:ALARMS]
    ]
    if len(spells) > ALARMS:
        lines.append(Text(f"and {len(spells) - ALARMS} more: attnscope timeline shows them", style="dim"))
    return lines


def _measures(run: Timeline, width: int, room: int) -> RenderableType:
    """Return the loss and as many measures as fit on the screen, measures of heads first."""
    table = Table.grid(padding=(0, 1), expand=False)
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify, no_wrap=True, overflow="ellipsis")
    longest = min(30, max(12, width // 3))
    line = max(8, width - longest - 14)
    rows: list[tuple[str, np.ndarray]] = []
    if np.isfinite(run.losses).any():
        rows.append(("Loss", run.losses))
    cards = run.header.measures
    keys = [key for key in run.keys if key[0] not in cards or key[1] == cards[key[0]].parts[0]]
    keys.sort(key=lambda key: key[3] in ("stream", "middle"))
    inside = {"middle": ", in blocks"}
    rows += [(title_of(cards.get(key[0]), key) + inside.get(key[3], ""), one_line(run, key)) for key in keys]
    for title, numbers in rows[:room]:
        table.add_row(Text(clean(title[:longest])), Text(now_of(numbers), style="bold"), Text(spark(numbers, line)))
    if len(rows) > room:
        table.add_row(Text(f"and {len(rows) - room} more", style="dim"), Text(""), Text(""))
    return table
