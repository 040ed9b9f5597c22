"""A timeline on a screen: the verdict, alarms, the loss and what moved most, with a line of blocks for each."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from attnscope.charts.step_curves import card_of, of_heads, worry
from attnscope.core.numerals import numeral
from attnscope.core.visible import clean
from attnscope.records.timeline.thinned import Columns
from attnscope.records.timeline.timeline import Timeline
from attnscope.records.timeline.trends import trends
from attnscope.reporting.terminal import BLOCKS, LEVELS, lines_under, opening, section
from attnscope.reporting.timeline.words import about, loss_sentences, title_of, trend_words, verdict, when

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
