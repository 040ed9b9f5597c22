"""Plain English for findings: numbers rounded sensibly, blocks as ranges, heads by name.

One convention everywhere: block N computes, and the stream enters block N. The stream that leaves the last block enters
none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnscope.core.numerals import numeral


def number(value: float) -> str:
    """As a sentence says it: three figures."""
    return numeral(value, 3)


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def ranges(numbers: Iterable[int]) -> str:
    """`0, 3-5, 7` for 0, 3, 4, 5, 7."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def blocks(numbers: Iterable[int]) -> str:
    chosen = sorted(set(numbers))
    return f"block{'s' if len(chosen) != 1 else ''} {ranges(chosen)}"


def entering(positions: Iterable[int], last: int) -> str:
    """`entering blocks 3-5 and after the last`: places of the stream, where position `last` leaves the last block."""
    chosen = sorted(set(positions))
    before = [position for position in chosen if position < last]
    words = [f"entering {blocks(before)}"] if before else []
    if last in chosen:
        words.append("after the last" if before else "after the last block")
    return " and ".join(words)


def count(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def heads(places: Sequence[tuple[int, int]], most: int = 3) -> str:
    """`head 3 of block 2, head 7 of block 2 and 5 more`; places are (block, head)."""
    named = [f"head {head} of block {block}" for block, head in places[:most]]
    if len(places) > most:
        return f"{', '.join(named)} and {len(places) - most} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def within(stack: str, site: str, many: bool) -> str:
    """Where, when it is not obvious: ` of the encoder`, ` of the decoder's cross-attention`, or nothing."""
    if site == "cross":
        return f" of the {stack}'s cross-attention" if many else " of the cross-attention"
    if site == "uneven":
        return f" of the {stack}'s uneven self-attention" if many else " of the uneven self-attention"
    return f" of the {stack}" if many else ""
