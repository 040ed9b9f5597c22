"""Tokens by length of path: what the frozen network sends to the answer, exactly, and it adds up both ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.explain.record import Explanation
from attnscope.commands.paths.record import PathReport
from attnscope.core.words import numeral

# What the charts of a decomposition into paths show, as plain rows: a value and its sentence at every place.
#
#     length_rows(report)            the target by length: from the input, from constants
#     reconstruction_rows(report)    what the model says when only lengths up to k count: probability, and loss
#     value_rows(report)             Shapley value of every head
#     head_length_rows(report)       what paths through the most valuable heads contribute, by length
#     player_rows(report)            heads and MLPs of each block as players of one game
#
# Where lengths are many, those beyond the last one that matters are left out: 30 blocks have paths of length 30, and
# nobody sees 1e-26.

MOST_HEADS = 14  # rows of the map of heads by length
FEW_LENGTHS = 13  # twelve blocks: so many have room, and all are shown
NEGLIGIBLE = 1e-4  # of the largest: not a pixel high
SHARE = 0.01  # of what tells tokens apart
SOURCES = {"stream": "from the input", "constants": "from constants"}


def seen_lengths(report: PathReport) -> int:
    """Lengths that are drawn: all where they are few, else up to the last that could be seen in any chart."""
    if len(report.lengths) <= FEW_LENGTHS:
        return len(report.lengths)
    values = [max(abs(row.stream), abs(row.constants)) for row in report.lengths]
    distances = [row.up_to.distance for row in report.lengths]
    last_value = _last(values, NEGLIGIBLE * 10 * max(values, default=0.0))
    settled = next((k for k, _ in enumerate(distances) if all(d < 1e-3 for d in distances[k:])), len(distances) - 1)
    last_share = _last([abs(row.residual_share or 0.0) for row in report.lengths], SHARE)
    return min(len(values), max(last_value, settled, last_share, 1) + 1)


def _last(values: Sequence[float], threshold: float) -> int:
    return max((k for k, value in enumerate(values) if value > threshold), default=0)


def length_rows(report: PathReport) -> list[dict[str, Any]]:
    """One row per length and source that has anything."""
    few = report.lengths[: seen_lengths(report)]
    # A model whose weights are all zero has nothing anywhere: its bars are those of the first source, at zero.
    kinds = [key for key in SOURCES if any(getattr(row, key) for row in report.lengths)] or [next(iter(SOURCES))]
    return [
        {
            "length": row.length,
            "source": SOURCES[key],
            "value": (value := getattr(row, key)),
            "label": f"paths through {exactly(row.length)}, {SOURCES[key]}: {signed(value)}",
        }
        for row in few
        for key in kinds
    ]


def reconstruction_rows(report: PathReport) -> list[dict[str, Any]]:
    """By length: the probability of the target, or how near the output is, when only lengths up to it count."""
    few = report.lengths[: seen_lengths(report)]
    rows = []
    for row in few:
        said = row.up_to
        chance = said.target_probability
        quantity = "distance from the model's own output" if chance is None else "probability of the target"
        value = said.distance if chance is None else chance
        words = f", says '{said.predicted}'" if said.predicted is not None else ""
        label = f"lengths up to {row.length}: {quantity} {numeral(value)}{words}"
        rows.append({"length": row.length, "quantity": quantity, "value": value, "label": label})
        if said.loss is not None:
            label = f"lengths up to {row.length}: next-token loss {numeral(said.loss)}"
            rows.append({"length": row.length, "quantity": "next-token loss", "value": said.loss, "label": label})
    return rows


def value_rows(report: PathReport) -> list[dict[str, Any]]:
    return [
        {"block": block, "head": head, "value": value, "label": f"{head_name(block, head)}: {signed(value)}"}
        for block, heads in enumerate(report.head_values)
        for head, value in enumerate(heads)
    ]


def head_length_rows(report: PathReport) -> list[dict[str, Any]]:
    """What paths of each length through a head contribute, for the heads that are worth most, in order of depth."""
    shown = min(max(seen_lengths(report), 3), len(report.lengths))
    places = [(block, head) for block, heads in enumerate(report.head_values) for head in range(len(heads))]
    most = sorted(places, key=lambda place: -abs(report.head_values[place[0]][place[1]]))[:MOST_HEADS]
    return [
        {
            "head": head_name(block, head),
            "length": length,
            "value": (value := report.head_lengths[block][head][length]),
            "label": f"{head_name(block, head)}, paths through {exactly(length)}: {signed(value)}",
        }
        for block, head in sorted(most)
        for length in range(1, shown)
    ]


def player_rows(report: PathReport) -> list[dict[str, Any]]:
    players = report.players
    if players is None:
        return []
    rows = []
    for kind, blocks in (("heads", players.heads), ("MLP", players.mlps)):
        for block, values in enumerate(blocks):
            if values:
                total = sum(values)
                label = f"{kind} of block {block}: {signed(total)}"
                rows.append({"block": block, "player": kind, "value": total, "label": label})
    return rows


def head_name(block: int, head: int) -> str:
    return f"block {block} head {head}"


def signed(value: float) -> str:
    return f"+{numeral(value)}" if value > 0 else numeral(value)


def exactly(length: int) -> str:
    return "no head" if length == 0 else "one head" if length == 1 else f"{length} heads"


def visible(word: str) -> str:
    """A word on one line: what has no picture of its own, such as a line's end, as Python would write it."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in word)


