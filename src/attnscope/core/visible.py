"""Names and texts come from files and from strangers: what cannot be drawn is shown as a symbol, in one place.

A terminal obeys escapes, and moves its cursor or worse. The chart renderer writes XML, which has no control characters,
and ends the whole process where it meets one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

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
