"""The sentences, the tables and the screen of a decomposition into paths."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.paths.carriers import (
    balance,
    constants_matter,
    frozen_heads,
    heads,
    measured_without,
    origin,
)
from attnscope.commands.paths.effect_record import Effects
from attnscope.commands.paths.headline import effect_sentences, names, verdict, without
from attnscope.commands.paths.record import LengthRow, PathReport
from attnscope.commands.paths.vocabulary import (
    all_known,
    chain_words,
    count_words,
    exactly,
    from_on,
    head_name,
    number_or_dash,
    other_than_said,
    quoted,
    seen_lengths,
    share,
    signed,
    visible,
)
from attnscope.core.words import clean, count, numeral
from attnscope.reports.terminal import opening, section
from attnscope.reports.words import beginning_words

__all__ = ["html", "length_lines", "player_words", "sentences", "show", "verdict"]

RANK_ONE = 0.1  # a relative residual below which the rows of a sum are nearly one row
CONSTANTS, OF_TARGET = "from constants", "p of target"  # optional columns
CANCEL = 10.0  # paths of a length cancel if their energy is this many times the square of their sum
ROUNDING = 1e-13  # parts below this share of the target are rounding errors
FEW, MANY = 4, 12  # heads in the table, without and with `verbose`
FEW_PATHS, FEW_SENTENCES, FEW_NOTES = 4, 2, 2
COLUMNS = 80


def sentences(report: PathReport) -> tuple[str, ...]:
    """Return the verdict, and sentences on the effects of heads, the sources of the target, and the precision."""
    frozen = [*origin(report), frozen_heads(report), *_against(report)]
    said = [*effect_sentences(report), *frozen, *_rank(report), *_cancelling(report)]
    return (verdict(report).sentence, *said, _exact(report))


def _against(report: PathReport) -> list[str]:
    """Name the head whose values subtract most, unless `frozen_heads` does."""
    found, moved = heads(report), balance(report)
    if moved.kind != "carried":
        return []
    worst = min(found, key=lambda one: one.value)
    against = f"; the values of {worst.words} subtract most{measured_without(report, worst)}" if worst.value < 0 else ""
    return [f"{count(len(found), 'head')} together add {signed(moved.left)}{against}."]


def player_words(report: PathReport) -> str | None:
    """Describe the game in which MLPs are players too; None if it was not computed."""
    players = report.players
    if players is None or not any(players.mlps):
        return None
    of_heads, of_mlps = (sum(sum(row) for row in kind) for kind in (players.heads, players.mlps))
    return (
        f"If MLPs are players too, a path is shared by all heads and MLPs on it: MLPs are then worth "
        f"{signed(of_mlps)} and heads {signed(of_heads)}, and {numeral(players.nothing)} comes from paths with neither."
    )


def _rank(report: PathReport) -> list[str]:
    residuals = all_known(row.residual for row in report.lengths)
    shares = all_known(row.residual_share for row in report.lengths)
    if not residuals or not shares:
        return []
    most = max(range(len(shares)), key=shares.__getitem__)
    said = f"Of the differences between tokens, {share(shares[most])} come from paths through {exactly(most)}."
    first, last = from_on([residual < RANK_ONE for residual in residuals]), seen_lengths(report) - 1
    if first is not None and 0 < first <= last:
        return [f"{said} Paths through {exactly(first)} or more, added up by length, hardly differ between tokens."]
    if residuals[last] < RANK_ONE:
        return [said]
    more = f"those through {exactly(last)} still differ between tokens (relative residual {numeral(residuals[last])})"
    return [f"{said} Long paths do not all collapse here: {more}."]


def _cancelling(report: PathReport) -> list[str]:
    shown = report.lengths[: seen_lengths(report)]
    many = [(row.energy, row) for row in shown if row.energy is not None and row.paths > 1 and row.stream]
    found = [(energy, row) for energy, row in many if energy > CANCEL * row.stream**2]
    if not found:
        return []
    energy, row = max(found, key=lambda one: one[0])
    return [
        f"Paths through {exactly(row.length)} cancel: their squares add up to {numeral(energy)} (give or "
        f"take {number_or_dash(row.energy_error)}), the square of their sum is {numeral(row.stream**2)}."
    ]


def _exact(report: PathReport) -> str:
    return (
        f"The sum over all lengths differs from the model's own number by {numeral(report.difference)}, and no "
        f"block's linear form differs from the block by more than {numeral(report.linear_difference)} (relative, "
        f"{report.dtype})."
    )


def length_lines(report: PathReport) -> list[tuple[str, ...]]:
    """Return a heading, a line for each visible length, and one line for all longer ones. Skip empty columns."""
    end, bare = seen_lengths(report), report.output == "classes"
    lines = [_line([row], bare) for row in report.lengths[:end]]
    lines += [_line(report.lengths[end:], bare)] if report.lengths[end:] else []
    idle = {name for name in lines[0] if all(line[name] == "–" for line in lines)}
    if not any(row.constants for row in report.lengths):
        idle.add(CONSTANTS)
    if all(row.up_to.target_probability == row.up_to.probability for row in report.lengths):
        idle.add(OF_TARGET)
    kept = [name for name in lines[0] if name not in idle]
    return [tuple(kept), *(tuple(line[name] for name in kept) for line in lines)]


def _line(rows: Sequence[LengthRow], bare: bool) -> dict[str, str]:
    """Return one or several lengths as one line: sums, the mean over all paths, and the range of residuals."""
    last, paths = rows[-1], sum(row.paths for row in rows)
    constants = sum(row.constants for row in rows)
    residuals = [row.residual for row in rows if row.residual is not None]
    ends = [number_or_dash(last.residual)]
    if len(rows) > 1 and residuals:
        ends = [numeral(float(f"{value:.2g}")) for value in (min(residuals), max(residuals))]
    predictions = dict.fromkeys(quoted(row.without.predicted, bare) for row in rows)
    return {
        "length": f"{rows[0].length}–{last.length}" if len(rows) > 1 else str(last.length),
        "paths": count_words(paths),
        "adds": signed(sum(row.value for row in rows)),
        "mean path": signed(sum(row.stream for row in rows) / paths) if paths else "0",
        CONSTANTS: signed(constants) if constants else "0",
        "sum so far": numeral(last.up_to.value),
        "says so far": quoted(last.up_to.predicted, bare),
        "p of that": number_or_dash(last.up_to.probability),
        OF_TARGET: number_or_dash(last.up_to.target_probability),
        "says without": next(iter(predictions)) if len(predictions) == 1 else f"{len(predictions)} words",
        "residual": " to ".join(dict.fromkeys(ends)),
    }


def html(report: PathReport) -> str:
    """Return sentences and the table of lengths for a notebook. All text is escaped."""
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences(report)[1:])  # the first is the verdict
    effects = "" if report.effects is None else _html_table(effect_lines(report)) + _html_table(edge_lines(report))
    return f"{words}{effects}{_html_table(length_lines(report))}"


def _html_table(lines: Sequence[tuple[str, ...]]) -> str:
    """Return a table, or nothing if there are no lines under its heading."""
    if len(lines) == 1:
        return ""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in lines[0])
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in lines[1:])
    return f"<table><tr>{top}</tr>{rows}</table>"


def show(report: PathReport, *, verbose: bool = False) -> RenderableType:
    """Return the screen; with `verbose`, all sentences, heads and paths, and the table of lengths."""
    listed = sentences(report)[1:]
    game = player_words(report)
    begun = beginning_words(report.provenance)
    listed = (*listed, *([game] if game else [])) if verbose else listed[: FEW_SENTENCES - bool(report.notes)]
    parts: list[RenderableType] = [
        *opening(verdict(report), ", ".join((f"{report.model}: {visible(report.target)}", *begun))),
        Text(""),
        *(Text(clean(sentence)) for sentence in listed),
        *(Text(clean(note), style="dim") for note in (report.notes if verbose else report.notes[:FEW_NOTES])),
        *_effect_tables(report, MANY if verbose else FEW),
        *(_frozen_table(report, MANY if verbose else FEW) if verbose or report.effects is None else ()),
        section("Largest single paths"),
        _chain_table(report, len(report.top) if verbose else FEW_PATHS),
    ]
    if verbose:
        parts += [section("By length (heads passed)"), _length_table(report)]
    return Group(*parts)


def _length_table(report: PathReport) -> Table:
    """Return the table of lengths in 80 columns.

    Mean paths and sums are only on the page, and so are constants that add little and the probability of a target that
    the model predicts. If both of the latter are shown, the residual is not.
    """
    heading, *lines = length_lines(report)
    left = {"mean path", "sum so far"}
    left |= set() if constants_matter(report) else {CONSTANTS}
    left |= set() if other_than_said(report) else {OF_TARGET}
    left |= {"residual"} if not left & {CONSTANTS, OF_TARGET} else set()
    columns = [i for i, name in enumerate(heading) if name not in left]
    titles = {i: heading[i].replace(" ", "\n", 1) for i in columns}
    widths = {i: max(len(part) for part in (*titles[i].split("\n"), *(line[i] for line in lines))) for i in columns}
    words = [i for i in columns if heading[i].startswith("says")]
    gap = 2 if sum(widths.values()) + 2 * (len(columns) - 1) <= COLUMNS else 1
    free = COLUMNS - gap * (len(columns) - 1) - sum(widths[i] for i in columns if i not in words)
    table = Table.grid(padding=(0, gap, 0, 0))
    for i in columns:
        width = max(7, min(widths[i], free // len(words), 16)) if i in words else widths[i]
        justify: Literal["left", "right"] = "left" if i in words else "right"
        table.add_column(justify=justify, no_wrap=True, overflow="ellipsis", max_width=width, vertical="bottom")
    table.add_row(*(Text(titles[i], style="dim") for i in columns))
    for line in lines:
        table.add_row(*(Text(clean(line[i]), style="bold" if heading[i] == "adds" else "") for i in columns))
    return table


def effect_lines(report: PathReport) -> list[tuple[str, ...]]:
    """Return a heading and a line for every head that was taken out, largest change first."""
    found = report.effects
    assert found is not None
    of = _followed(found)
    lines: list[tuple[str, ...]] = [("head", f"{of} without it", "effect", "values", "patterns", "norms, gates")]
    for one in sorted(found.heads, key=found.size):
        parts = (one.total, one.values, one.patterns, one.norms_and_gates)
        nothing = ROUNDING * max(abs(found.value), abs(one.total))
        told = ["–" if part is None else signed(part) if abs(part) > nothing else "0" for part in parts]
        lines.append((head_name(*one.place), without(found, one), *told))
    return lines


def _followed(found: Effects) -> str:
    return "difference" if found.follows == "target" else "p" if found.probability is not None else "target"


def edge_lines(report: PathReport) -> list[tuple[str, ...]]:
    """Return a heading and a line for every measured edge between heads, largest change first."""
    found = report.effects
    assert found is not None
    of = _followed(found)
    lines: list[tuple[str, ...]] = [("from", "to", "through its", f"{of} without it", "effect")]
    for edge in found.edges:
        lines.append((names([edge.sender]), names([edge.reader]), edge.by, without(found, edge), signed(edge.total)))
    return lines


def _effect_tables(report: PathReport, most: int) -> list[RenderableType]:
    if report.effects is None:
        return []
    tables: list[RenderableType] = [section("Heads taken out, everything after them responding")]
    tables.append(_plain_table(effect_lines(report)[: most + 1]))
    if report.effects.edges:
        tables += [section("Heads taken out of what another head reads"), _plain_table(edge_lines(report)[: most + 1])]
    return tables


def _plain_table(lines: Sequence[tuple[str, ...]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name in lines[0]:
        words = name in ("head", "from", "to", "through its")
        table.add_column(justify="left" if words else "right", no_wrap=True)
    table.add_row(*(Text(name, style="dim") for name in lines[0]))
    for line in lines[1:]:
        table.add_row(*(Text(clean(cell)) for cell in line))
    return table


def _frozen_table(report: PathReport, most: int) -> list[RenderableType]:
    title = section("Shapley values of heads in the frozen network (values only)")
    return [title, _head_table(report, most)]


def _head_table(report: PathReport, most: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="bold")
    for head in heads(report)[:most]:
        table.add_row(Text(head_name(head.block, head.head)), signed(head.value))
    return table


def _chain_table(report: PathReport, most: int) -> Table:
    """Return the largest paths, each with the contribution of the token that contributes most along it."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True, style="bold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    if report.top:
        table.add_row(*(Text(words, style="dim") for words in ("adds", "from that\ntoken alone", "path")))
    for chain in report.top[:most]:
        table.add_row(signed(chain.contribution), signed(chain.of_token), Text(clean(chain_words(chain))))
    return table
