"""The sentences and the table of lengths of a decomposition into paths."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope.commands.paths.carriers import balance, heads, origin, verdict
from attnscope.commands.paths.record import LengthRow, PathReport
from attnscope.commands.paths.vocabulary import (
    all_known,
    count_words,
    exactly,
    from_on,
    number_or_dash,
    quoted,
    seen_lengths,
    share,
    signed,
)
from attnscope.core.words import count, numeral

__all__ = ["length_lines", "player_words", "sentences", "verdict"]

RANK_ONE = 0.1  # a relative residual below which the rows of a sum are nearly one row
CONSTANTS, OF_TARGET = "from constants", "p of target"  # optional columns
CANCEL = 10.0  # paths of a length cancel if their energy is this many times the square of their sum


def sentences(report: PathReport) -> tuple[str, ...]:
    """Return sentences on the verdict, the sources of the target, what works against it, and the precision."""
    said = [*origin(report), *_against(report), *_rank(report), *_cancelling(report)]
    return (verdict(report).sentence, *said, _exact(report))


def _against(report: PathReport) -> list[str]:
    """Name the head that works most against the target, unless the verdict does."""
    found, moved = heads(report), balance(report)
    if moved.kind != "carried":
        return []
    worst = min(found, key=lambda one: one.value)
    against = f"; {worst.words} works most against it" if worst.value < 0 else ""
    return [f"{count(len(found), 'head')} together add {signed(moved.left)}{against}."]


def player_words(report: PathReport) -> str | None:
    """Describe the game in which MLPs are players too; None if it was not computed."""
    players = report.players
    if players is None or not any(players.mlps):
        return None
    of_heads, of_mlps = (sum(sum(row) for row in kind) for kind in (players.heads, players.mlps))
    return (
        f"If MLPs are players beside heads, a path is shared by all heads and MLPs on it: MLPs are then worth "
        f"{signed(of_mlps)} and heads {signed(of_heads)}, and {numeral(players.nothing)} is left with neither."
    )


def _rank(report: PathReport) -> list[str]:
    residuals = all_known(row.residual for row in report.lengths)
    shares = all_known(row.residual_share for row in report.lengths)
    if not residuals or not shares:
        return []
    most = max(range(len(shares)), key=shares.__getitem__)
    said = f"Of what tells tokens apart at the end, {share(shares[most])} comes from paths through {exactly(most)}."
    first, last = from_on([residual < RANK_ONE for residual in residuals]), seen_lengths(report) - 1
    if first is not None and 0 < first <= last:
        return [f"{said} Paths through {exactly(first)} or more, added up by length, hardly tell tokens apart."]
    if residuals[last] < RANK_ONE:
        return [said]
    more = f"those through {exactly(last)} still tell tokens apart (relative residual {numeral(residuals[last])})"
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
    """Return a heading, a line per length, and all longer lengths as one line. Empty columns are skipped."""
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
    """Return one or several lengths as one line: sums, the mean over all paths, residuals from smallest to largest."""
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
