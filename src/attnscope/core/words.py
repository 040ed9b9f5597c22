"""Format numbers, ranges of blocks and names of heads for sentences, and make text safe to draw.

Position N of the stream is the input of block N. The last position is the output of the last block.

Names and texts come from untrusted files, so characters that cannot be drawn are replaced: a terminal would obey escape
sequences, and the chart renderer writes XML and crashes on a control character.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

TINY = 1e-3  # smaller numbers are written as powers of ten
REPLACEMENT = "\ufffd"
# Characters that XML 1.0 cannot hold: control characters, halves of surrogate pairs, U+FFFE and U+FFFF. XML can
# hold line ends, but Vega-Lite puts titles into expressions as they are, and there a line end is a syntax error.
_NOT_DRAWN = re.compile("[\x00-\x1f\x7f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_HALVES = re.compile("[\ud800-\udfff]")


def numeral(value: float, figures: int = 4) -> str:
    """Return `0.4313`, `12.5`, `12,480` or `1.2e-5`; words for NaN and infinities."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinity"
    size = abs(value)
    if size != 0 and (size < TINY or size >= 999_950):
        mantissa, exponent = f"{value:.{figures - 1}e}".split("e")
        return f"{_short(mantissa)}e{int(exponent)}"
    if size >= min(999.95, 10**figures - 0.5):
        return f"{round(value):,}"
    return _short(f"{value:#.{figures}g}")


def _short(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def clean(text: str) -> str:
    """Replace unprintable characters, line ends included, for a terminal."""
    return "".join(c if c.isprintable() else REPLACEMENT for c in text)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which come from bytes that are not UTF-8: tokenizers and files refuse them."""
    return _HALVES.sub(REPLACEMENT, text)


def parsed(text: str) -> Any:
    """Parse JSON and replace lone surrogates: "\\ud800" alone is valid JSON, but half a character."""
    document = json.loads(text)
    return _each(document, replace_surrogates) if "\\ud" in text or "\\uD" in text else document


def drawable(document: Any) -> Any:
    """Return plain data with every string, including keys, made safe to draw: U+000C becomes ␌."""
    return _each(document, lambda text: _NOT_DRAWN.sub(_symbol, text))


def _each(document: Any, change: Callable[[str], str]) -> Any:
    """Apply `change` to all strings of plain data."""
    if isinstance(document, str):
        return change(document)
    if isinstance(document, dict):
        return {_each(key, change): _each(value, change) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_each(entry, change) for entry in document]
    return document


def _symbol(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode has a visible symbol for each control character
    return "␡" if code == 0x7F else REPLACEMENT


def number(value: float) -> str:
    """Return a number with three significant figures, for sentences."""
    return numeral(value, 3)


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def ranges(numbers: Iterable[int]) -> str:
    """Return `0, 3-5, 7` for 0, 3, 4, 5, 7."""
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
    """Return `entering blocks 3-5 and after the last` for positions of the stream. Position `last` is after the last
    block.
    """
    chosen = sorted(set(positions))
    before = [position for position in chosen if position < last]
    words = [f"entering {blocks(before)}"] if before else []
    if last in chosen:
        words.append("after the last" if before else "after the last block")
    return " and ".join(words)


def listed(words: Iterable[object], most: int = 6) -> str:
    """Return `0, 2 and 3`, or `0, 1, 2, 3, 4, 5 and 9 more`."""
    known = [str(word) for word in words]
    if len(known) > most:
        return f"{', '.join(known[:most])} and {len(known) - most} more"
    return " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)


def count(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def heads(places: Sequence[tuple[int, int]], most: int = 3) -> str:
    """Return `head 3 of block 2, head 7 of block 2 and 5 more` for (block, head) pairs."""
    named = [f"head {head} of block {block}" for block, head in places[:most]]
    if len(places) > most:
        return f"{', '.join(named)} and {len(places) - most} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def within(stack: str, site: str, many: bool) -> str:
    """Return ` of the encoder` or ` of the decoder's cross-attention`, or nothing if it is obvious."""
    kind = {"cross": "cross-attention", "uneven": "uneven self-attention"}.get(site)
    if kind is None:
        return f" of the {stack}" if many else ""
    return f" of the {stack}'s {kind}" if many else f" of the {kind}"
