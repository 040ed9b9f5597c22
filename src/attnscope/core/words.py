"""Plain English for findings: numbers rounded sensibly, blocks as ranges, heads by name.

One convention everywhere: block N computes, and the stream enters block N. The stream that leaves the last block enters
none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# Numbers as people read them, the same in sentences, charts, pages and terminals: a few figures, no trailing noise.

TINY = 1e-3  # below it decimals are mostly zeros, and powers of ten are read more easily


def numeral(value: float, figures: int = 4) -> str:
    """`0.4313`, `12.5`, `12,480`, `1.2e-5`; NaN and infinities are said in words. Sentences take three figures."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinity"
    size = abs(value)
    if size != 0 and (size < TINY or size >= 999_950):
        mantissa, exponent = f"{value:.{figures - 1}e}".split("e")
        return f"{_short(mantissa)}e{int(exponent)}"
    if size >= 999.95:
        return f"{round(value):,}"
    return _short(f"{value:#.{figures}g}")


def _short(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


# Names and texts come from files and from strangers: what cannot be drawn is shown as a symbol, in one place.
#
# A terminal obeys escapes, and moves its cursor or worse. The chart renderer writes XML, which has no control
# characters, and ends the whole process where it meets one.

REPLACEMENT = "\ufffd"
# What XML 1.0 cannot hold: control characters, halves of surrogate pairs, U+FFFE and U+FFFF. It can hold line ends, but
# Vega-Lite puts titles into expressions as they are, and there a line end is a syntax error.
_NOT_DRAWN = re.compile("[\x00-\x1f\x7f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_HALVES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """One line for a terminal: whatever does not print is a replacement character."""
    return "".join(c if c.isprintable() else REPLACEMENT for c in text)


def whole(text: str) -> str:
    """Without halves of characters, which come from bytes that are not UTF-8: no tokenizer and no file takes them."""
    return _HALVES.sub(REPLACEMENT, text)


def parsed(text: str) -> Any:
    """What JSON says, in whole characters: "\\ud800" alone is valid JSON, and the half of a character."""
    document = json.loads(text)
    return _each(document, whole) if "\\ud" in text or "\\uD" in text else document


def drawable(document: Any) -> Any:
    """The same plain data with every string, keys too, such that it can be drawn: U+000C becomes ␌."""
    return _each(document, lambda text: _NOT_DRAWN.sub(_symbol, text))


def _each(document: Any, change: Callable[[str], str]) -> Any:
    """Plain data with all its strings changed."""
    if isinstance(document, str):
        return change(document)
    if isinstance(document, dict):
        return {_each(key, change): _each(value, change) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_each(one, change) for one in document]
    return document


def _symbol(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures of control characters
    return "␡" if code == 0x7F else REPLACEMENT


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
