"""A timeline on a screen: the verdict, alarms, the loss and what moved most, with a line of blocks for each."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.timeline.read import Columns
from attnscope.commands.timeline.record import Key, Spell, Timeline
from attnscope.commands.timeline.step_curves import card_of, of_heads, worry
from attnscope.commands.timeline.words import about, loss_sentences, title_of, trend_words, trends, verdict, when
from attnscope.core.finding import SEVERITIES
from attnscope.core.words import clean, numeral
from attnscope.reports.terminal import BLOCKS, LEVELS, lines_under, opening, section

MOST_ALARMS = 8
SPARK = 32  # columns


def show(timeline: Timeline, *, verbose: bool = False) -> RenderableType:
    """What a console prints; `verbose` adds every measure as a table."""
    parts: list[RenderableType] = opening(verdict(timeline), *_about(timeline))
    for run in timeline.runs:
        if timeline.beside:
            parts.append(section(clean(run.name)))
        alarms = run.alarms if verbose else run.alarms[:MOST_ALARMS]
        parts += [
            Text.assemble((f"{when(spell)}: ", LEVELS[spell.alarm.severity]), clean(spell.sentence)) for spell in alarms
        ]
        if len(run.alarms) > len(alarms):
            parts.append(Text(f"{len(run.alarms) - len(alarms)} more alarms: --verbose shows them.", style="dim"))
        parts += [Text(f"· {clean(line)}") for line in loss_sentences(run)]
        if np.isfinite(run.losses).any():
            parts.append(Text(f"  loss {spark(run.losses)}", style="dim"))
        parts += [Text(f"· {clean(trend_words(run, trend))}") for trend in trends(run, 5 if verbose else 3)]
        parts += [Text(clean(note), style="dim") for note in run.notes]
        if verbose:
            parts += lines_under("Every measure", ("measure", "where", "first", "last", "over the steps"), _lines(run))
    return Group(*parts)


def spark(numbers: np.ndarray, width: int = SPARK) -> str:
    """Numbers as a line of blocks, from the smallest to the largest; a dot where there is none."""
    thin = Columns.of(len(numbers), width).thin(np.asarray(numbers, float))
    known = np.isfinite(thin)
    if not known.any():
        return "·" * len(thin)
    low, high = float(thin[known].min()), float(thin[known].max())
    share = (np.where(known, thin, low) - low) / (high - low if high > low else 1.0)
    steps = np.rint(share * (len(BLOCKS) - 1)).astype(int)
    return "".join(BLOCKS[step] if there else "·" for step, there in zip(steps, known, strict=True))


def now_of(numbers: np.ndarray) -> str:
    """The number of the last look; a dash where it has none, whatever was known before."""
    return numeral(float(numbers[-1]), 3) if len(numbers) and np.isfinite(numbers[-1]) else "–"


def one_line(run: Timeline, key: tuple[str, str, str, str]) -> np.ndarray:
    """One number for each look: of the layers the largest, the smallest or the mean, as the card worries."""
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


def _about(timeline: Timeline) -> list[str]:
    if timeline.beside:
        return [f"{run.name}: {run.header.model}, {about(run)}" for run in timeline.runs]
    return [f"{timeline.name}: {timeline.header.model}, {about(timeline)}"]


# A run while it is written, as one screen: alarms, the loss, every measure as a line of blocks, tokens a second.
#
# `frame` is a picture of a moment and knows nothing of terminals; `attnscope timeline RUN --live` draws it again and again.

ALARMS = 5


def frame(run: Timeline, *, width: int, height: int, silent: float | None = None, live: bool = True) -> RenderableType:
    """`silent` is how many seconds ago the last look was written; without `live`, nothing is said about keys."""
    parts: list[RenderableType] = [_title(run, width), _status(run, silent)]
    alarms = _alarms(run)
    parts += [Text(""), *alarms, Text("")]
    taken = sum(-(-len(line.plain) // max(width, 1)) + 1 for line in alarms)  # words wrap earlier than letters
    room = max(4, height - taken - 7)
    parts.append(_measures(run, width, room))
    if live:
        parts.append(Text("q leaves; the training is not touched", style="dim"))
    return Group(*parts)


def _title(run: Timeline, width: int) -> Text:
    name = f"{run.name} · {run.header.model}"
    return Text(clean(name[: max(width - 2, 10)]), style="bold", no_wrap=True)


def _status(run: Timeline, silent: float | None) -> Text:
    if not run.looks:
        return Text("No look yet: the first comes with the first step that is looked at.", style="dim")
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
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )


def _alarms(run: Timeline) -> list[Text]:
    """Those that hold, the most severe and of these the newest first, then those that are over."""
    rank = SEVERITIES.index
    spells = sorted(run.alarms, key=lambda s: (s.ended is not None, -rank(s.alarm.severity), -s.alarm.step))
    if not spells:
        return [Text("No alarms.", style=LEVELS["calm"])]
    shown = [_alarm(spell) for spell in spells[:ALARMS]]
    if len(spells) > ALARMS:
        shown.append(Text(f"and {len(spells) - ALARMS} more: attnscope timeline shows them", style="dim"))
    return shown


def _alarm(spell: Spell) -> Text:
    alarm = spell.alarm
    if spell.ended is not None:
        return Text(f"over since step {spell.ended:,}: {clean(spell.sentence)}", style="dim")
    return Text.assemble((f"step {alarm.step:,} ", LEVELS[alarm.severity]), clean(spell.sentence))


def _named(run: Timeline, key: Key) -> str:
    title = title_of(run.header.measures.get(key[0]), key)
    return f"{title}, in blocks" if key[3] == "middle" else title


def _measures(run: Timeline, width: int, room: int) -> RenderableType:
    """The loss and as many measures as there is room for, those of heads first."""
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
    rows += [(_named(run, key), one_line(run, key)) for key in keys]
    for title, numbers in rows[:room]:
        table.add_row(Text(clean(title[:longest])), Text(now_of(numbers), style="bold"), Text(spark(numbers, line)))
    if len(rows) > room:
        table.add_row(Text(f"and {len(rows) - room} more", style="dim"), Text(""), Text(""))
    return table
