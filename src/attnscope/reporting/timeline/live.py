"""A run while it is written, as one screen: alarms, the loss, every measure as a line of blocks, tokens a second.

`frame` is a picture of a moment and knows nothing of terminals; `attnscope watch RUN` draws it again and again.
"""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.finding import SEVERITIES
from attnscope.core.numerals import numeral
from attnscope.core.visible import clean
from attnscope.records.timeline.timeline import Key, Spell, Timeline
from attnscope.reporting.terminal import LEVELS
from attnscope.reporting.timeline.terminal import now_of, one_line, spark
from attnscope.reporting.timeline.words import title_of

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