MOST_TOKENS = 12
ROW = 18  # pixels
LONGEST_WORD = 18
MOST_LENGTHS = 6  # that a caption adds up
SEEN = 0.01  # of the largest number: lengths behind the last that reaches it are not drawn
CONSTANTS, OTHERS = "constants", "other tokens"


def token_length_rows(found: Explanation) -> list[dict[str, Any]]:
    """A row for each token and length: the tokens that send most, all others together, and constants."""
    split = found.lengths
    assert split is not None
    words = next(one.tokens for one in found.inputs if one.name == split.input)
    sizes = [max(map(abs, row)) for row in split.tokens]
    kept = sorted(sorted(range(len(words)), key=lambda place: -sizes[place])[:MOST_TOKENS])
    named = [(f"{place}  {visible(words[place])[:LONGEST_WORD]}", split.tokens[place]) for place in kept]
    rest = [row for place, row in enumerate(split.tokens) if place not in kept]
    if rest:
        named.append((OTHERS, tuple(sum(column) for column in zip(*rest, strict=True))))
    if any(split.constants):
        named.append((CONSTANTS, split.constants))
    return [
        {
            "token": name,
            "length": length,
            "value": value,
            "label": f"{name}, through {exactly(length)}: {signed(value)}",
        }
        for name, row in named
        for length, value in enumerate(row[: _seen(named)])
    ]


def _seen(named: list[tuple[str, tuple[float, ...]]]) -> int:
    largest = max(abs(value) for _, row in named for value in row)
    reaching = [k for _, row in named for k, value in enumerate(row) if abs(value) >= SEEN * largest]
    return max(reaching, default=0) + 1


def length_map(found: Explanation, *, width: int | None = None) -> alt.Chart:
    rows = pd.DataFrame(token_length_rows(found))
    reach = float(rows["value"].abs().max()) or 1.0
    bare: dict[str, Any] = {"ticks": False, "domain": False, "grid": False, "labelAngle": 0}
    # By the root of the number: what a token sends through heads is small beside what it says of itself.
    scale = alt.Scale(type="pow", exponent=0.5, domain=[-reach, reach], domainMid=0, nice=False, range="diverging")
    legend = alt.Legend(orient="bottom", gradientLength=150, gradientThickness=8, tickCount=3)
    chart = (
        alt.Chart(rows)
        .mark_rect()
        .encode(
            x=alt.X("length:O", title="heads passed", axis=alt.Axis(**bare)),
            y=alt.Y("token:N", sort=list(dict.fromkeys(rows["token"])), title=None, axis=alt.Axis(**bare)),
            color=alt.Color("value:Q", scale=scale, title=None, legend=legend),
            description="label:N",
            tooltip=[alt.Tooltip("label:N", title=" ")],
        )
        .properties(height=alt.Step(ROW))
    )
    if width is not None:
        return chart.properties(width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return chart.properties(width=360, title=alt.TitleParams("Path contribution by length", fontSize=13))


def length_caption(found: Explanation) -> str:
    """The sums by length, and what they add up to."""
    split = found.lengths
    assert split is not None
    sums = ", ".join(f"{exactly(k)} {signed(v)}" for k, v in enumerate(split.sums) if k < MOST_LENGTHS)
    more = " and so on" if len(split.sums) > MOST_LENGTHS else ""
    total = f"All together: {numeral(split.total)}; the answer is {numeral(found.value)}."
    return f"Sums over all rows: {sums}{more}. {total} Shades follow the root of the number."
